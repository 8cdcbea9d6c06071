"""Masking of what looks like a secret in what is kept of a run: its configuration and its command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_NAME = r"(?:[\w-]*[_-])?(?:api_?key|access_?key|private_?key|secret_?key|secret|password|passwd|token|credentials?)"
_NAMED = re.compile(_NAME, re.IGNORECASE)
_OF_SECRETS = re.compile(rf"{_NAME}|.*_KEY", re.IGNORECASE)  # variables of the environment
_WORD = re.compile(rf"(?i)((?:^|[\s.,{{'\"+])(?:{_NAME})['\"]?\s*[=:]\s*)(?!\$\{{)[^\s,}}'\"]+|(//)[^/\s@]+@")
_LEAST_CHARACTERS = 6  # of a variable's value: a shorter one would be found in words that have nothing to do with it


def masked(value: Any, key: str = "") -> Any:
    """`value` as it may be kept: text under a secret's name, and what a secret environment variable holds, is masked.

    A name is a secret's where it ends in token, secret, password, credentials, api_key or the like, in either case; so
    is the user in `scheme://USER:PASSWORD@host`, and within a text what follows such a name and = or :.
    """
    if isinstance(value, Mapping):
        return {name: masked(entry, str(name)) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(entry, key) for entry in value]
    if not isinstance(value, str) or not value:
        return value
    if _NAMED.fullmatch(key):
        return MASK
    for secret in _of_environment():
        value = value.replace(secret, MASK)
    return _WORD.sub(lambda found: f"{found[1]}{MASK}" if found[1] else f"{found[2]}{MASK}@", value)


def _of_environment() -> list[str]:
    """What variables of a secret's name hold, longest first."""
    found = (
        value for name, value in os.environ.items() if _OF_SECRETS.fullmatch(name) and len(value) >= _LEAST_CHARACTERS
    )
    return sorted(found, key=len, reverse=True)
