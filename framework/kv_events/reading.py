"""Recorded streams of KV events: JSON lines, or messages as they came over ZeroMQ, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from framework.errors import WorkloadError
from framework.files.lines import first_lines, open_bytes, read_lines
from framework.interfaces.records import FieldError
from framework.kv_events.follower import Numbered
from framework.kv_events.schema import EventBatch, from_array, from_map, rank_of, time_of
from framework.kv_events.stream import FORMAT, VERSION
from framework.kv_events.wire import SEQUENCE_BYTES, decode

MAGIC = b"kvlab-kv-events 1\n"
"""How a file of messages begins; then of each its number and its length, both 8 bytes big endian, and its msgpack."""
_MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the first line of a file of ours says; the defaults are of a file without one.

    Attributes:
        clock: of the batches' times: "seconds" or "steps".
        block_size: tokens a block; 0: as the events say.
        report_hits: whether the stream says what requests found.
    """

    clock: str = "seconds"
    block_size: int = 0
    report_hits: bool = False


def is_stream(path: Path) -> bool:
    """Whether a file begins as a recorded stream of KV events."""
    if path.is_dir():
        return False
    if _is_binary(path):
        return True
    lines = first_lines(path, 1)
    return bool(lines) and looks_so(lines[0][1])


def looks_so(line: bytes) -> bool:
    """Whether a line is the header of a stream, or a batch of one."""
    try:
        record = orjson.loads(line)
    except ValueError:
        return False
    if isinstance(record, dict):
        return record.get("format") == FORMAT or ("events" in record and "ts" in record)
    return isinstance(record, list) and len(record) in (2, 3) and isinstance(record[1], list)


def header_of(path: Path) -> Header:
    """The header of a stream.

    Raises:
        WorkloadError: another version, or a value that cannot be.
    """
    lines = [] if _is_binary(path) else first_lines(path, 1)
    try:
        return parse_header(lines[0][1]) if lines else Header()
    except (FieldError, ValueError) as error:
        raise WorkloadError(f"{path}:1: {error}") from error


def parse_header(line: bytes) -> Header:
    """The header that a first line is, or the defaults where it is a batch.

    Raises:
        FieldError: another version, or a value that cannot be.
    """
    record = orjson.loads(line)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return Header()
    if record.get("version") != VERSION:
        raise FieldError("version", f"this reader knows version {VERSION}, found {str(record.get('version'))[:40]}")
    clock, size = record.get("clock", "seconds"), record.get("block_size") or 0
    if clock not in ("seconds", "steps"):
        raise FieldError("clock", f"expected seconds or steps, found {str(clock)[:40]!r}")
    if type(size) is not int or size < 0:
        raise FieldError("block_size", f"expected tokens a block, found {str(size)[:40]}")
    return Header(clock=clock, block_size=size, report_hits=record.get("report_hits") is True)


def read_batches(path: Path) -> Iterator[Numbered]:
    """(number, batch) of every batch, in file order; memory does not grow with the file. Unnumbered ones are numbered.

    A JSON line is `{"seq", "ts", "events"}`, or `[ts, events, rank]` as vLLM's batch is in JSON. Hexadecimal text is
    kept as text: it names a block as well as any bytes.

    Raises:
        WorkloadError: names file, line or message, and field.
    """
    if _is_binary(path):
        yield from _messages(path)
        return
    for number, found in batches_of(read_lines(path)):
        if isinstance(found, FieldError):
            raise WorkloadError(f"{path}:{number}: {found}") from found
        yield found


def batches_of(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Numbered | FieldError]]:
    """Of each line but the header its number, and its batch or what is wrong with it."""
    count = 0
    for at, (number, line) in enumerate(lines):
        try:
            if at == 0 and is_header(line):
                parse_header(line)
                continue
            found = batch_of(orjson.loads(line), count)
        except FieldError as error:
            yield number, error
        except ValueError as error:
            yield number, FieldError("line", f"no JSON: {error}")
        else:
            count = found[0] + 1
            yield number, found


def is_header(line: bytes) -> bool:
    """Whether a line is a header and no batch.

    Raises:
        ValueError: no JSON.
    """
    record = orjson.loads(line)
    return isinstance(record, dict) and "events" not in record


def batch_of(record: Any, count: int) -> Numbered:
    """The numbered batch of a JSON value; `count` is the number of one that has none.

    Raises:
        FieldError: it is none.
    """
    if isinstance(record, list):
        return count, from_array(record)
    if not isinstance(record, Mapping) or not isinstance(record.get("events"), list):
        raise FieldError("events", "expected an object with a list of events")
    number = record.get("seq", count)
    if type(number) is not int or number < 0:
        raise FieldError("seq", f"expected a whole number, found {str(number)[:40]!r}")
    events = [from_map(event) for event in record["events"]]
    return number, EventBatch(time_of(record.get("ts")), events, rank_of([record.get("data_parallel_rank")]))


def _is_binary(path: Path) -> bool:
    with open_bytes(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def _messages(path: Path) -> Iterator[Numbered]:
    with closing(open_bytes(path)) as file:
        file.read(len(MAGIC))
        count = 0
        while head := file.read(2 * SEQUENCE_BYTES):
            count += 1
            try:
                yield _message(head, file)
            except (FieldError, EOFError) as error:
                raise WorkloadError(f"{path}: message {count}: {error}") from error


def _message(head: bytes, file: IO[bytes]) -> Numbered:
    length = int.from_bytes(head[SEQUENCE_BYTES:], "big")
    if len(head) < 2 * SEQUENCE_BYTES or length > _MOST_BYTES:
        raise FieldError("length", "the file is cut short or damaged")
    data = file.read(length)
    if len(data) < length:
        raise FieldError("message", f"the file is cut short: {len(data)} bytes of {length}")
    return int.from_bytes(head[:SEQUENCE_BYTES], "big"), decode(data)
