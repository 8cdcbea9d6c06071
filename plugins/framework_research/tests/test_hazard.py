"""hazard: never far below LRU on streams nobody tuned it for, and what its guard is for."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from learning_streams import hits, requests_of

from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.types import RequestFacts
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_research import hazard
from framework_research.hazard import LEFT, Hazard
from framework_research.hinted import Hinted


def one_hot_set_after_another(draw: random.Random) -> RequestPaths:
    """What is popular moves on every 500 requests: frequency and gaps of the past mislead."""
    paths = []
    for at in range(4000):
        name = at // 500 * 50 + int(abs(draw.gauss(0, 15)))
        paths.append((float(at), [name * 100 + depth for depth in range(1 + name % 9)]))
    return requests_of(paths)


def sessions_with_a_shared_opening(draw: random.Random, pause: float, steps: tuple[int, int]) -> RequestPaths:
    """Agents: contexts that grow step by step behind one of four openings."""
    paths = []
    for session in range(120):
        at, ids = draw.uniform(0, 3000), [session % 4 * 10**7 + depth for depth in range(12)]
        for _ in range(draw.randint(*steps)):
            start = 10**8 + session * 1000 + len(ids)
            ids = ids + list(range(start, start + draw.randint(1, 6)))
            paths.append((at, ids))
            at += draw.lognormvariate(np.log(pause), 1)
    return requests_of(paths)


def signs_that_swap_their_meaning(draw: random.Random) -> RequestPaths:
    """Long first prompts go on and short ones do not, then the other way round, by turns."""
    paths = []
    for number in range(1500):
        long = number % 2 == 0
        at, ids = 3.0 * number, [number * 1000 + depth for depth in range(10 if long else 5)]
        for _ in range(4 if long == (number // 300 % 2 == 0) else 1):
            paths.append((at, ids))
            ids = [*ids, ids[-1] + 1]
            at += draw.uniform(30, 90)
    return requests_of(paths)


def the_latest_come_back(draw: random.Random) -> RequestPaths:
    """A stack: who was here last returns most likely, so LRU is nearly optimal."""
    paths, recent = [], []
    for at in range(3000):
        name = at
        if recent and draw.random() < 0.6:
            name = recent.pop(-1 - min(int(draw.expovariate(1 / 3)), len(recent) - 1))
        recent.append(name)
        paths.append((float(at), [name * 100 + depth for depth in range(6)]))
    return requests_of(paths)


UNSEEN = {
    "hot sets": one_hot_set_after_another,
    "chats": lambda draw: sessions_with_a_shared_opening(draw, 20.0, (1, 6)),
    "agents": lambda draw: sessions_with_a_shared_opening(draw, 12.0, (5, 30)),
    "swapped signs": signs_that_swap_their_meaning,
    "stack": the_latest_come_back,
}


@pytest.mark.parametrize(("name", "kind"), [*((name, Hazard) for name in UNSEEN), ("chats", Hinted), ("stack", Hinted)])
def test_on_no_stream_is_it_half_a_point_below_lru(name: str, kind: type[EvictionPolicy]) -> None:
    paths = UNSEEN[name](random.Random(1))
    for part in (0.01, 0.1, 0.5):
        capacity = max(1, round(part * paths.num_nodes))
        lost = hits(Lru(), paths, capacity) - hits(kind(), paths, capacity)
        assert 100 * lost / paths.num_references < 0.5, (part, lost, paths.num_references)


def test_blocks_that_the_cache_lost_are_not_taken_for_new_ones() -> None:
    seen: list[tuple[int, int]] = []

    class Watched(Hazard):
        def group(self, blocks, facts, gap):
            seen.append((self.num_fresh, self._turn(facts)))
            super().group(blocks, facts, gap)

    others = [(float(at), [at * 100 + depth for depth in range(6)]) for at in range(1, 4)]
    paths = requests_of([(0.0, [1, 2, 3]), *others, (5.0, [1, 2, 3, 4])])
    assert replay(paths, Watched(), 8).request_hits.tolist() == [0, 0, 0, 0, 0], "all of it was evicted"
    assert seen == [(3, 0), (6, 0), (6, 0), (6, 0), (1, 1)]


@pytest.mark.parametrize("sign", ["category", "output_tokens"])
def test_a_category_or_a_short_answer_tells_who_goes_on(sign: str) -> None:
    """Prompts of one size and turn, distinguished by what clients call them or by the answer alone."""

    class Blind(Hazard):
        def features(self, facts, num_blocks, gap):
            return super().features(replace(facts, **{sign: None}), num_blocks, gap)

    draw, due = random.Random(0), []
    for number in range(900):
        chat = draw.random() < 0.5
        start = [number * 100 + depth for depth in range(6)]
        due.append((float(number), start, chat))
        if chat:
            due.append((number + draw.uniform(30, 60), [*start, number * 100 + 50], chat))
    by_answer = sign == "output_tokens"
    paths = build_paths(
        WorkloadRequest(arrival_s=at, input_tokens=2 * len(ids), block_tokens=2, block_ids=np.array(ids),
                     output_tokens=1 if chat or not by_answer else 500,
                     category=None if by_answer else "chat" if chat else "once")
        for at, ids, chat in sorted(due, key=lambda row: row[0])
    )  # fmt: skip
    assert hits(Hazard(), paths) > 1.1 * hits(Blind(), paths) > 0


def sent_again_with_another_ending(draw: random.Random) -> RequestPaths:
    """Conversations of an opening of six blocks and eight new ones a turn, without which the next turn goes on."""
    paths = []
    for number in range(400):
        at, opening = draw.uniform(0, 4000), [number * 1000 + depth for depth in range(6)]
        for turn in range(draw.randint(2, 6)):
            start = 10**7 + number * 1000 + turn * 10
            paths.append((at, [*opening, *range(start, start + 8)]))
            at += draw.lognormvariate(np.log(60), 1)
    return requests_of(paths)


def test_what_a_conversation_leaves_behind_goes_before_what_it_comes_back_to() -> None:
    class AllAlike(Hazard):
        """Takes all blocks of a prompt for one group."""

        def _bodies(self, blocks, num_new, *others):
            super()._bodies(blocks, 0, *others)

        def _moved_on(self):
            return False

    paths = sent_again_with_another_ending(random.Random(2))
    capacity = paths.num_nodes // 50
    lru, alike = hits(Lru(), paths, capacity), hits(AllAlike(), paths, capacity)
    assert hits(Hazard(), paths, capacity) > max(lru, 1.1 * alike)


def test_the_end_of_a_prompt_that_the_next_turn_drops_is_left() -> None:
    kinds: list[list[tuple[int, bool]]] = []

    class Watched(Hazard):
        def group(self, blocks, facts, gap):
            super().group(blocks, facts, gap)
            of = {id(g): g for g in self._group_of if g is not None and g.size}
            kinds.append(sorted((g.size, bool(self._returns._sorts()[g.kind] == LEFT)) for g in of.values()))

    ends = [list(range(10 * turn, 10 * turn + 4)) for turn in range(1, 4)]
    paths = requests_of([(float(turn), [0, 1, 2, *end]) for turn, end in enumerate(ends)])
    replay(paths, Watched(), 60)
    assert kinds[0] == [(7, False)]
    assert kinds[1] == [(3, False), (4, False), (4, True)]
    assert kinds[2] == [(3, False), (4, False), (4, True), (4, True)]


@pytest.mark.parametrize("name", ["chats", "swapped signs", "stack"])
def test_with_nothing_to_lose_it_is_lru(name: str) -> None:
    paths = UNSEEN[name](random.Random(1))
    for part in (0.01, 0.1):
        capacity = max(1, round(part * paths.num_nodes))
        found, lru = (replay(paths, policy, capacity) for policy in (Hazard(tolerance=0.0), Lru()))
        assert found.request_hits.tolist() == lru.request_hits.tolist()


def test_what_lru_would_hold_is_counted_as_a_cache_beside_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks given up, lost and spared, against a slow LRU of names."""
    monkeypatch.setattr(hazard, "_RECENT", np.inf)  # nothing is forgotten
    paths, capacity = sessions_with_a_shared_opening(random.Random(1), 12.0, (5, 30)), 250
    names = [
        [node.to_bytes(8, "little") for node in path.tolist()] for path in np.split(paths.nodes, paths.starts[1:-1])
    ]
    assert max(map(len, names)) < capacity
    lru, own, lost, spared = list[bytes](), set[bytes](), 0, 0
    found, expected = list[tuple[float, ...]](), list[tuple[float, ...]]()

    class Watched(Hazard):
        def release(self, blocks, now):
            nonlocal own, lost, spared
            super().release(blocks, now)
            asked, given_up = names[len(found)], set(lru) - own
            lost += len(given_up & set(asked))
            lru[:] = ([name for name in lru if name not in asked] + asked[::-1])[-capacity:]
            spared += len(given_up - set(asked) - set(lru))
            own = {self.blocks.key[at] for at, group in enumerate(self._group_of) if group is not None}
            expected.append((len(set(lru) - own), lost, spared))
            found.append((sum(self._shadow.given_up()), self._shadow.lost, self._shadow.spared))

    replay(paths, Watched(), capacity)
    assert found == expected
    assert min(map(max, zip(*found, strict=True))) > 20, "it gave nothing up"


