"""KV events of any allocator, from its calls and the cache events that they caused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Move, Note, Observed, Observer, RunView
from framework.types import ROOT_NAMESPACE, BlockHash, BlockId, Namespace, RequestId, RequestInfo, TokenArray, as_tokens
from framework_kv_events.file import NAME, JsonLines
from framework_kv_events.metrics import METRICS
from framework_kv_events.schema import GPU, BlockRemoved, BlockStored
from framework_kv_events.stream import EventStream, Sink


class EventObserver(Observer):
    """Says in KV events what an engine's allocator publishes and gives up, and what comes to lie below the pool.

    A cache event names blocks and their hashes. Tokens, parent and namespace follow from the call during which it came:
    a block is published by a call for the request whose table names it. So every allocator that sends cache events has
    KV events, with nothing added to its contract.

    Blocks that one call publishes one below the other are one BlockStored; those it removes in a row one BlockRemoved.
    A block below the pool is announced when its copy has ended, not when it was asked for. Two tiers of one medium are
    one place: it holds a block as long as either does. Tokens were sent when the pool published the block, and are not
    sent again.

    Args:
        stream: takes the events, and passes them on at the end of each step. Closed with this.
    """

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self._block_size = 0
        self._wide: list[int] = [1]  # by group of KV, entries of a table that one block takes
        self._hashes: dict[tuple[int, int], BlockHash] = {}  # of (group, block)
        self._prompts: dict[RequestId, Sequence[BlockHash]] = {}  # names of all units, of caches with several groups
        self._requests: dict[RequestId, RequestInfo] = {}
        self._tokens: dict[RequestId, bytearray] = {}  # int32, as far as they are known
        self._tiers: dict[tuple[str, BlockHash], set[int]] = {}  # of the medium, those that hold the content

    def begin(self, cache: Observed) -> None:
        if self._block_size:
            self.stream.cleared()
        self._block_size = cache.block_size
        self._wide = [group.block_tokens // cache.block_size for group in cache.groups] or [1]
        for known in (self._hashes, self._prompts, self._requests, self._tokens, self._tiers):
            known.clear()

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        name, request, info, tokens = call.name, call.request, call.info, call.tokens
        if request is None:
            if name == "reset":
                self._hashes.clear()
                self.stream.cleared()
                return
        elif name == "allocate":
            assert info is not None
            assert tokens is not None
            assert call.hit is not None
            self._requests[request], self._tokens[request] = info, bytearray(as_tokens(tokens))
            wide = self._wide[0]
            hit_blocks = [*call.hit.hashes[wide - 1 : call.hit.num_tokens // self._block_size : wide]]
            if len(self._wide) > 1:
                self._prompts[request] = call.hit.hashes
            if hit_blocks and self.stream.report_hits:
                self._store(request, hit_blocks, None, 0)
        elif tokens is not None:
            self._hold(request, tokens)
        elif info is not None and name == "fork":
            self._requests[info.id] = info
            self._tokens[info.id] = self._tokens.get(request, bytearray())[: 4 * call.num_tokens]
            self._prompts[info.id] = self._prompts.get(request, ())[: call.num_tokens // self._block_size]
            request = info.id
        if events:
            self._settle(request, call.table, events)
        if name == "free" and request is not None:
            self._requests.pop(request, None)
            self._tokens.pop(request, None)
            self._prompts.pop(request, None)

    def noted(self, note: Note) -> None:
        if note.event == "computed":
            self.stream.flush(float(note.step))

    def moved(self, move: Move) -> None:
        tiers = self._tiers.setdefault((move.medium, move.key), set())
        if move.event == "stored":
            if not tiers:
                self.stream.add(BlockStored(
                    block_hashes=[move.key], parent_block_hash=move.above, token_ids=[], block_size=self._block_size,
                    medium=move.medium, group_idx=0,
                ))  # fmt: skip
            tiers.add(move.tier)
        elif move.event == "removed":  # nothing is said of one that was never announced
            if tiers == {move.tier}:
                self.stream.add(BlockRemoved(block_hashes=[move.key], medium=move.medium, group_idx=0))
            tiers.discard(move.tier)
        if not tiers:
            del self._tiers[move.medium, move.key]

    def results(self) -> dict[str, object]:
        return self.stream.facts()

    def close(self) -> None:
        self.stream.close()

    def _hold(self, request: RequestId, tokens: TokenArray) -> None:
        data = self._tokens.get(request)
        if data is not None:  # the array is the caller's, who writes on in it
            data += as_tokens(tokens)[len(data) // 4 :].tobytes()

    def _settle(
        self, request: RequestId | None, table_of: Callable[[int], TokenArray], came: Sequence[CacheEvent]
    ) -> None:
        """Turn the cache events of a call for `request` into KV events."""
        tables: dict[int, list[int]] = {}
        for (kind, group), events in groupby(came, attrgetter("kind", "group")):
            pairs = [pair for event in events for pair in zip(event.blocks, event.hashes, strict=True)]
            if kind == "admit":
                for needed in {0, group} - tables.keys():
                    tables[needed] = table_of(needed).tolist() if request in self._requests else []
                self._stored(request, group, tables, pairs)
            else:
                for block, _ in pairs:
                    self._hashes.pop((group, block), None)
                self.stream.add(BlockRemoved(block_hashes=[key for _, key in pairs], medium=GPU, group_idx=group))

    def _stored(
        self, request: RequestId | None, group: int, tables: Mapping[int, list[int]],
        pairs: Sequence[tuple[BlockId, BlockHash]],
    ) -> None:  # fmt: skip
        """The blocks that were published for `request`, a BlockStored for each run of neighbours in its table."""
        table = tables[group][:: self._wide[group]]
        self._hashes.update(((group, block), key) for block, key in pairs)
        run: list[BlockHash] = []
        first = expected = 0
        for block, key in pairs:
            place = _place(table, block, expected)
            if run and place != expected:
                self._store(request, run, self._above(request, group, tables, first), first, group)
                run = []
            if not run:
                first = place
            run.append(key)
            expected = place + 1
        self._store(request, run, self._above(request, group, tables, first), first, group)

    def _above(
        self, request: RequestId | None, group: int, tables: Mapping[int, list[int]], place: int
    ) -> BlockHash | None:
        """The name of the prefix that ends where this place of a group's table begins, whether or not the group's own
        block of it is still there."""
        unit, names = place * self._wide[group] - 1, () if request is None else self._prompts.get(request, ())
        if unit < 0:
            return None
        return names[unit] if unit < len(names) else self._hashes.get((0, tables[0][unit]))

    def _store(
        self, request: RequestId | None, keys: Sequence[BlockHash], parent: BlockHash | None, first: int, group: int = 0
    ) -> None:
        info, size = None if request is None else self._requests.get(request), self._block_size * self._wide[group]
        data, step = self._tokens.get(request, b"") if request is not None and first >= 0 else b"", 4 * size
        sent = np.frombuffer(bytes(data[first * step : (first + len(keys)) * step]), dtype=np.int32).tolist()
        space = ROOT_NAMESPACE if info is None else info.namespace
        self.stream.add(
            BlockStored(
                block_hashes=keys,
                parent_block_hash=parent,
                token_ids=sent,
                block_size=size,
                medium=GPU,
                lora_name=space.adapter or None,
                extra_keys=_extra_keys(space, size, first, len(keys)),
                group_idx=group,
                session_id=None if info is None else info.session,
            )
        )


class KVEvents(EventObserver):
    """What the pool publishes and removes, in vLLM's schema: as a file of the run, or to whoever follows it.

    Args:
        file: write kv_events.jsonl in the run directory; None: where nothing is published.
        publish: address that batches are sent from over ZeroMQ, as vLLM sends them, such as tcp://127.0.0.1:5557.
        replay_endpoint: where subscribers ask for missed batches; None: nowhere.
        report_hits: also which blocks a request found: vLLM's kv_cache_report_mode full.
    """

    metrics, files = METRICS, (NAME,)

    def __init__(
        self,
        *,
        file: bool | None = None,
        publish: str | None = None,
        replay_endpoint: str | None = "tcp://127.0.0.1:5558",
        report_hits: bool = False,
    ) -> None:
        super().__init__(EventStream((), report_hits=report_hits))
        self._file, self._publish, self._replay_endpoint = file, publish, replay_endpoint

    def start(self, run: RunView) -> None:
        from framework_kv_events.zeromq import Publisher

        sinks: list[Sink] = []
        if self._publish:
            sinks.append(Publisher(self._publish, self._replay_endpoint))
        if self._file or (self._file is None and not self._publish):
            cache = run.config["cache"]
            sinks.append(JsonLines(
                lambda record: run.write(NAME, record), clock="steps", block_size=cache["block_size"],
                num_blocks=cache["num_blocks"], report_hits=self.stream.report_hits,
            ))  # fmt: skip
        self.stream.sinks = tuple(sinks)


def _extra_keys(space: Namespace, size: int, first: int, count: int) -> list[list[Any] | None] | None:
    """What vLLM mixes into each block's hash beside its tokens: the adapter, the contents that touch the block, each by
    its name and where it begins, and the salt where there is no parent."""
    keys: list[list[Any]] = [[space.adapter] if space.adapter else [] for _ in range(count)]
    if space.contents and first >= 0:
        for number, one in enumerate(keys, first):
            one += ([name, start] for start, _, name in space.within(number * size, (number + 1) * size))
    if space.salt and first == 0:
        keys[0].append(space.salt)
    return [one or None for one in keys] if any(keys) else None


def _place(table: list[int], block: int, expected: int) -> int:
    """Where `block` stands in a table, most often at `expected`; -1 where it does not, as of no published block."""
    if expected < len(table) and table[expected] == block:
        return expected
    try:
        return table.index(block)
    except ValueError:
        return -1
