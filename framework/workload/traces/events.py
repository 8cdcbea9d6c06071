"""The event log of a cache as JSON lines: what was published and what was lost, in order. Version 1.

Header: `{"format": "kvlab-events", "version": 1, ...}`. Event: `{"kind": "admit", "block": 7, "key": "9f3c...",
"now": 12.0}`, `kind` being admit or evict, `key` the content's name in hexadecimal, `now` the engine's logical time.
No wall clock: two runs of equal decisions write equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from framework.errors import WorkloadError
from framework.files.lines import read_lines
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.records import FieldError, integer, number
from framework.types import BlockHash, BlockId
from framework.workload.traces.own_format import check_header, open_writer

FORMAT, VERSION = "kvlab-events", 1
_KINDS = ("admit", "evict")


class EventWriter:
    """Writes events as they happen; its `write` is what `Allocator.listen` wants. A context manager."""

    def __init__(self, path: str | Path, **notes: Any) -> None:
        self._file = open_writer(Path(path), Path(path).suffix)
        self._put({"format": FORMAT, "version": VERSION, **notes})

    def write(self, event: CacheEvent) -> None:
        """Append one event."""
        self._put({"kind": event.kind, "block": int(event.block), "key": event.key.hex(), "now": event.now})

    def _put(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Finish the file. Safe to call again."""
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_events(path: str | Path, events: Iterable[CacheEvent], **notes: Any) -> int:
    """Write a whole log and return the number of events."""
    count = 0
    with EventWriter(path, **notes) as writer:
        for event in events:
            writer.write(event)
            count += 1
    return count


def read_events(path: str | Path) -> Iterator[CacheEvent]:
    """The events of a log, in order; memory does not grow with the file.

    Raises:
        WorkloadError: names file, line and field.
    """
    lines = read_lines(path)
    for number_, line in lines:
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise FieldError("line", "expected a JSON object")
            if number_ == 1:
                check_header(record, FORMAT, VERSION)
                continue
            event = _event(record)
        except (FieldError, ValueError) as error:
            raise WorkloadError(f"{path}:{number_}: {error}") from error
        yield event


def _event(record: dict[str, Any]) -> CacheEvent:
    kind, key = record.get("kind"), record.get("key")
    if kind not in _KINDS:
        raise FieldError("kind", f"expected one of {', '.join(_KINDS)}, found {str(kind)[:40]!r}")
    if not isinstance(key, str):
        raise FieldError("key", "expected hexadecimal text")
    try:
        name = BlockHash(bytes.fromhex(key))
    except ValueError:
        raise FieldError("key", f"expected hexadecimal text, found {key[:40]!r}") from None
    return CacheEvent(kind, BlockId(integer(record, "block", 1, 2**62)), name, number(record, "now"))
