"""JSON as it is written, numbers finite, and files of one JSON document."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from framework.errors import FrameworkError, InvalidArgument

JsonObject = dict[str, Any]


def to_plain(value: Any) -> Any:
    """`value` as what JSON can hold: dict, list, str, int, finite float, bool, None.

    NaN and infinities become None, since JSON has no name for them. NumPy scalars and arrays, tuples, sets (sorted),
    paths, enums, bytes (hexadecimal) and dataclasses are converted.

    Raises:
        InvalidArgument: anything else, naming its type.
    """
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    import numpy as np  # here, because --help loads this module and not NumPy

    if isinstance(value, (np.generic, np.ndarray)):
        return to_plain(value.tolist())
    raise InvalidArgument(f"cannot be written as JSON: {type(value).__name__} {value!r:.80}")


def dump_line(record: Mapping[str, Any]) -> bytes:
    """One UTF-8 line, newline included. Non-finite floats become null; see `to_plain`."""
    return json_text(record, separators=(",", ":")).encode() + b"\n"


def json_text(value: Any, **style: Any) -> str:
    """`value` as JSON that UTF-8 can hold; see `to_plain`. Text with half of a surrogate pair is written in escapes.

    Args:
        style: `indent`, `separators`, as json.dumps takes them.
    """
    plain = to_plain(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, **style)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return json.dumps(plain, ensure_ascii=True, allow_nan=False, **style)
    return text


def require_file(path: str | Path, error: type[FrameworkError]) -> None:
    """Refuse as an input what has no end, or none that would come: a pipe, a socket, a device.

    Raises:
        error: it is one; names it.
        OSError: nothing is there.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        raise error(f"{path}: is a {kind}, which may have no end and cannot be read twice; give a file")


def read_object(path: str | Path, error: type[FrameworkError]) -> JsonObject:
    """The object in a file that is one JSON document.

    Raises:
        error: no file, no JSON or no object; names the file.
    """
    try:
        require_file(path, error)
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        if isinstance(fault, error):
            raise
        raise error(f"{path} cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
    if not isinstance(value, dict):
        raise error(f"{path} holds {type(value).__name__}, not a JSON object")
    return value
