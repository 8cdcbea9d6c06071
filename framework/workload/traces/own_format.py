"""Our own trace file: one JSON header line, then one JSON object a request. Version 1.

Header: `{"format": "kvlab-trace", "version": 1, "block_tokens": 16, ...}`; further keys are free notes.
Request: `arrival_s` (seconds, non-decreasing) and `output_tokens`, and one of

* `tokens`, the prompt's token ids; `output`, the generated ids, may stand for `output_tokens`, and a full replay
  generates them again;
* `block_ids` with `input_tokens`: names of the prompt's blocks of `block_tokens` tokens, a partial last one counted
  or not; equal names after equal names are equal content;
* `input_tokens` alone: lengths only.

`scope`, `session` and `tenant` are optional texts; `n` (samples) and `beam_width` optional numbers, not both
above 1. A reader refuses a version it does not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from framework.errors import InvalidArgument
from framework.types import TokenArray
from framework.workload.traces.record import (
    BlockIdArray,
    FieldError,
    TraceRequest,
    check_block_count,
    integer,
    integers,
    number,
    text,
)

FORMAT, VERSION = "kvlab-trace", 1
DEFAULT_BLOCK_TOKENS = 16
_MAX_FORKS = 1024


def check_header(record: dict[str, Any], name: str = FORMAT, version: int = VERSION) -> None:
    """The header names a format and a version that can be read.

    Raises:
        FieldError: it does not.
    """
    if record.get("format") != name:
        raise FieldError("format", f"expected {name!r}, found {str(record.get('format'))[:40]!r}")
    if record.get("version") != version:
        raise FieldError("version", f"this reader knows version {version}, found {str(record.get('version'))[:40]}")


def own(record: dict[str, Any], block_tokens: int) -> TraceRequest:
    """One request line. Token-level prompts get block ids by `name_blocks`."""
    tokens = _tokens(record, "tokens") if "tokens" in record else None
    output = _tokens(record, "output") if record.get("output") is not None else None
    input_tokens = len(tokens) if tokens is not None else integer(record, "input_tokens", 1)
    if input_tokens == 0:
        raise FieldError("tokens", "a prompt has at least one token")
    ids = name_blocks(tokens, block_tokens) if tokens is not None else None
    if "block_ids" in record:
        ids = _block_ids(record, input_tokens, block_tokens)
    return TraceRequest(
        arrival_s=number(record, "arrival_s"),
        input_tokens=input_tokens,
        output_tokens=len(output) if output is not None else integer(record, "output_tokens", 0),
        block_ids=ids,
        block_tokens=block_tokens if ids is not None else 0,
        scope=text(record, "scope"),
        session=text(record, "session"),
        tenant=text(record, "tenant"),
        tokens=tokens,
        output=output,
        **_forks(record),
    )


def _forks(record: dict[str, Any]) -> dict[str, Any]:
    forks: dict[str, int] = {key: integer(record, key, 1, _MAX_FORKS) for key in ("n", "beam_width") if key in record}
    if min(forks.get("n", 1), forks.get("beam_width", 1)) > 1:
        raise FieldError("n", f"expected 1 beside a beam_width of {forks['beam_width']}, found {forks['n']}")
    return forks


def _block_ids(record: dict[str, Any], input_tokens: int, block_tokens: int) -> BlockIdArray:
    ids = integers(record, "block_ids")
    check_block_count("block_ids", len(ids), input_tokens, block_tokens)
    return ids


def _tokens(record: dict[str, Any], field: str) -> TokenArray:
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


def write_trace(path: str | Path, requests: Iterable[TraceRequest], *, block_tokens: int = 0, **notes: Any) -> int:
    """Write requests as a version 1 file and return how many; a name that ends in .gz or .zst is compressed.

    Args:
        block_tokens: of the block ids; 0 takes the first request's.
        notes: kept in the header: source, licence, command.

    Raises:
        InvalidArgument: a request in blocks of another size, or an arrival before the previous one.
    """
    num_requests, last = 0, 0.0
    with open_writer(path) as file:
        for request in requests:
            if num_requests == 0:
                block_tokens = block_tokens or request.block_tokens or DEFAULT_BLOCK_TOKENS
                file.write(_line({"format": FORMAT, "version": VERSION, "block_tokens": block_tokens, **notes}))
            if request.tokens is None and request.block_ids is not None and request.block_tokens != block_tokens:
                raise InvalidArgument(
                    f"request {num_requests} has blocks of {request.block_tokens} tokens, the file {block_tokens}"
                )
            if request.arrival_s < last:
                raise InvalidArgument(f"request {num_requests} arrives at {request.arrival_s} s, after one at {last} s")
            file.write(_line(_as_record(request)))
            num_requests, last = num_requests + 1, request.arrival_s
        if num_requests == 0:
            header = {"format": FORMAT, "version": VERSION, "block_tokens": block_tokens or DEFAULT_BLOCK_TOKENS}
            file.write(_line({**header, **notes}))
    return num_requests


def open_writer(path: str | Path) -> IO[bytes]:
    """A binary file for writing, compressed as its name says. Equal content gives equal bytes."""
    import gzip

    if str(path).endswith(".gz"):
        file = Path(path).open("wb")  # noqa: SIM115
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
        packed.myfileobj = cast(Any, file)  # closed with it
        return cast(IO[bytes], packed)
    if str(path).endswith(".zst"):
        import zstandard

        stream: IO[bytes] = zstandard.open(path, "wb")
        return stream
    return Path(path).open("wb")


def _as_record(request: TraceRequest) -> dict[str, Any]:
    record: dict[str, Any] = {"arrival_s": request.arrival_s}
    if request.tokens is not None:
        record["tokens"] = request.tokens.tolist()
    else:
        record["input_tokens"] = request.input_tokens
        if request.block_ids is not None:
            record["block_ids"] = request.block_ids.tolist()
    if request.output is not None:
        record["output"] = request.output.tolist()
    else:
        record["output_tokens"] = request.output_tokens
    record.update({key: value for key in ("scope", "session", "tenant") if (value := getattr(request, key))})
    record.update({key: value for key in ("n", "beam_width") if (value := getattr(request, key)) > 1})
    return record


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
