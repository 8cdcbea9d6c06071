"""Recorded KV events as a trace and as a workload: the requests that they show, in full blocks without content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framework.errors import WorkloadError
from framework.interfaces.workload import Workload, WorkloadRequest, answer
from framework_kv_events.file import Header, begins_stream, header_of, is_stream, parsed, read_batches
from framework_kv_events.index import BlockIndex
from framework_kv_events.schema import GPU, BlockRemoved, BlockStored, EventBatch, Hash
from framework_workloads.trace.format import MAX_TOKENS, FieldError, Line, Record, TraceReader


class KVEventTrace(TraceReader):
    """A stream of KV events that vLLM, SGLang or a run here sent: `RequestFinder` says what is found.

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

    Its requests are replayed as any trace's. For mode=replay; `RequestFinder` says what can be found.

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


_IDLE_S, _IDLE_BLOCKS = 2.0, 4


@dataclass(slots=True, eq=False)
class SeenRequest:
    """One request, in full blocks.

    Attributes:
        ts: when its first event came.
        prompt, output: names of its blocks; `hits` leading ones of the prompt were there.
        ends_full: whether its prompt ends with its last block: that block was computed though it was there.
        last_ts: when its last event came.
    """

    ts: float
    prompt: list[Hash]
    hits: int
    session: str | None
    block_size: int
    output: list[Hash] = field(default_factory=list)
    ends_full: bool = False
    last_ts: float = 0.0


@dataclass(slots=True)
class StreamCounts:
    """What happened to the blocks of one medium.

    Attributes:
        prompt_blocks, hit_blocks: of all requests seen: full blocks of prompts, and those that were there.
        stored_blocks: stored in all, in order of `first_blocks` (never seen before), `lost_blocks` (there once, removed
            since: computed again) and `duplicate_blocks` (there already: another block holds the same content).
        removed_blocks: removed, clears not counted. peak_blocks: contents there at the end of a batch, at most.
        stored_by_medium: of every medium, this one included.
    """

    num_requests: int = 0
    prompt_blocks: int = 0
    hit_blocks: int = 0
    first_blocks: int = 0
    lost_blocks: int = 0
    duplicate_blocks: int = 0
    removed_blocks: int = 0
    peak_blocks: int = 0
    stored_by_medium: dict[str, int] = field(default_factory=dict)

    @property
    def stored_blocks(self) -> int:
        """In all."""
        return self.first_blocks + self.lost_blocks + self.duplicate_blocks


