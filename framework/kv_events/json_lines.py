"""KV events as a file of JSON lines: a header, then one object a batch, hashes as hexadecimal text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framework.kv_events.schema import Event, as_map

FORMAT, VERSION = "kvlab-kv-events", 1


class JsonLines:
    """Writes each batch as `{"seq", "ts", "events"}`; `ts` is the step, so that equal runs write equal files. A Sink.

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
        """See Sink."""
        self.begin()
        self._write({"seq": sequence, "ts": step, "events": [as_map(event) for event in events]})

    def close(self) -> None:
        """See Sink; whoever gave `write` closes the file."""

    def facts(self) -> dict[str, Any]:
        """See Sink: nothing. A file of no batch has its header from here on."""
        self.begin()
        return {}
