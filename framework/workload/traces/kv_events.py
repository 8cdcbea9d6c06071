"""Recorded KV events as a trace: the requests that the events show, in full blocks without content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import orjson

from framework.interfaces.trace import MAX_TOKENS, FieldError, Line, Record, TraceReader, WorkloadRequest
from framework.kv_events.follower import Numbered
from framework.kv_events.reading import (
    MAGIC,
    Header,
    batch_of,
    batches_of,
    header_of,
    is_header,
    looks_so,
    parse_header,
    read_batches,
)
from framework.kv_events.requests import RequestFinder, SeenRequest
from framework.kv_events.schema import BlockStored, EventBatch, Hash
from framework.workload.traces.own_format import answer


class KVEventTrace(TraceReader):
    """A stream of KV events that vLLM, SGLang or a run here sent: `framework.kv_events.requests` says what is found.

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
        return bool(head) and (head[0][1] == MAGIC.strip() or looks_so(head[0][1]))

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """The header's, or the first store's, or what is asked."""
        if head and head[0][1] == MAGIC.strip():
            return asked or self.block_tokens
        try:
            size = parse_header(head[0][1]).block_size if head else 0
            batches = (batch_of(orjson.loads(line), 0)[1] for _, line in head if not is_header(line))
            stored = (event for batch in batches for event in batch.events)
            size = size or next((e.block_size for e in stored if isinstance(e, BlockStored)), 0)
        except ValueError as error:
            raise FieldError("line", str(error)) from error
        if not size and asked is None and len(head) > 1:
            raise FieldError("block_size", "neither a header nor the first batch says it; give block_tokens")
        return size or asked or self.block_tokens

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        requests, number = Requests(header_of(path)), 1
        for number, found in self._batches(lines, path):
            if isinstance(found, FieldError):
                yield number, found
                continue
            try:
                for request in requests.take(*found):
                    yield number, request
            except FieldError as error:
                yield number, error
        for request in requests.finish():
            yield number, request

    def _batches(self, lines: Iterator[Line], path: Path) -> Iterator[tuple[int, Numbered | FieldError]]:
        first = next(lines, (1, b""))
        if first[1] == MAGIC.strip():
            return enumerate(read_batches(path), start=1)
        return batches_of(chain((first,), lines))


class Requests:
    """Requests of block names from numbered batches. Repetitions are left out.

    After a gap the pool is unknown: it is rebuilt from what comes.

    Attributes:
        finder: what was found.
        num_gaps, num_missing: gaps in the numbers, and the batches that are missing.
    """

    def __init__(self, header: Header, medium: str = "GPU") -> None:
        self.finder = RequestFinder(report_hits=header.report_hits, clock=header.clock, medium=medium)
        self.num_gaps = self.num_missing = 0
        self._next = 0
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

    def _number(self, name: Hash | None) -> int:
        """Its number among names; a new one for None, which names nothing."""
        if name is None:
            return self._numbers.setdefault(f"unnamed {len(self._numbers)}", len(self._numbers))
        return self._numbers.setdefault(name, len(self._numbers))

    def _request(self, seen: SeenRequest) -> WorkloadRequest:
        total = seen.block_size * (len(seen.prompt) + len(seen.output))
        if total > MAX_TOKENS:
            raise FieldError("block_hashes", f"a request of {total} tokens; at most {MAX_TOKENS} can be")
        size, ids = seen.block_size, np.array([self._number(name) for name in seen.prompt], dtype=np.int64)
        prompt = np.repeat(ids, size)
        output = np.repeat(np.array([self._number(name) for name in seen.output], dtype=np.int64), size)
        if not seen.ends_full:  # the prompt goes on into the first block that was generated, or into one nobody names
            rest = output if len(output) else np.array([self._number(None)])
            prompt, output = np.append(prompt, rest[:1]), rest[1:]
        if seen.output:  # it ended in a block that it did not fill, and its last token was never computed
            output = np.append(output, [self._number(None)] * 2)
        return WorkloadRequest(
            prompt=prompt.astype(np.int32),
            block_ids=ids,
            block_tokens=size,
            output=output.astype(np.int32) if len(output) else None,
            output_tokens=len(output),
            sampling=answer(len(output)),
            arrival_s=seen.ts,
            session=seen.session,
        )
