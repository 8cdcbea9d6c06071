"""KV events in a file of JSON lines: a header, then one object a batch, hashes as hexadecimal text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from framework.errors import WorkloadError
from framework_kv_events.schema import Event, Numbered, as_map, from_array
from framework_kv_events.stream import Sink
from framework_workloads.lines import first_lines, read_lines
from framework_workloads.trace.format import FieldError

NAME = "kv_events.jsonl"
"""Name of the file in a run directory."""
FORMAT, VERSION = "kvlab-kv-events", 1


class JsonLines(Sink):
    """Writes each batch as `{"seq", "ts", "events"}`; `ts` is the step, so that equal runs write equal files.

    Whoever gave `write` closes the file.

    Args:
        write: takes one object; bytes in it become hexadecimal text.
        header: what the first line says beside format and version.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], object], **header: Any) -> None:
        self._write, self._header = write, header
        self._begun = False

    def begin(self) -> None:
        """Write the header, before any batch. Idempotent."""
        if not self._begun:
            self._begun = True
            self._write({"format": FORMAT, "version": VERSION, **self._header})

    def put(self, sequence: int, step: float, events: Sequence[Event]) -> None:
        self.begin()
        self._write({"seq": sequence, "ts": step, "events": [as_map(event) for event in events]})

    def facts(self) -> dict[str, Any]:
        """See Sink: nothing. A file of no batch has its header from here on."""
        self.begin()
        return {}


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
    """Whether a file begins as a stream of KV events."""
    lines = [] if path.is_dir() else first_lines(path, 1)
    return bool(lines) and begins_stream(lines[0][1])


def begins_stream(line: bytes) -> bool:
    """Whether a line is the header of a stream, or a batch of one."""
    try:
        record = orjson.loads(line)
    except ValueError:
        return False
    if isinstance(record, dict):
        return record.get("format") == FORMAT or {"events", "ts"} <= record.keys()
    return isinstance(record, list) and len(record) in (2, 3) and isinstance(record[1], list)


def header_of(path: Path) -> Header:
    """The header of a stream, or the defaults where it has none.

    Raises:
        WorkloadError: another version, or a value that cannot be.
    """
    for number, content in parsed(first_lines(path, 1)):
        if isinstance(content, FieldError):
            raise WorkloadError(f"{path}:{number}: {content}") from content
        if isinstance(content, Header):
            return content
    return Header()


def read_batches(path: Path) -> Iterator[Numbered]:
    """(number, batch) of every batch, in file order; memory does not grow with the file.

    Raises:
        WorkloadError: names file, line and field.
    """
    for number, content in parsed(read_lines(path)):
        if isinstance(content, FieldError):
            raise WorkloadError(f"{path}:{number}: {content}") from content
        if not isinstance(content, Header):
            yield content


def parsed(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Header | Numbered | FieldError]]:
    """Number of each line, and the header or batch that it is, or what is wrong with it.

    A batch is `{"seq", "ts", "events"}`, or `[ts, events, rank]` as vLLM's batch is in JSON. One without a number is
    the next. Hexadecimal text is kept as text: it names a block as well as any bytes.
    """
    following = 0
    for number, line in lines:
        try:
            content = _parsed(orjson.loads(line), following)
        except FieldError as error:
            yield number, error
        except ValueError as error:
            yield number, FieldError("line", f"no JSON: {error}")
        else:
            following = following if isinstance(content, Header) else content[0] + 1
            yield number, content


def _parsed(record: Any, following: int) -> Header | Numbered:
    if isinstance(record, list):
        return following, from_array(record)
    if not isinstance(record, dict):
        raise FieldError("line", "expected a JSON object, or an array")
    if record.get("format") == FORMAT:
        return _header(record)
    number = record.get("seq", following)
    if type(number) is not int or number < 0:
        raise FieldError("seq", f"expected a whole number, found {str(number)[:40]!r}")
    return number, from_array([record.get("ts"), record.get("events"), record.get("data_parallel_rank")])


def _header(record: Mapping[str, Any]) -> Header:
    if record.get("version") != VERSION:
        raise FieldError("version", f"this reader knows version {VERSION}, found {str(record.get('version'))[:40]}")
    clock, size = record.get("clock", "seconds"), record.get("block_size") or 0
    if clock not in ("seconds", "steps"):
        raise FieldError("clock", f"expected seconds or steps, found {str(clock)[:40]!r}")
    if type(size) is not int or size < 0:
        raise FieldError("block_size", f"expected tokens a block, found {str(size)[:40]}")
    return Header(clock=clock, block_size=size, report_hits=record.get("report_hits") is True)
