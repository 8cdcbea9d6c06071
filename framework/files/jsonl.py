"""JSON lines, strictly: one object a line, numbers finite, every fault named by file and line."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import IO, Any

from framework.errors import FrameworkError, InvalidArgument, RunDirectoryError
from framework.files.lines import raw_lines, require_file

JsonObject = dict[str, Any]


class PartialLineWarning(UserWarning):
    """The last line of a result file was cut off in the middle, as a killed run leaves it, and was left out."""


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


def iter_lines(path: Path, error: type[FrameworkError]) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its line end) of a UTF-8 file; see `raw_lines`.

    Raises:
        error: missing or unreadable file, or bytes that are no UTF-8, naming file and line.
    """
    for number, raw in raw_lines(path, error):
        yield number, _decoded(path, number, raw, error).rstrip("\r\n")


def iter_objects(
    path: Path, error: type[FrameworkError], *, file: IO[bytes] | None = None, drop_partial_last: bool = False
) -> Iterator[tuple[int, JsonObject]]:
    """(line number from 1, object) of a JSON-lines file. Blank lines are skipped.

    Args:
        path: plain, gzip or zstandard.
        error: the type to raise.
        file: read from this instead, such as an archive's member; then `path` only names it in errors.
        drop_partial_last: a last line without a line end that does not parse is left out with a PartialLineWarning,
            as a killed writer leaves it; else it is an error like any other.

    Raises:
        error: any other line that is no JSON object, holds NaN or infinity, or repeats a key; names file and line.
    """
    for number, raw in raw_lines(path, error, file):
        cut = not raw.endswith(b"\n")
        try:
            text = _decoded(path, number, raw, error).strip()
            if text:
                yield number, _parsed(path, number, text, error)
        except error as fault:
            if not (drop_partial_last and cut):
                raise
            warnings.warn(f"{fault}; it is the cut-off last line, and is left out", PartialLineWarning, stacklevel=2)


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


def read_jsonl(path: str | Path) -> list[JsonObject]:
    """The objects of a run's JSON-lines file; a cut-off last line is left out with a PartialLineWarning.

    Raises:
        RunDirectoryError: the file cannot be read, or another line is damaged; names file and line.
    """
    return [record for _, record in iter_objects(Path(path), RunDirectoryError, drop_partial_last=True)]


def _decoded(path: Path, number: int, raw: bytes, error: type[FrameworkError]) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise error(f"{path}:{number}: not UTF-8 at byte {fault.start} of the line: {fault.reason}") from fault


def _parsed(path: Path, number: int, text: str, error: type[FrameworkError]) -> JsonObject:
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        raise error(f"{path}:{number}: not a JSON object: {fault}") from fault
    if not isinstance(value, dict):
        raise error(f"{path}:{number}: not a JSON object: found {type(value).__name__} {text[:40]!r}")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> JsonObject:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return record


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