def test_the_guard_forgives_what_was_lost_long_ago() -> None:
    class Unlucky(Hazard):
        """As if it had lost a cache's worth of hits at a release in its own order, late enough to have learnt."""

        def release(self, blocks, now):
            restricted.append(self._restricted)
            if len(restricted) >= 300 and not self._restricted and not lost:
                lost.append(len(restricted))
                self._behind += self.blocks.num_blocks
                self.rescore()
            super().release(blocks, now)

    restricted, lost = list[bool](), list[int]()
    paths = sessions_with_a_shared_opening(random.Random(1), 12.0, (5, 30))
    replay(paths, Unlucky(), 60)
    assert lost, "it never took its own order up"
    assert all(restricted[lost[0] + 1 : lost[0] + 10]), "it gives up no more"
    assert not all(restricted[lost[0] + 10 :]), "and takes its own order up again"


class InFlight:
    """A pool of six blocks whose requests reach the policy step by step, as an engine does."""

    def __init__(self, policy: Hazard) -> None:
        rows, self.policy = 7, policy
        self.key, self.facts = [None] * rows, [RequestFacts()] * rows
        zero, depth = [0] * rows, [0, 0, 1, 0, 1, 0, 1]
        policy.attach(
            BlockView(
                depth=depth, num_tokens=zero, admitted=zero, last_access=zero, hits=zero, priority=zero, tenant=zero,
                children=zero, next_use=zero, key=self.key, partial=[False] * rows, last_request=self.facts,
            )
        )  # fmt: skip

    def call(self, name: str, blocks: list[int], now: float, arrival: float, names: str = "") -> None:
        for block, content in zip(blocks, names, strict=bool(names)):
            self.key[block] = content
        if name in ("admit", "release"):
            for block in blocks:
                self.facts[block] = RequestFacts(arrival=arrival)
        getattr(self.policy, name)(blocks, now)