class RequestFinder:
    """Finds requests in batches of KV events: a pool is rebuilt, and each store read as part of a request.

    NOTE 1. A store without a parent, or below a block at which no request ends, begins a request: it hit all above. A
    store below a request's last block goes on with it, unless that request has been idle for 2 s (or, where times are
    steps, for those in which four blocks fill): then it is another request that extends it.
    NOTE 2. Blocks that come together, or several at a time, are the prompt's; those that come one at a time afterwards
    were generated.
    NOTE 3. What events do not show is not found: a prompt below one full block; where hits are not reported, a request
    whose full blocks were all there; a prompt's tokens after its last full block.

    Args:
        report_hits: see BlockIndex.
        clock: "seconds" or "steps".
        medium: of the events that count; None in an event counts as well. Only KV cache group 0 is read.

    Attributes:
        counts: so far. index: the pool.
    """

    def __init__(self, *, report_hits: bool = False, clock: str = "seconds", medium: str = GPU) -> None:
        self.index, self.counts = BlockIndex(report_hits=report_hits), StreamCounts()
        self._medium, self._clock = medium, clock
        self._above: dict[Hash, Hash | None] = {}
        self._open: dict[Hash, list[SeenRequest]] = {}  # by the last block
        self._order: deque[SeenRequest] = deque()
        self._block_size = 1

    def take(self, batch: EventBatch) -> Iterator[SeenRequest]:
        """Requests that are over by the time of this batch, in order of their first event."""
        started: set[int] = set()
        for event in batch.events:
            if isinstance(event, BlockStored):
                medium = event.medium or self._medium
                mine = medium == self._medium and event.group_idx in (None, 0)
                if mine and event.block_hashes:
                    self._stored(event, batch.ts, started)
                if not self.index.is_report(event):
                    by_medium = self.counts.stored_by_medium
                    by_medium[medium] = by_medium.get(medium, 0) + len(event.block_hashes)
            elif (
                isinstance(event, BlockRemoved)
                and event.medium in (None, self._medium)
                and event.group_idx in (None, 0)
            ):
                self.counts.removed_blocks += len(event.block_hashes)
            self.index.apply((event,))
        self.counts.peak_blocks = max(self.counts.peak_blocks, self.num_blocks)
        while self._order and self._is_over(self._order[0], batch.ts):
            yield self._end(self._order.popleft())

    @property
    def num_blocks(self) -> int:
        """Contents that are there now, in the medium and group that count."""
        places = ((self._medium, 0), (self._medium, None), (None, 0), (None, None))
        return sum(len(self.index.copies.get(place, ())) for place in places)

    def finish(self) -> Iterator[SeenRequest]:
        """The stream is over, and so are all requests."""
        while self._order:
            yield self._end(self._order.popleft())

    def facts(self) -> dict[str, Any]:
        """What a run's result says of a recorded stream that is over."""
        counts = asdict(self.counts)
        hits, blocks = counts["hit_blocks"], counts["prompt_blocks"]
        counts |= {
            "hit_rate": hits / blocks if blocks else None,
            "stored_blocks": self.counts.stored_blocks,
            "final_blocks": self.num_blocks,
            "stored_by_medium": dict(sorted(self.counts.stored_by_medium.items())),
        }
        del counts["first_blocks"], counts["num_requests"]
        return {f"recorded_{name}": value for name, value in counts.items()}

    def _is_over(self, request: SeenRequest, now: float) -> bool:
        idle = _IDLE_S if self._clock == "seconds" else float(_IDLE_BLOCKS * self._block_size)
        return now - request.last_ts > idle

    def _end(self, request: SeenRequest) -> SeenRequest:
        self._close(request)
        self.counts.num_requests += 1
        self.counts.prompt_blocks += len(request.prompt)
        self.counts.hit_blocks += request.hits
        return request

    def _close(self, request: SeenRequest) -> None:
        """It does not end at its last block any more."""
        tail = (request.output or request.prompt)[-1]
        self._open[tail].remove(request)
        if not self._open[tail]:
            del self._open[tail]

    def _stored(self, event: BlockStored, now: float, started: set[int]) -> None:
        names, self._block_size = [*event.block_hashes], event.block_size
        if self.index.is_report(event):
            self._begin(SeenRequest(now, names, len(names), event.session_id, event.block_size, last_ts=now), started)
            return
        copies = self.index.copies.get((event.medium, event.group_idx), {})
        there = [name in copies for name in names]
        self._count(names, there)
        request = self._continued(event, now)
        if request is None:
            path = self._path(event.parent_block_hash)
            request = SeenRequest(now, path + names, len(path), event.session_id, event.block_size, last_ts=now)
            request.ends_full = there[-1]
            self._begin(request, started)
        else:
            self._extend(request, names, ends_full=there[-1], at_once=id(request) in started)
            request.last_ts = now
        above = event.parent_block_hash
        for name in names:
            self._above[name], above = above, name

    def _count(self, names: list[Hash], there: list[bool]) -> None:
        for name, present in zip(names, there, strict=True):
            if present:
                self.counts.duplicate_blocks += 1
            elif name in self._above:
                self.counts.lost_blocks += 1
            else:
                self.counts.first_blocks += 1

    def _continued(self, event: BlockStored, now: float) -> SeenRequest | None:
        """The request that goes on with this store: the latest that ends at its parent, of its session if one is."""
        if event.parent_block_hash is None:
            return None
        ending = [one for one in self._open.get(event.parent_block_hash, ()) if not self._is_over(one, now)]
        same = [one for one in ending if one.session == event.session_id]
        return next(reversed(same or ending), None)

    def _path(self, name: Hash | None) -> list[Hash]:
        """The blocks from the root to this one, as far as they were seen; of a damaged stream that leads in circles,
        once around.
        """
        path: dict[Hash, None] = {}
        while name is not None and name not in path:
            path[name] = None
            name = self._above.get(name)
        return [*reversed(path)]

    def _begin(self, request: SeenRequest, started: set[int]) -> None:
        started.add(id(request))
        self._order.append(request)
        self._open.setdefault(request.prompt[-1], []).append(request)

    def _extend(self, request: SeenRequest, names: list[Hash], *, ends_full: bool, at_once: bool) -> None:
        self._close(request)
        if not request.output and (at_once or len(names) > 1):
            request.prompt += names
            request.ends_full = ends_full
        else:
            request.output += names
        self._open.setdefault(names[-1], []).append(request)
