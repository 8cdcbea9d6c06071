"""The lines of a file, plain, gzip or zstandard, or the rows of a Parquet file as lines of JSON, one at a time.

JSON lines are read strictly: one object a line, numbers finite, every fault named by file and line.
"""

from __future__ import annotations

import gzip
import io
import json
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from framework.errors import FrameworkError, RunDirectoryError, WorkloadError
from framework.files.jsonl import JsonObject, require_file

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is taken for damage, so that memory stays bounded whatever the file holds."""

_CHUNK = 2**16
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"

PARQUET_HEADER = b"first_line"
"""Key of a Parquet file's metadata that holds a line before the first row, for formats that begin with a header."""
_ROWS = 512
"""Rows of a Parquet file that are decoded at once."""


class PartialLineWarning(UserWarning):
    """The last line of a result file was cut off in the middle, as a killed run leaves it, and was left out."""


def open_bytes(path: str | Path, error: type[FrameworkError] = WorkloadError) -> IO[bytes]:
    """The file's content, decompressed. The first bytes decide, not the name.

    Raises:
        error: no such file, a pipe or a device, unreadable, or zstandard content without the `zstandard` package.
    """
    try:
        require_file(path, error)
        with Path(path).open("rb") as file:
            magic = file.read(4)
        if magic[:2] == _GZIP:
            return cast(IO[bytes], gzip.open(path, "rb"))
        if magic != _ZSTD:
            return Path(path).open("rb")
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the name
        if isinstance(fault, error):
            raise
        raise error(f"{path}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
    try:
        import zstandard
    except ImportError:
        raise error(f"{path}: zstandard content; `pip install zstandard` to read it") from None
    return io.BufferedReader(_Zstandard(Path(path), zstandard.ZstdDecompressor().decompressobj))


class _Zstandard(io.RawIOBase):
    """Decompresses frame after frame. Unlike the library's own reader it notices a file cut short."""

    def __init__(self, path: Path, new_frame: Callable[[], Any]) -> None:
        self._file, self._new_frame = path.open("rb"), new_frame
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._file.read(_CHUNK)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last zstandard frame has no end")
                return 0
            self._frame = self._frame or self._new_frame()
            self._ready = self._frame.decompress(data)
            if self._frame.eof:
                self._file.seek(-len(self._frame.unused_data), io.SEEK_CUR)
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def first_lines(path: str | Path, count: int) -> list[tuple[int, bytes]]:
    """The first `count` lines that are not blank, with the file closed again."""
    with closing(read_lines(path)) as lines:
        return list(islice(lines, count))


def read_lines(path: str | Path) -> Generator[tuple[int, bytes], None, None]:
    """(line number from 1, line without its end) of every line that is not blank; see `raw_lines`."""
    for number, line in raw_lines(path):
        line = line.strip(b" \t\r\n")
        if line:
            yield number, line


def raw_lines(
    path: str | Path, error: type[FrameworkError] = WorkloadError, file: IO[bytes] | None = None
) -> Generator[tuple[int, bytes], None, None]:
    """(line number from 1, line with its end) of every line. A byte-order mark is dropped; memory holds one line.

    A Parquet file's rows are lines of one JSON object each, without the columns that are null; memory holds some rows
    and what the library reads ahead of a row group.

    Args:
        error: the type to raise.
        file: read from this instead, such as an archive's member; then `path` only names it in errors.

    Raises:
        error: unreadable, cut short inside its compression, a line above MAX_LINE_BYTES, or Parquet without the
            `pyarrow` package; names file and line.
    """
    number = 0
    with open_bytes(path, error) if file is None else file as lines:
        if file is None and isinstance(lines, io.BufferedReader) and lines.peek(4)[:4] == _PARQUET:
            yield from _rows(Path(path), error)
            return
        while True:
            try:
                line = lines.readline(MAX_LINE_BYTES + 1)
            except Exception as fault:
                if not _is_damage(fault):
                    raise
                raise error(f"{path}:{number + 1}: cannot be read: damaged or cut short: {fault}") from fault
            if not line:
                return
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise error(f"{path}:{number}: a line of more than {MAX_LINE_BYTES} bytes")
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _is_damage(error: Exception) -> bool:
    return isinstance(error, (EOFError, OSError, zlib.error)) or type(error).__name__ == "ZstdError"


def _rows(path: Path, error: type[FrameworkError]) -> Generator[tuple[int, bytes], None, None]:
    import orjson  # this file is also imported where torch is all there is

    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise error(f"{path}: a Parquet file; `pip install pyarrow` to read it") from None
    number, option = 0, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    try:
        with ParquetFile(path) as file:
            header = (file.schema_arrow.metadata or {}).get(PARQUET_HEADER)
            if header is not None:
                number = 1
                yield number, header + b"\n"
            for batch in file.iter_batches(_ROWS):
                for values in zip(*map(_values, batch.columns), strict=True):
                    number += 1
                    row = {k: v for k, v in zip(batch.schema.names, values, strict=True) if v is not None}
                    yield number, orjson.dumps(row, default=str, option=option)
    except (OSError, pyarrow.ArrowException, orjson.JSONEncodeError) as fault:
        raise error(f"{path}:{number + 1}: cannot be read: damaged or cut short: {fault}") from fault


def _values(column: Any) -> Iterable[Any]:
    """The values of a column (pyarrow.Array); lists of whole numbers as NumPy arrays, and times to the microsecond."""
    from pyarrow import timestamp, types

    kind = column.type
    if types.is_timestamp(kind):
        column = column.cast(timestamp("us", kind.tz), safe=False)
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if not is_list or not types.is_integer(kind.value_type) or column.values.null_count:
        found: list[Any] = column.to_pylist()
        return found
    values, ends = column.values.to_numpy(), column.offsets.to_numpy().tolist()
    valid = column.is_valid().to_pylist()
    return (values[start:end] if there else None for start, end, there in zip(ends, ends[1:], valid, strict=False))


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
