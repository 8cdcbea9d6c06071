"""Masking of secrets, by the name of their key, in what is kept of a run: its configuration and its command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_NAME = (
    r"(?:[\w-]*[_-])?(?:(?:api|access|private|secret|signing|hash|hmac)_?keys?|key|hmac|salt|secrets?|passwords?|passwd|"
    r"pass_?phrases?|token|credentials?)"
)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_OVERRIDE = re.compile(rf"([+~]*(?:[\w@/-]+\.)*(?:{_NAME})=)(?!\$\{{oc\.env:\w+\}}$).+", re.IGNORECASE | re.DOTALL)
_WITHIN = re.compile(
    rf"""((?:^|[\s.,{{'"+])(?:{_NAME})['"]?\s*[=:]\s*)(?!\$\{{)(?:'[^']*'|"[^"]*"|[^\s}}'"]+)|(//)[^/\s@]+(?=@)""",
    re.IGNORECASE,
)


def masked(value: Any, key: str = "") -> Any:
    """`value` as it may be kept: what stands under a secret's name is masked, at any depth.

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
    if override := _OVERRIDE.fullmatch(value):
        return f"{override[1]}{MASK}"
    return _WITHIN.sub(lambda match: f"{match[1] or match[2]}{MASK}", value)
