"""Overrides in one canonical spelling, before Hydra sees them. Imports no Hydra.

Hydra 1.3 refuses `+group=x` for a group of the defaults list and `group=x` for one that is not. Here both mean the
same. What is not about our groups passes through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from framework import registry
from framework.config.config import GROUPS
from framework.config.defaults import default_choices, options_of
from framework.errors import ConfigError

_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|)(?P<key>[A-Za-z_][\w]*)(?P<path>(?:\.[^=@~]+)?)=(?P<value>.*)$", re.DOTALL)
_FREE = re.compile(r"[\\/]|^~|^\.|\.[A-Za-z][A-Za-z0-9]{0,7}$")
_SWEEP = re.compile(r"^(glob|choice|range|interval|shuffle|sort|tag)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of our defaults list, as the normaliser needs them.

    Attributes:
        names: every group.
        open: those whose components check their own options, so that `+group.key=v` may name any key.
        files: group -> the option that takes a file or hub id in its `path`, so that `model=PATH` is a choice too.
        options: options of the groups in `files`, which win over a file of the same name.
    """

    names: frozenset[str]
    open: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Collection[str]] = field(default_factory=dict)


def normalise(
    overrides: Sequence[str], groups: Groups, exists: Callable[[str], bool] = lambda path: False
) -> list[str]:
    """The same overrides, each in the one spelling that plain Hydra takes.

    `g={name: x, key: v}` becomes `g=x` and `g.key=v`; `+g=x`, `++g=x` and `g=x` become `g=x`; `+g.key=v` becomes
    `++g.key=v` where `g` checks its own keys, else `g.key=v`; `model=PATH` becomes `model=checkpoint` and
    `model.path='PATH'`. Idempotent, but for the last.

    Args:
        exists: whether a word names a file or folder; asked only for words that are no option.
    """
    normal: list[str] = []
    for override in overrides:
        normal.extend(_normalise(override, groups, exists))
    return normal


def _normalise(override: str, groups: Groups, exists: Callable[[str], bool]) -> list[str]:
    override = _quoted_where_hydra_cannot_read_it(override)
    match = _OVERRIDE.match(override)
    if match is None or match["key"] not in groups.names:
        return [override]
    group, path, value = match["key"], match["path"], match["value"]
    if not path and (node := _node(value)) is not None:
        chosen = [f"{group}={node.pop('name')}", *(f"+{group}.{key}={own}" for key, own in node.items())]
        return [normal for word in chosen for normal in _normalise(word, groups, exists)]
    if path:
        if match["sign"] != "+":
            return [override]
        return [f"{'++' if group in groups.open else ''}{group}{path}={value}"]
    if group in groups.files:
        words = split_choices(value)
        if words and all(_is_file(word, groups.options.get(group, ()), exists) for word in words):
            return [f"{group}={groups.files[group]}", f"++{group}.path={','.join(map(quote, words))}"]
    return [f"{group}={value}"]


def _node(value: str) -> dict[str, str] | None:
    """The texts of a mapping with a name, as YAML writes a component: `{name: lru_k, k: 2}`; else None."""
    text = value.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(split_choices(text)) != 1:
        return None
    pairs = [part.partition(":") for part in split_choices(text[1:-1])]
    node = {key.strip(): own.strip() for key, _, own in pairs}
    readable = len(node) == len(pairs) and all(key.isidentifier() and node[key] for key in node)
    return node if readable and "name" in node else None


def check_choices(normal: Sequence[str]) -> None:
    """Refuse normalised overrides that set a component to a list, which Hydra would merge into one.

    Raises:
        ConfigError: names the first.
    """
    for override in normal:
        group, _, value = override.partition("=")
        if group in GROUPS and value.lstrip().startswith("["):
            raise by_name(group, override)


def by_name(group: str, given: str) -> ConfigError:
    """The refusal of a group set to what is no name; `given` is the override."""
    options = f", and its options as {group}.OPTION=VALUE" if group in GROUPS else ""
    return ConfigError(
        f"{given[:120]}: the {group} is chosen by its name, set {group}=NAME{options}; --help lists them"
    )


def _quoted_where_hydra_cannot_read_it(override: str) -> str:
    """Hydra's grammar takes letters beyond ASCII only in quotes; names and paths of users have them."""
    key, equals, value = override.partition("=")
    words = split_choices(value)
    if not equals or value.isascii() or any(word[:1] in "'\"[{(" or "(" in word for word in words):
        return override
    return f"{key}={','.join(word if word.isascii() else quote(word) for word in words)}"


def _is_file(word: str, options: Collection[str], exists: Callable[[str], bool]) -> bool:
    bare = unquote(word)
    if not bare or bare in options or bare == "null" or _SWEEP.match(bare) or bare[0] in "[{$":
        return False
    return bool(_FREE.search(bare)) or exists(bare)


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


FILES = {"model": "checkpoint", "workload": "prompts"}
"""Group -> its option that takes a file or hub id as `path`."""


def groups_of(folder: Path) -> Groups:
    """The groups of the conf folder's defaults list."""
    names = frozenset(default_choices(folder))
    return Groups(
        names=names,
        open=names & frozenset(registry.groups()),
        files={group: option for group, option in FILES.items() if group in names},
        options={group: options_of(group, folder) for group in FILES},
    )
