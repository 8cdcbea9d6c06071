"""Files of requests in our own trace format: plain, compressed or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson

from framework.errors import InvalidArgument, WorkloadError
from framework.files.atomic import beside
from framework.interfaces.workload import WorkloadRequest
from framework_workloads.lines import PARQUET_HEADER
from framework_workloads.trace.own_format import DEFAULT_BLOCK_TOKENS, FORMAT, VERSION


def write_trace(path: str | Path, requests: Iterable[WorkloadRequest], *, block_tokens: int = 0, **notes: Any) -> int:
    """Write requests as a version 1 file and return how many; a name in .gz or .zst is compressed, one in .parquet is
    a Parquet file.

    The file appears whole or not at all: it is written beside its name and renamed.

    Args:
        block_tokens: of the block ids; 0 takes the first request's.
        notes: kept in the header: source, licence, command.

    Raises:
        InvalidArgument: a request in blocks of another size, one of text, or an arrival before the previous one.
        OSError: the file cannot be written.
    """
    path = Path(path)
    with beside(path) as temporary:
        if path.suffix == ".parquet":
            with _ParquetWriter(temporary) as rows:
                return _write(rows.put, requests, block_tokens, notes)
        with open_writer(temporary, path.suffix) as file:
            return _write(lambda record: file.write(_line(record)), requests, block_tokens, notes)


def _write(
    put: Callable[[dict[str, Any]], object],
    requests: Iterable[WorkloadRequest],
    block_tokens: int,
    notes: dict[str, Any],
) -> int:
    waiting = iter(requests)
    first = next(waiting, None)
    block_tokens = block_tokens or (first.block_tokens if first is not None else 0) or DEFAULT_BLOCK_TOKENS
    put({"format": FORMAT, "version": VERSION, "block_tokens": block_tokens, **notes})
    num_requests, last = 0, 0.0
    for request in () if first is None else chain([first], waiting):
        _check(request, num_requests, block_tokens, last)
        put(_as_record(request))
        num_requests, last = num_requests + 1, request.arrival_s
    return num_requests


def _check(request: WorkloadRequest, number_: int, block_tokens: int, last: float) -> None:
    if request.prompt is not None and request.tokens is None:
        raise InvalidArgument(f"request {number_} is text, which a trace cannot hold: it has no tokens yet")
    if request.tokens is None and request.block_ids is not None and request.block_tokens != block_tokens:
        raise InvalidArgument(f"request {number_} has blocks of {request.block_tokens} tokens, the file {block_tokens}")
    if request.arrival_s < last:
        raise InvalidArgument(f"request {number_} arrives at {request.arrival_s} s, after one at {last} s")


def open_writer(path: Path, suffix: str) -> IO[bytes]:
    """A binary file for writing, compressed as `suffix` says. Equal content gives equal bytes.

    Raises:
        WorkloadError: .zst without the `zstandard` package.
    """
    import gzip

    if suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise WorkloadError("a name in .zst needs zstandard; `pip install zstandard` to write it") from None
        stream: IO[bytes] = zstandard.open(path, "wb")
        return stream
    file = path.open("wb")
    if suffix != ".gz":
        return file
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
    packed.myfileobj = cast(Any, file)  # closed with it
    return cast(IO[bytes], packed)


class _ParquetWriter:
    """Rows of a Parquet file, written as they fill a row group; the header is in the file's metadata.

    Raises:
        WorkloadError: without the `pyarrow` package.
    """

    _GROUP = 2**21
    """Tokens and block names of a row group, about."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
        except ImportError:
            raise WorkloadError("a name in .parquet needs pyarrow; `pip install pyarrow` to write it") from None
        real, whole, word, self._path = pyarrow.float64(), pyarrow.int64(), pyarrow.string(), path
        names, tokens = pyarrow.list_(whole), pyarrow.list_(pyarrow.int32())
        hint = pyarrow.struct({"continues": real, "returns_s": real, "deadline_s": real})
        self._schema = pyarrow.schema({
            "arrival_s": real, "input_tokens": whole, "block_ids": names, "output_tokens": whole, "tokens": tokens,
            "output": tokens, "scope": word, "session": word, "turn": whole, "category": word, "tenant": word,
            "priority": whole, "key": word, "after": pyarrow.list_(word), "delay_s": real, "not_before_s": real,
            "hint": hint, "n": whole, "beam_width": whole,
        })  # fmt: skip
        self._file: Any = None
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def __enter__(self) -> _ParquetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with self._file:
                self._flush()

    def put(self, record: dict[str, Any]) -> None:
        """The header, then each request."""
        if self._file is None:
            from pyarrow.parquet import ParquetWriter

            header = self._schema.with_metadata({PARQUET_HEADER: orjson.dumps(record)})
            # Names of blocks mostly count up.
            encodings = {"block_ids.list.element": "DELTA_BINARY_PACKED"}
            self._file = ParquetWriter(
                self._path, header, compression="zstd", use_dictionary=False, column_encoding=encodings
            )
            return
        if "contents" in record:
            raise InvalidArgument("a Parquet file has no column of contents; write a name in .jsonl, .gz or .zst")
        self._rows.append(record)
        self._size += 1 + sum(len(record.get(name, ())) for name in ("block_ids", "tokens", "output"))
        if self._size >= self._GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        columns = [pyarrow.array([row.get(one.name) for row in self._rows], one.type) for one in self._schema]
        self._file.write_table(pyarrow.Table.from_arrays(columns, schema=self._file.schema))
        self._rows, self._size = [], 0


def _as_record(request: WorkloadRequest) -> dict[str, Any]:
    record: dict[str, Any] = {"arrival_s": request.arrival_s}
    if request.tokens is not None:
        record["tokens"] = request.tokens
    else:
        record["input_tokens"] = request.input_tokens
        if request.block_ids is not None:
            record["block_ids"] = np.ascontiguousarray(request.block_ids)  # of coarser blocks it is every k-th id
    if request.output is not None:
        record["output"] = request.output
    else:
        record["output_tokens"] = (
            request.sampling.max_tokens if request.output_tokens is None else request.output_tokens
        )
    if request.namespace.salt:
        record["scope"] = request.namespace.salt
    if request.namespace.contents:
        record["contents"] = request.namespace.contents
    if request.hint is not None:
        record["hint"] = {key: value for key, value in asdict(request.hint).items() if value is not None}
    for key in ("session", "turn", "category"):
        if (value := getattr(request, key)) is not None:
            record[key] = value
    others = ("tenant", "priority", "key", "after", "delay_s", "not_before_s")
    record.update({key: value for key in others if (value := getattr(request, key))})
    forks = {"n": request.sampling.n, "beam_width": request.sampling.beam_width}
    return record | {key: value for key, value in forks.items() if value > 1}


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
