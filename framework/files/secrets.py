"""Masking of what looks like a secret in what is kept of a run: its configuration and its command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_NAME = (
    r"(?:[\w-]*[_-])?(?:(?:api|access|private|secret|signing|hash|hmac)_?keys?|key|hmac|salt|secrets?|passwords?|passwd|"
    r"pass_?phrases?|token|credentials?)"
)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_OF_SECRETS = re.compile(_NAME, re.IGNORECASE)  # variables of the environment
_WORD = re.compile(
    rf"""((?:^|[\s.,{{'"+])(?:{_NAME})['"]?\s*[=:]\s*)(?!\$\{{)('[^']*'|"[^"]*"|[^\s}}'"]+)|(//)[^/\s@]+@""",
    re.IGNORECASE,
)
_OVERRIDE = re.compile(rf"([+~]*(?:[\w@/-]+\.)*(?:{_NAME})=)(?!\$\{{oc\.env:\w+\}}$)(.+)", re.IGNORECASE | re.DOTALL)
_TAKEN = re.compile(rf"(?i)(?:^|[\s.,{{'\"+])(?:{_NAME})['\"]?\s*[=:]\s*\$\{{oc\.env:\s*(\w+)")
_LEAST_CHARACTERS = 6  # of a variable's value: a shorter one would be found in words that have nothing to do with it


def masked(value: Any, key: str = "") -> Any:
    """`value` as it may be kept: what stands under a secret's name, and what a secret environment variable holds, is
    masked.

    A name is a secret's where its last word is key, token, secret, password, passphrase, credentials, salt or hmac, in
    either case; so is the user in `scheme://USER:PASSWORD@host`, what an override gives to such a name, and within a
    text what follows one and = or :, up to a space. For settings and command lines alone: a result may have a `key`.
    """
    if isinstance(value, Mapping):
        return {name: masked(entry, key if _NAMED.fullmatch(key) else str(name)) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(entry, key) for entry in value]
    if _NAMED.fullmatch(key) and value not in (None, "") and not isinstance(value, bool):
        return MASK
    if not isinstance(value, str):
        return value
    for secret in _of_environment():
        value = value.replace(secret, MASK)
    if found := _OVERRIDE.fullmatch(value):
        return f"{found[1]}{MASK}"
    return _WORD.sub(lambda found: f"{found[1]}{MASK}" if found[1] else f"{found[3]}{MASK}@", value)


def secrets_of(value: Any, key: str = "") -> list[str]:
    """What `masked` masks by its name, and what such a name takes by `${oc.env:...}`: to be `hidden` wherever else it
    turns up, where it has 6 characters or more."""
    found: list[str] = []
    if isinstance(value, Mapping):
        inner = key if _NAMED.fullmatch(key) else ""
        found = [secret for name, entry in value.items() for secret in secrets_of(entry, inner or str(name))]
    elif isinstance(value, (list, tuple)):
        found = [secret for entry in value for secret in secrets_of(entry, key)]
    elif isinstance(value, (int, float)) and _NAMED.fullmatch(key):
        found = [str(value)]
    elif isinstance(value, str):
        plain = re.sub(r"\\(.)", r"\1", value)  # Hydra's words have escapes where the value has none
        given = [match[2] for match in (_OVERRIDE.fullmatch(plain), *_WORD.finditer(plain)) if match and match[2]]
        given = [part.strip(" '\"[]") for text in given for part in (text, *text.split(","))]
        found = [value] if _NAMED.fullmatch(key) else given
        found += [os.environ.get(name, "") for name in _TAKEN.findall(plain)]
    return sorted({secret for secret in found if len(secret) >= _LEAST_CHARACTERS}, key=len, reverse=True)


def hidden(value: Any, secrets: Sequence[str]) -> Any:
    """`value` without `secrets`, and without what a secret environment variable holds, in any of its texts."""
    if isinstance(value, Mapping):
        return {name: hidden(entry, secrets) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [hidden(entry, secrets) for entry in value]
    if isinstance(value, str):
        for secret in (*secrets, *_of_environment()):
            value = value.replace(secret, MASK)
    return value


def _of_environment() -> list[str]:
    """What variables of a secret's name hold, longest first."""
    found = (
        value for name, value in os.environ.items() if _OF_SECRETS.fullmatch(name) and len(value) >= _LEAST_CHARACTERS
    )
    return sorted(found, key=len, reverse=True)
