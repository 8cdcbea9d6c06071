"""What is computed once: results that several runs of one folder share, and SHA-256 of files that nobody changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from framework.files.atomic import write_json
from framework.files.jsonl import JsonObject, to_plain


def remembered(folder: Path | None, facts: Mapping[str, Any], compute: Callable[[], JsonObject]) -> JsonObject:
    """`compute()`, or what it gave an earlier run of the same folder for the same facts.

    Kept as `folder/KEY.json` with the facts beside the value. An entry that cannot be read, or written, is computed.

    Args:
        folder: None keeps nothing.
        facts: everything that the value depends on, plain values only.
    """
    if folder is None:
        return compute()
    plain = to_plain(facts)
    key = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry["facts"] == plain and isinstance(entry["value"], dict):
            found: JsonObject = entry["value"]
            return found
    value = compute()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"facts": plain, "value": value})
    return value


def sha256_of(path: Path) -> str:
    """Of the file's bytes, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    found = path.stat()
    return _sha256(path, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, inode: int, size: int, changed_ns: int) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()
