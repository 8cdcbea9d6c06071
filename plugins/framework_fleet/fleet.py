"""Replicas, a router and clients on one virtual clock."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import floor, inf
from random import Random
from typing import NoReturn

import numpy as np

from framework.engine.request import Status
from framework.errors import ConfigError, InvalidPlugin, InvariantViolation
from framework.interfaces.hash import HashScheme
from framework.interfaces.workload import WorkloadRequest
from framework.paged.index import BlockHasher
from framework.replay.items import trace_items
from framework.types import BlockHash
from framework_fleet.guard import GuardedRouter
from framework_fleet.handoff import Agenda, Handoff, Handoffs, Sender
from framework_fleet.index import Holdings, SentBlocks
from framework_fleet.loop import OpenLoop
from framework_fleet.replica import Heard, Replica, Sent
from framework_fleet.router import Load, ReplicaView, RoutedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How well the router sees.

    Attributes:
        report_s: a replica reports its load every so many seconds; 0: after each step.
        lag_s: reports and events are so much later at the router than they are true.
        loss: share of events that never come, 0 to 1.
        sent: the index is guessed from the prompts that were sent, not made of events.
        ttl_s: such a guess holds so long.
        seed: of which events are lost.
    """

    report_s: float = 0.0
    lag_s: float = 0.0
    loss: float = 0.0
    sent: bool = False
    ttl_s: float = 120.0
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Whether the index is what the replicas hold."""
        return not (self.sent or self.lag_s or self.loss)


class Fleet:
    """Sends each request of a loop to a replica that a router chooses, until all have ended.

    What happens is in order of time: a request that leaves at t is routed before any step that begins at t or later, by
    what was known at t. Steps of several replicas overlap; the one whose clock is least is next, the first among
    equals. So one replica does what a plain replay does, to the event.

    Args:
        replicas: by index.
        hash: names blocks as the replicas' allocators do.
        block_size: tokens a block.
        outages: (when, replica, whether it comes rather than goes), in order of time.
        decode_router, handoffs: where prefill and decode are apart: what chooses who decodes, and the links.
        patience_s: a client gives its request up that has no first token so long after it was sent.
        log_end: called with each request as it ends.

    Attributes:
        num_resent: how often a request was sent again because its replica had left.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        loop: OpenLoop,
        router: GuardedRouter,
        hash: HashScheme,
        *,
        block_size: int,
        sight: Sight,
        outages: Sequence[tuple[float, int, bool]] = (),
        log_end: Callable[[Sent], object] = lambda sent: None,
        decode_router: GuardedRouter | None = None,
        handoffs: Handoffs | None = None,
        patience_s: float = inf,
    ) -> None:
        self.replicas, self._loop, self._router = replicas, loop, router
        self._hasher = BlockHasher(hash, block_size)
        self._size, self._sight, self._log_end = block_size, sight, log_end
        self._decode_router, self._handoffs, self._patience_s = decode_router, handoffs, patience_s
        self._agenda = Agenda() if handoffs is None else handoffs.agenda
        if handoffs is not None:
            handoffs.wake = self._wake
        for when_s, index, comes in outages:
            self._agenda.at(when_s, partial(self._come_or_go, index, comes=comes))
        self._held = deque[Sent]()
        self._open: dict[int, Sent] = {}  # by number, those that have not ended
        self._num_sent = self.num_resent = 0
        self._busy: list[tuple[float, int, int]] = []  # a heap of (clock, replica, life)
        self._queued: list[WorkloadRequest] = []
        self._items = trace_items(iter(self._queued.pop, None))  # each as it is sent, in that order
        self._views = [
            ReplicaView(one.index, one.engine.allocator.num_blocks, block_size, self._match, self._potential_blocks)
            for one in replicas
        ]
        for replica in replicas:
            replica.ended = self._ended
        self._prefilling: list[dict[int, int]] = [{} for _ in replicas]  # number -> tokens, until its first token
        self._under_way: list[Counter[BlockHash]] = [Counter() for _ in replicas]
        self._truth, self._ever = [Holdings(len(replicas))], set[BlockHash]()
        self._seen = self._truth if sight.exact else [Holdings(len(replicas))]
        self._guessed = SentBlocks(ttl_s=sight.ttl_s) if sight.sent else None
        self._late: list[deque[Heard]] = [deque() for _ in replicas]
        self._lost = Random(f"framework_fleet.events:{sight.seed}")
        self._keys: Sequence[BlockHash] = ()
        self._matched: list[tuple[int, ...]] | None = None
        self._asked = router
        self._now_s = 0.0

    def run(self) -> Iterator[Replica]:
        """Send and step until all have ended; yields the replica after each step.

        Raises:
            ConfigError: requests are left and no replica is there, nor comes back.
            InvariantViolation: replicas wait for one another for ever.
            PluginError: of the router, or another plugin.
        """
        while True:
            replica, event_s = self._next_busy(), min(self._loop.next_s, self._agenda.next_s)
            if replica is not None and replica.now_s < event_s:
                replica.step()
                self._push(replica)
                yield replica
                continue
            if replica is not None:
                self._push(replica)
            elif self._loop.next_s == inf and not self._open and not (self._handoffs and self._handoffs.num_open):
                return
            if event_s == inf:
                self._stand_still()
            if self._agenda.next_s <= self._loop.next_s:
                self._agenda.do_next()
            else:
                self._send_next(event_s)

    def _push(self, replica: Replica) -> None:
        if replica.busy and not replica.blocked:
            heapq.heappush(self._busy, (replica.now_s, replica.index, replica.life))

    def _wake(self, index: int, at_s: float) -> None:
        replica = self.replicas[index]
        if replica.present and replica.blocked:
            replica.wake(at_s)
            self._push(replica)

    def _stand_still(self) -> NoReturn:
        """Requests are left, and nothing will ever happen."""
        if self._held:
            raise ConfigError(
                f"{len(self._held)} requests wait and no replica is there; let one come back in mode.outages"
            )
        waiting = {one.index: one.engine.num_unfinished for one in self.replicas if one.busy}
        raise InvariantViolation(
            f"handoff: F3: replicas wait for one another; unfinished requests by replica: {waiting}"
        )

    def _next_busy(self) -> Replica | None:
        """The replica whose clock is least of those with requests under way; it is taken off the heap."""
        while self._busy:
            now_s, index, life = heapq.heappop(self._busy)
            replica = self.replicas[index]
            if replica.life == life and replica.present and replica.busy and replica.now_s == now_s:
                return replica  # else another entry of it was made since
        return None

    # Requests

    def _send_next(self, at_s: float) -> None:
        place, request = self._loop.pop()
        self._queued.append(request)
        item = next(self._items)
        assert item.tokens is not None
        tokens = item.tokens
        if item.output is not None and item.sampling.beam_width == 1:
            tokens = np.concatenate([tokens, item.output[:-1]])  # later prompts find it; the last token has no KV
        space = item.namespace
        hashes = self._hasher.blocks(self._hasher.root(space)[0], tokens, space)
        prompt = hashes[: item.input_tokens // self._size]
        sent = Sent(place=place, number=self._num_sent, item=item, hashes=prompt, path=hashes)
        self._open[sent.number] = sent
        self._num_sent += 1
        if self._patience_s < inf:
            self._agenda.at(at_s + self._patience_s, partial(self._give_up, sent))
        self._send(sent, at_s)

    def _pool(self, sent: Sent) -> tuple[GuardedRouter, list[ReplicaView]]:
        """Who chooses the replica that a request goes to next, and among which."""
        there = [view for view in self._views if self.replicas[view.index].present]
        if self._handoffs is None:
            return self._router, there
        prefills = sent.handoff is None
        router = self._router if prefills or self._decode_router is None else self._decode_router
        return router, [view for view in there if self.replicas[view.index].prefills is prefills]

    def _send(self, sent: Sent, at_s: float) -> None:
        router, there = self._pool(sent)
        if not there:
            self._held.append(sent)
            return
        self._catch_up(at_s)
        item = sent.item
        asked = RoutedRequest(
            number=sent.number, num_tokens=item.input_tokens, hashes=sent.hashes, block_size=self._size, now_s=at_s,
            session=item.session, tenant=item.tenant, category=item.category, turn=item.turn, priority=item.priority,
            hint=item.hint,
        )  # fmt: skip
        # A hit never covers a whole prompt: one token is computed.
        self._keys, self._matched = sent.hashes[: (item.input_tokens - 1) // self._size], None
        self._asked = router
        view = router.route(asked, there)
        self._note(sent, view)
        replica = self.replicas[view.index]
        was_busy = replica.busy and not replica.blocked
        replica.take(sent, at_s)
        if not was_busy:
            self._push(replica)
        if sent.gave_up:
            self._give_up(sent, at_s)

    def _note(self, sent: Sent, view: ReplicaView) -> None:
        """What is known as `sent` goes to the replica of `view`, and what the router keeps of it."""
        index, size = view.index, self._size
        first = sent.handoff is None
        sent.num_sent += int(first)
        depths = self._truth[0].matched(self._keys)
        others = [depth for other, depth in enumerate(depths) if other != index and self.replicas[other].present]
        matched = self._all_matched()[index][0] if self._reads_matches else size * depths[index]
        if first:
            sent.elsewhere_tokens, sent.matched_tokens = size * max(others, default=0), matched
            known = next((at for at, key in enumerate(self._keys) if key not in self._ever), len(self._keys))
            sent.known_tokens = size * known
        view.active += 1
        self._prefilling[index][sent.number] = sent.item.input_tokens - matched if first else 0
        view.active_prefill_tokens += self._prefilling[index][sent.number]
        self._under_way[index].update(sent.hashes)
        if self._guessed is not None:
            self._guessed.sent(index, sent.hashes, self._now_s)

    def _ended(self, sent: Sent, at_s: float) -> None:
        replica, request = self.replicas[sent.replica], sent.request
        if isinstance(replica.side, Sender) and request is not None and request.status is Status.FINISHED:
            assert self._handoffs is not None
            sent.prefilled, sent.prefill_replica = request, replica.index
            sent.handoff = self._handoffs.offer(replica.side, request.number, at_s)
            self._agenda.at(at_s, partial(self._send_on, sent, sent.handoff))
            return
        sent.done, sent.handoff = True, None
        del self._open[sent.number]
        self._log_end(sent)
        sent.item, sent.request, sent.path = replace(sent.item, prompt=None, output=None), None, ()
        self._loop.ended(sent.place, at_s)

    def _send_on(self, sent: Sent, handoff: Handoff, at_s: float) -> None:
        """Its prompt is computed; unless the replica left meanwhile, another one decodes."""
        if handoff is sent.handoff:
            self._send(sent, at_s)

    def _give_up(self, sent: Sent, at_s: float) -> None:
        """Its client has waited long enough; one that is on its way is given up where it arrives."""
        sent.gave_up = True
        request = sent.request
        if request is not None and not request.status.ended and request.first_token_s is None:
            self._wake(sent.replica, at_s)
            self.replicas[sent.replica].engine.cancel(request, "its client gave up")

    # Replicas that come and go

    def _come_or_go(self, index: int, at_s: float, *, comes: bool) -> None:
        replica = self.replicas[index]
        if comes and not replica.present:
            replica.begin()
            for _ in range(len(self._held)):
                self._send(self._held.popleft(), at_s)
        elif not comes and replica.present:
            side, unfinished = replica.side, replica.leave()
            if self._handoffs is not None and side is not None:
                self._handoffs.left(side, at_s)
                given = [one for one in self._open.values() if one.handoff is not None and one.handoff.sender is side]
                unfinished += [one for one in given if one.request is one.prefilled]  # not sent on yet
            for holdings in (*self._truth, *self._seen):
                holdings.drop(index)
            if self._guessed is not None:
                self._guessed.drop(index)
            view = self._views[index]
            view.active = view.active_prefill_tokens = 0
            view.load = Load(at_s=at_s)
            self._prefilling[index].clear()
            self._under_way[index].clear()
            self._late[index].clear()
            for router in (self._router, self._decode_router):
                if router is not None:
                    router.plugin.left(index)
            for sent in unfinished:
                self.num_resent += 1
                sent.handoff = sent.prefilled = None
                self._held = deque(one for one in self._held if one is not sent)
                self._send(sent, at_s)

    # What the router sees

    @property
    def _reads_matches(self) -> bool:
        return self._asked.plugin.needs_matches

    def _catch_up(self, at_s: float) -> None:
        """Let the views be what the router knows at this time."""
        self._now_s, sight = at_s, self._sight
        seen_s = at_s - sight.lag_s
        reported_s = floor(seen_s / sight.report_s) * sight.report_s if sight.report_s else seen_s
        for replica, view in zip(self.replicas, self._views, strict=True):
            self._hear(replica, at_s, seen_s)
            reports = replica.reports
            while reports and reports[0].at_s <= reported_s:
                view.load = reports.popleft()
            news, prefilling = replica.news, self._prefilling[view.index]
            while news and news[0][0] <= at_s:
                _, ended, sent = news.popleft()
                view.active_prefill_tokens -= prefilling.pop(sent.number, 0)
                if ended:
                    view.active -= 1
                    self._forget(self._under_way[view.index], sent.hashes)
                    sent.hashes = () if sent.done else sent.hashes

    @staticmethod
    def _forget(counts: Counter[BlockHash], keys: Sequence[BlockHash]) -> None:
        for key in keys:
            counts[key] -= 1
            if counts[key] <= 0:
                del counts[key]

    def _hear(self, replica: Replica, at_s: float, seen_s: float) -> None:
        events, index, late = replica.events, replica.index, self._late[replica.index]
        while events and events[0][0] <= at_s:
            when, tier, came, keys = events.popleft()
            self._apply(self._truth, index, tier, came, keys)
            if came and tier == 0:
                self._ever.update(keys)
            if not self._sight.exact and not (self._sight.loss and self._lost.random() < self._sight.loss):
                late.append((when, tier, came, keys))
        while late and late[0][0] <= seen_s:
            _, tier, came, keys = late.popleft()
            self._apply(self._seen, index, tier, came, keys)

    def _apply(self, holdings: list[Holdings], index: int, tier: int, came: bool, keys: Sequence[BlockHash]) -> None:
        while len(holdings) <= tier:
            holdings.append(Holdings(len(self.replicas)))
        (holdings[tier].add if came else holdings[tier].remove)(index, keys)

    def _match(self, index: int) -> tuple[int, ...]:
        if not self._reads_matches:
            raise InvalidPlugin(
                f"router {type(self._asked.plugin).__name__} reads what replicas hold and does not say so; set its "
                "needs_matches = True"
            )
        return self._all_matched()[index]

    def _all_matched(self) -> list[tuple[int, ...]]:
        """Tokens of the request at hand that each replica has, by tier; found once a request."""
        if self._matched is None:
            keys, count = self._keys, len(self.replicas)
            if self._guessed is not None:
                depths = [self._guessed.matched(index, keys, self._now_s) for index in range(count)]
            else:
                depths = self._seen[0].matched(keys)
            columns = [[self._size * depth for depth in depths]]
            for below in self._seen[1:]:
                further = below.matched(keys, depths)
                columns.append([self._size * (far - near) for far, near in zip(further, depths, strict=True)])
                depths = further
            self._matched = list(zip(*columns, strict=True))
        return self._matched

    def _potential_blocks(self, index: int) -> int:
        under_way = self._under_way[index]
        known = next((at for at, key in enumerate(self._keys) if key not in under_way), len(self._keys))
        return len(under_way) + len(self._keys) - known
