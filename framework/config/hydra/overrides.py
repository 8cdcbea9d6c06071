"""Overrides in one canonical spelling, before Hydra sees them. Imports no Hydra.

Hydra 1.3 refuses `+group=x` for a group of the defaults list and `group=x` for one that is not. Here both mean the
same. What is not about our groups passes through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from framework import registry
from framework.config.config import GROUPS, default_choices, options_of
from framework.errors import ConfigError, FrameworkError

_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|)(?P<key>[A-Za-z_][\w]*)(?P<path>(?:\.[^=@~]+)?)=(?P<value>.*)$", re.DOTALL)
_FREE = re.compile(r"[\\/]|^~|^\.|\.[A-Za-z][A-Za-z0-9]{0,7}$")
_SWEEP = re.compile(r"^(glob|choice|range|interval|shuffle|sort|tag)\(")
_NO_NAME = re.compile(r"\s*|null|true|false|[\[{].*|[-+\d.]+", re.DOTALL)

FILES: Mapping[str, str] = MappingProxyType({"model": "checkpoint", "workload": "prompts"})
"""Group -> its option that takes a file or hub id as `path`, so that `model=PATH` is a choice too."""


def normalise(overrides: Sequence[str]) -> list[str]:
    """The same overrides, each in the one spelling that plain Hydra takes.

    `+g=x`, `++g=x` and `g=x` become `g=x`; `+g.key=v` becomes `++g.key=v` where the components of `g` check their own
    options, else `g.key=v`; `model=PATH` becomes `model=checkpoint` and `model.path='PATH'`, unless PATH is an option;
    a mode chooses its own workload where no word does. Idempotent, but for the last.

    Raises:
        ConfigError: a component that is set to what is no name.
    """
    words = [normal for override in overrides for normal in _normalise(override)]
    keys = {word.lstrip("+~").partition("=")[0] for word in words}
    modes = [word.partition("=")[2] for word in words if re.fullmatch(r"\+*mode=[^,]+", word)]
    if modes and not keys & {"workload", "experiment", "sweep"}:
        with suppress(FrameworkError):  # no such mode: composition says so
            if workload := registry.load("mode", modes[-1]).workload:  # type: ignore[attr-defined]
                words.append(f"workload={workload}")
    return words


def _normalise(override: str) -> list[str]:
    override = _quoted_where_hydra_cannot_read_it(override)
    match = _OVERRIDE.match(override)
    if match is None or match["key"] not in default_choices():
        return [override]
    group, path, value = match["key"], match["path"], match["value"]
    if path:
        if match["sign"] != "+":
            return [override]
        return [f"{'++' if group in registry.groups() else ''}{group}{path}={value}"]
    if group in FILES:
        words = split_choices(value)
        if all(_is_file(group, unquote(word)) for word in words):
            return [f"{group}={FILES[group]}", f"++{group}.path={','.join(map(quote, words))}"]
    if group in GROUPS and value.startswith("{"):
        if len(split_choices(value)) > 1:
            return [f"{group}={value}"]  # a sweep, of which each job is written so again
        if (choice := _named(value.strip())) is not None:
            name, options = choice
            return normalise([f"{group}={name}", *(f"+{group}.{option}={given}" for option, given in options.items())])
    if group in GROUPS and _NO_NAME.fullmatch(value):
        raise ConfigError(
            f"{override[:120]}: the {group} is chosen by its name, set {group}=NAME, and its options as "
            f"{group}.OPTION=VALUE; --help lists them"
        )
    return [f"{group}={value}"]


def _named(value: str) -> tuple[str, dict[str, str]] | None:
    """Name and options of `{name: X, option: v, ...}`; None where it is no such mapping."""
    if value[:1] + value[-1:] != "{}":
        return None
    pairs = [word.partition(":") for word in split_choices(value[1:-1])]
    options = {unquote(key.strip()): given.strip() for key, colon, given in pairs if colon}
    name = options.pop("name", "")
    if len(options) + 1 != len(pairs) or _NO_NAME.fullmatch(unquote(name)):
        return None
    return name, options


def _quoted_where_hydra_cannot_read_it(override: str) -> str:
    """Hydra's grammar takes letters beyond ASCII only in quotes; names and paths of users have them."""
    key, equals, value = override.partition("=")
    words = split_choices(value)
    if not equals or value.isascii() or any(word[:1] in "'\"[{(" or "(" in word for word in words):
        return override
    return f"{key}={','.join(word if word.isascii() else quote(word) for word in words)}"


def _is_file(group: str, word: str) -> bool:
    if not word or word == "null" or _SWEEP.match(word) or word[0] in "[{$" or word in options_of(group):
        return False
    return bool(_FREE.search(word)) or Path(word).exists()


def split_choices(value: str) -> list[str]:
    """`a,b` as `[a, b]`; commas inside quotes or brackets separate nothing."""
    words, depth, quoted, start = [], 0, "", 0
    for index, character in enumerate(value):
        if quoted:
            if character == quoted and value[index - 1] != "\\":
                quoted = ""
        elif character in "'\"":
            quoted = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and not depth:
            words.append(value[start:index])
            start = index + 1
    return [word.strip() for word in [*words, value[start:]]]


def unquote(word: str) -> str:
    """The text inside one pair of matching quotes, else the word itself."""
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1].replace("\\" + word[0], word[0])
    return word


def quote(word: str) -> str:
    """A word as a Hydra string literal, whatever it holds."""
    if word != unquote(word):
        return word
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", word)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{escaped[len(escaped) - trailing :]}'"
