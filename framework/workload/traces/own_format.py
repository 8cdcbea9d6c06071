"""Our own trace file: one JSON header line, then one JSON object a request. Version 1.

Header: `{"format": "kvlab-trace", "version": 1, "block_tokens": 16, ...}`; `"clock": "steps"` says that
arrivals count the scheduler's steps before them, and a request may have `seconds` beside them; further keys are free
notes. Request: `arrival_s` (seconds or steps, non-decreasing) and `output_tokens`, and one of

* `tokens`, the prompt's token ids; `output`, the generated ids, may stand for `output_tokens`, and a full replay
  generates them again;
* `block_ids` with `input_tokens`: names of the prompt's blocks of `block_tokens` tokens, a partial last one counted
  or not; equal names after equal names are equal content;
* `input_tokens` alone: lengths only.

`scope`, `session`, `tenant`, `category` and `key` are optional texts, `turn` and `priority` optional whole numbers;
`after` is a list of the keys of requests whose answers it waits for in a closed loop, `delay_s` how long from the last
of them, `not_before_s` the earliest time;
`hint` an optional object of `continues`, `returns_s` and `deadline_s`; `n` (samples) and `beam_width` are optional
numbers, not both above 1. Two statements of one length must agree. A reader refuses a version it does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import numpy as np
import orjson

from framework.errors import ConfigError, InvalidArgument, WorkloadError
from framework.files.atomic import beside
from framework.files.lines import PARQUET_HEADER
from framework.interfaces.trace import (
    BlockIdArray,
    BlockNames,
    FieldError,
    Line,
    Namespace,
    Sampling,
    WorkloadRequest,
    check_block_count,
    integer,
    integers,
    number,
    text,
    texts,
)
from framework.types import TokenArray
from framework.workload.traces.fields import HeadedReader, answer, facts_of, first_object

FORMAT, VERSION = "kvlab-trace", 1
DEFAULT_BLOCK_TOKENS = 16
SYNTHETIC = ("system_prompts", "conversations", "agents", "rag", "forks")
"""Our workloads that know their own answers. Others of token ids can be written as well, with answers of a length."""
_MAX_FORKS = 1024


class OwnFormat(HeadedReader):
    """This framework's own: a header line, then one JSON object a request, with tokens, block ids or lengths."""

    header = FORMAT, VERSION
    block_tokens = DEFAULT_BLOCK_TOKENS
    in_seconds = False
    """Whether arrivals of a file in steps are the seconds beside them."""

    example: ClassVar[Mapping[str, str]] = {
        "own.jsonl": '{"format": "kvlab-trace", "version": 1, "block_tokens": 4}\n'
        '{"arrival_s": 0.0, "tokens": [1, 2, 3, 4, 5], "output": [6], "session": "s", "turn": 0}\n'
        '{"arrival_s": 0.5, "input_tokens": 9, "block_ids": [3, 4, 5], "output_tokens": 2, "hint": {"continues": 1}}\n'
        '{"arrival_s": 0.5, "input_tokens": 9, "output_tokens": 0}\n'
    }

    def __init__(self) -> None:
        self._names = BlockNames()

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """The header's, or what is asked where prompts are tokens."""
        super().block_size(head, asked)
        size = integer(first_object(head), "block_tokens", 1)
        return asked if asked is not None and "tokens" in first_object(head[1:]) else size

    def in_steps(self, head: Sequence[Line]) -> bool:
        """By the header's `clock`."""
        return first_object(head).get("clock") == "steps"

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One request line. Token-level prompts get block ids by `name_blocks`."""
        tokens = _tokens(record, "tokens") if "tokens" in record else None
        output = _tokens(record, "output") if record.get("output") is not None else None
        input_tokens = _length(record, "input_tokens", tokens, 1)
        output_tokens = _length(record, "output_tokens", output, 0)
        if input_tokens == 0:
            raise FieldError("tokens", "a prompt has at least one token")
        ids = name_blocks(tokens, self.block_tokens) if tokens is not None else None
        if "block_ids" in record:
            ids = self._names.ids(record, "block_ids")
            check_block_count("block_ids", len(ids), input_tokens, self.block_tokens)
        return WorkloadRequest(
            prompt=tokens,
            input_tokens=input_tokens,
            block_ids=ids,
            block_tokens=self.block_tokens if ids is not None else 0,
            output=output,
            output_tokens=output_tokens,
            sampling=_sampling(record, output_tokens),
            arrival_s=number(record, "seconds" if self.in_seconds else "arrival_s"),
            after=texts(record, "after"),
            delay_s=number(record, "delay_s") if "delay_s" in record else 0.0,
            not_before_s=number(record, "not_before_s") if "not_before_s" in record else 0.0,
            namespace=Namespace(salt=text(record, "scope") or ""),
            **facts_of(record),
        )


def _length(record: Mapping[str, Any], field: str, tokens: TokenArray | None, low: int) -> int:
    """The length that `field` states, or that of the tokens; both must agree."""
    if tokens is None:
        return integer(record, field, low)
    if field in record and integer(record, field, 0) != len(tokens):
        raise FieldError(field, f"says {str(record[field])[:40]}, but there are {len(tokens)} token ids")
    return len(tokens)


def _sampling(record: Mapping[str, Any], output_tokens: int) -> Sampling:
    n, beam_width = (integer(record, key, 1, _MAX_FORKS) if key in record else 1 for key in ("n", "beam_width"))
    if min(n, beam_width) > 1:
        raise FieldError("n", f"expected 1 beside a beam_width of {beam_width}, found {n}")
    return answer(output_tokens, n, beam_width)


def _tokens(record: Mapping[str, Any], field: str) -> TokenArray:
    return integers(record, field, limit=2**31 - 1).astype(np.int32)


def name_blocks(tokens: TokenArray, block_tokens: int) -> BlockIdArray:
    """(ceil(n / block_tokens),) int64: a name a block that covers its whole prefix, the partial last one included.

    62 bits of a chained BLAKE2b: among a million blocks two different ones share a name with probability 1e-7.
    """
    data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    step, name, names = 4 * block_tokens, b"", []
    for start in range(0, len(data), step):
        name = hashlib.blake2b(name + data[start : start + step], digest_size=8).digest()
        names.append(int.from_bytes(name, "little") >> 2)
    return np.array(names, dtype=np.int64)


def as_trace(requests: Iterable[WorkloadRequest], block_tokens: int | None = None) -> Iterator[WorkloadRequest]:
    """The requests of a workload of token ids as a trace records them, one at a time.

    Args:
        block_tokens: name prompts in blocks of this size, a partial last one included, instead of writing out tokens:
            much shorter, but outputs are then lengths.

    Raises:
        ConfigError: a request of text.
    """
    for request in requests:
        if request.tokens is None:
            raise ConfigError(f"a trace holds token ids, this workload has text; choose one of {', '.join(SYNTHETIC)}")
        output_tokens = request.sampling.max_tokens if request.output_tokens is None else request.output_tokens
        recorded = replace(request, output_tokens=output_tokens)
        if block_tokens is not None:
            ids = name_blocks(request.tokens, block_tokens)
            recorded = replace(recorded, prompt=None, output=None, block_ids=ids, block_tokens=block_tokens)
        yield recorded


def with_blocks(requests: Iterable[WorkloadRequest], block_tokens: int) -> Iterator[WorkloadRequest]:
    """Requests whose prompts are token ids without names, with names of blocks of `block_tokens` beside them."""
    for request in requests:
        if request.block_ids is None and request.tokens is not None:
            ids = name_blocks(request.tokens, block_tokens)
            request = replace(request, block_ids=ids, block_tokens=block_tokens)
        yield request


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
