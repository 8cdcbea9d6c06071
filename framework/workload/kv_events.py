"""A recorded stream of KV events as a workload: its requests, and what the engine that sent it made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framework.errors import WorkloadError
from framework.interfaces.records import FieldError
from framework.interfaces.workload import Workload, WorkloadRequest
from framework.kv_events.reading import Header, header_of, is_stream, read_batches
from framework.kv_events.requests import facts_of
from framework.workload.traces.kv_events import Requests


@dataclass(kw_only=True)
class KVEventStream(Workload):
    """Rebuilds the pool of the engine that sent the events, and reports what was hit, lost and duplicated there.

    Its requests are replayed as any trace's. For mode=replay; `framework.kv_events.requests` says what can be found.

    Args:
        path: JSON lines (kv_events.jsonl of a run, or what `framework.trace record` wrote), or a file of messages.
        medium: of the blocks that count.
        report_hits: whether the stream says what requests found; null: as its header says, else no.
    """

    path: Path
    medium: str = "GPU"
    report_hits: bool | None = None

    def __post_init__(self) -> None:
        self._found: Requests | None = None

    def requests(self) -> Iterator[WorkloadRequest]:
        path = Path(self.path)
        if not path.is_file():
            raise WorkloadError(
                f"{path}: no such file; a run with kv_events.file=true writes one, and framework.trace record does"
            )
        if not is_stream(path):
            raise WorkloadError(f"{path}: no stream of KV events: neither a header nor a batch at its beginning")
        header = header_of(path)
        report = header.report_hits if self.report_hits is None else self.report_hits
        found = Requests(Header(clock=header.clock, block_size=header.block_size, report_hits=report), self.medium)
        self._found, epoch = None, None
        try:
            for number, batch in read_batches(path):
                epoch = batch.ts if epoch is None else epoch
                yield from _since(epoch, found.take(number, batch))
            yield from _since(epoch or 0.0, found.finish())
        except FieldError as error:
            raise WorkloadError(f"{path}: {error}") from error
        self._found = found

    def facts(self) -> Mapping[str, Any]:
        """What the stream says of the engine that sent it, once it was read to its end."""
        if self._found is None:
            return {}
        found = self._found
        facts = facts_of(found.finder.counts, found.finder.num_blocks)
        return {**facts, "recorded_gaps": found.num_gaps, "recorded_missing_batches": found.num_missing}


def _since(epoch: float, requests: Iterator[WorkloadRequest]) -> Iterator[WorkloadRequest]:
    return (replace(request, arrival_s=max(0.0, request.arrival_s - epoch)) for request in requests)
