"""Recorded KV events as a trace and as a workload: the requests that they show, in full blocks without content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framework.errors import WorkloadError
from framework.interfaces.workload import Workload, WorkloadRequest, answer
from framework_kv_events.file import Header, begins_stream, header_of, is_stream, parsed, read_batches
from framework_kv_events.requests import RequestFinder, SeenRequest
from framework_kv_events.schema import BlockStored, EventBatch, Hash
from framework_workloads.trace.format import MAX_TOKENS, FieldError, Line, Record, TraceReader


class KVEventTrace(TraceReader):
    """A stream of KV events that vLLM, SGLang or a run here sent: `framework_kv_events.requests` says what is found.

    A name becomes as many equal tokens as a block holds; a prompt has one token more, which no block names, unless it
    is known to end with its last block. Generated blocks are the answer. Where times are steps, a step is a second.
    """

    block_tokens = 16
    absolute_times = True

    example: ClassVar[Mapping[str, str]] = {
        "kv_events.jsonl": '{"format": "kvlab-kv-events", "version": 1, "clock": "steps", "block_size": 2}\n'
        '{"seq": 0, "ts": 1, "events": [{"type": "BlockStored", "block_hashes": ["a1", "b2"], "parent_block_hash": '
        'null, "token_ids": [], "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null}]}\n'
        '{"seq": 1, "ts": 99, "events": [{"type": "BlockStored", "block_hashes": ["c3"], "parent_block_hash": "a1", '
        '"token_ids": [], "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null}]}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By the header, or by a first line that is a batch."""
        return bool(head) and begins_stream(head[0][1])

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """The header's, or the first store's, or what is asked."""
        size = 0
        for _, parsed_line in parsed(head):
            if isinstance(parsed_line, FieldError):
                raise parsed_line
            if isinstance(parsed_line, Header):
                size = parsed_line.block_size
            elif not size:
                size = next((event.block_size for event in parsed_line[1].events if isinstance(event, BlockStored)), 0)
        if not size and asked is None and len(head) > 1:
            raise FieldError("block_size", "neither a header nor the first batch says it; give block_tokens")
        return size or asked or self.block_tokens

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        requests, number = Requests(header_of(path)), 1
        for number, parsed_line in parsed(lines):
            if isinstance(parsed_line, FieldError):
                yield number, parsed_line
            elif not isinstance(parsed_line, Header):
                try:
                    for request in requests.take(*parsed_line):
                        yield number, request
                except FieldError as error:
                    yield number, error
        for request in requests.finish():
            yield number, request


@dataclass(kw_only=True)
class KVEventStream(Workload):
    """Rebuilds the pool of the engine that sent the events, and reports what was hit, lost and duplicated there.

    Its requests are replayed as any trace's. For mode=replay; `framework_kv_events.requests` says what can be found.

    Args:
        path: kv_events.jsonl of a run, or what `python -m framework record_events` wrote.
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
                f"{path}: no such file; a run with observers=[kv_events] writes one, and so does "
                "`python -m framework record_events`"
            )
        if not is_stream(path):
            raise WorkloadError(f"{path}: no stream of KV events: neither a header nor a batch at its beginning")
        header = header_of(path)
        if self.report_hits is not None:
            header = replace(header, report_hits=self.report_hits)
        requests, self._found = Requests(header, self.medium), None
        try:
            for number, batch in read_batches(path):
                yield from requests.take(number, batch)
            yield from requests.finish()
        except FieldError as error:
            raise WorkloadError(f"{path}: {error}") from error
        self._found = requests

    def facts(self) -> Mapping[str, Any]:
        """What the stream says of the engine that sent it, once it was read to its end."""
        requests = self._found
        if requests is None:
            return {}
        return {
            **requests.finder.facts(),
            "recorded_gaps": requests.num_gaps,
            "recorded_missing_batches": requests.num_missing,
        }


class Requests:
    """Requests of block names from numbered batches, with times from the first batch on. Repetitions are left out.

    After a gap the pool is unknown: it is rebuilt from what comes.

    Attributes:
        finder: what was found.
        num_gaps, num_missing: gaps in the numbers, and the batches that are missing.
    """

    def __init__(self, header: Header, medium: str = "GPU") -> None:
        self.finder = RequestFinder(report_hits=header.report_hits, clock=header.clock, medium=medium)
        self.num_gaps = self.num_missing = 0
        self._next = 0
        self._first_ts: float | None = None
        self._last_ts = 0.0
        self._numbers: dict[Hash, int] = {}

    def take(self, number: int, batch: EventBatch) -> Iterator[WorkloadRequest]:
        """Requests that are over by the time of this batch.

        Raises:
            FieldError: its time lies before that of the last.
        """
        if number < self._next:
            return
        if batch.ts < self._last_ts:
            raise FieldError("ts", f"{batch.ts} s after {self._last_ts} s: the clock went back; part the stream there")
        self._last_ts = batch.ts
        if self._first_ts is None:
            self._first_ts = batch.ts
        if number > self._next:
            self.num_gaps += 1
            self.num_missing += number - self._next
            self.finder.index.copies.clear()
        self._next = number + 1
        for request in self.finder.take(batch):
            yield self._request(request)

    def finish(self) -> Iterator[WorkloadRequest]:
        """The rest."""
        for request in self.finder.finish():
            yield self._request(request)

    def _number(self, name: Hash) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _unnamed(self) -> int:
        """A number that no block has."""
        return self._number(f"unnamed {len(self._numbers)}")

    def _request(self, seen: SeenRequest) -> WorkloadRequest:
        total = seen.block_size * (len(seen.prompt) + len(seen.output))
        if total > MAX_TOKENS:
            raise FieldError("block_hashes", f"a request of {total} tokens; at most {MAX_TOKENS} can be")
        size, ids = seen.block_size, np.array([self._number(name) for name in seen.prompt], dtype=np.int64)
        prompt = np.repeat(ids, size)
        output = np.repeat(np.array([self._number(name) for name in seen.output], dtype=np.int64), size)
        if not seen.ends_full:  # the prompt goes on into the first block that was generated, or into one nobody names
            rest = output if len(output) else np.array([self._unnamed()])
            prompt, output = np.append(prompt, rest[:1]), rest[1:]
        if seen.output:  # it ended in a block that it did not fill, and its last token was never computed
            output = np.append(output, [self._unnamed()] * 2)
        return WorkloadRequest(
            prompt=prompt.astype(np.int32),
            block_ids=ids,
            block_tokens=size,
            output=output.astype(np.int32) if len(output) else None,
            output_tokens=len(output),
            sampling=answer(len(output)),
            arrival_s=seen.ts - (self._first_ts or 0.0),
            session=seen.session,
        )