def test_lru_is_not_credited_with_what_requests_in_flight_had_taken_its_room_for() -> None:
    pool = InFlight(policy := Hazard(tolerance=0.0))  # evicts as LRU does throughout
    for blocks, names, at in (([2, 1], "ba", 0.0), ([4, 3], "dc", 1.0)):
        pool.call("admit", blocks, at, at, names)
        pool.call("release", blocks, at, at)
    assert policy.victims(2, 2.0) == [2, 1], "a first request takes room"
    assert policy.victims(2, 3.0) == [4, 3], "a second finds nothing of a and b, and takes room"
    pool.call("admit", [4, 3], 3.0, 3.0, "ba")
    pool.call("release", [4, 3], 4.0, 3.0)
    assert policy.facts()["behind_lru_blocks"] == 0, "LRU missed them as well"


def test_a_return_is_when_its_request_arrived_whatever_arrived_while_it_ran() -> None:
    class Watched(Hazard):
        def group(self, blocks, facts, gap):
            gaps.append(gap)
            super().group(blocks, facts, gap)

    gaps: list[float | None] = []
    pool = InFlight(policy := Watched())
    pool.call("admit", [2, 1], 0.0, 0.0, "ba")
    pool.call("release", [2, 1], 0.0, 0.0)
    pool.call("pin", [2, 1], 10.0, 10.0)
    pool.call("hit", [2, 1], 10.0, 10.0)
    pool.call("admit", [4, 3], 50.0, 50.0, "dc")
    pool.call("release", [2, 1], 60.0, 10.0)
    assert gaps == [None, 10.0]
    assert policy._returns._end[0] == 10.0
