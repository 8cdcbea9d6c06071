"""libcachesim 0.3.5's W-TinyLFU, GDSF and LHD written again in Python from its sources, with what they do otherwise as
switches. Objects of size 1; every model takes a list of object ids and a capacity and gives (n,) bool: hits."""

from __future__ import annotations

import heapq
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Hits = npt.NDArray[np.bool_]
_SEEDS = (0x12345678, 0x12344321)
_MOST_AGES = 20_000
_LOWEST = -3.4028234663852886e38


class CountingFilter:
    """minimalIncrementCBF: ten unbounded counters an id in 14.4 counters an entry; every add raises all ten of them."""

    def __init__(self, entries: int) -> None:
        per_entry = -math.log(0.001) / 0.480453013918201
        self._hashes, self._width = math.ceil(0.693147180559945 * per_entry), math.ceil(per_entry * entries)
        self._counts, self._places = [0] * self._width, dict[int, list[int]]()

    def _of(self, name: int) -> list[int]:
        if name not in self._places:
            a, b = (xxhash.xxh64_intdigest(struct.pack("<q", name), seed) & 0xFFFFFFFF for seed in _SEEDS)
            self._places[name] = [((a + i * b) & 0xFFFFFFFF) % self._width for i in range(self._hashes)]
        return self._places[name]

    def add(self, name: int) -> None:
        for place in self._of(name):
            self._counts[place] += 1

    def estimate(self, name: int) -> int:
        return min(self._counts[place] for place in self._of(name))

    def halve(self) -> None:
        self._counts = [count >> 1 for count in self._counts]


class ExactCounts:
    """A sketch without collisions."""

    def __init__(self, entries: int) -> None:
        self._counts = Counter[int]()

    def add(self, name: int) -> None:
        self._counts[name] += 1

    def estimate(self, name: int) -> int:
        return self._counts[name]

    def halve(self) -> None:
        self._counts = Counter({name: count >> 1 for name, count in self._counts.items() if count > 1})


def w_tinylfu(ids: Sequence[int], capacity: int, *, sketch: Any = CountingFilter, as_published: bool = False) -> Hits:
    """WTinyLFU.c over SLRU.c.

    Args:
        as_published: count every access once, halve after ten accesses a block of capacity, and hand on at once what
            overflows the window, to probation. libcachesim counts no hit in the window, counts what leaves the window
            once more, halves after hits of 32 times the main area, lets the window grow until the cache is full, and
            fills protected with what probation cannot hold.
    """
    own = int(capacity * 0.01)
    main_blocks = capacity - own
    room = (main_blocks, int(0.8 * main_blocks)) if as_published else (int(main_blocks / 5), int(0.8 * main_blocks))
    period = 10 * capacity if as_published else 32 * main_blocks
    counts, since, hits = sketch(main_blocks), 0, []
    window, probation, protected = (OrderedDict[int, None]() for _ in range(3))

    def count(name: int, *, ages: bool) -> None:
        nonlocal since
        counts.add(name)
        since += ages
        if since >= period:
            since = 0
            counts.halve()

    def enter_main(name: int) -> None:
        target = protected if len(probation) >= room[0] and len(protected) < room[1] else probation
        target[name] = None

    def promote(name: int) -> None:
        del probation[name]
        protected[name] = None
        while len(protected) > room[1]:
            probation[protected.popitem(last=False)[0]] = None
            while len(probation) > room[0]:
                probation.popitem(last=False)

    def evict() -> None:
        while window:
            newcomer = next(iter(window))
            if len(probation) + len(protected) < main_blocks:
                del window[newcomer]
                enter_main(newcomer)
                if not as_published:
                    counts.add(newcomer)
                continue
            old = probation or protected
            del window[newcomer]
            if counts.estimate(newcomer) > counts.estimate(next(iter(old))):
                old.popitem(last=False)
                enter_main(newcomer)
            if not as_published:
                counts.add(newcomer)
            return
        (probation or protected).popitem(last=False)

    for name in ids:
        hits.append(name in window or name in probation or name in protected)
        if name in window:
            window.move_to_end(name)
            if as_published:
                count(name, ages=True)
        elif hits[-1]:
            promote(name) if name in probation else protected.move_to_end(name)
            count(name, ages=True)
        else:
            if len(window) + len(probation) + len(protected) >= capacity:
                evict()
            window[name] = None
            count(name, ages=as_published)
            while as_published and len(window) > own and len(probation) + len(protected) < main_blocks:
                enter_main(window.popitem(last=False)[0])
    return np.array(hits)


def gdsf(ids: Sequence[int], capacity: int, *, newcomer_may_go: bool = True) -> Hits:
    """GDSF.cpp: inserts first and evicts then, so that the newcomer itself may be the victim."""
    ranks, uses, heap = dict[int, tuple[float, int]](), Counter[int](), list[tuple[tuple[float, int], int]]()
    last, hits = 0.0, []

    def shrink(to: int) -> None:
        nonlocal last
        while len(ranks) > to:
            rank, name = heapq.heappop(heap)
            if ranks.get(name) == rank:
                last = rank[0]
                del ranks[name], uses[name]

    for now, name in enumerate(ids):
        hits.append(name in ranks)
        if not hits[-1] and not newcomer_may_go:
            shrink(capacity - 1)
        uses[name] += 1
        ranks[name] = (last + uses[name] * 1e6, now)
        heapq.heappush(heap, (ranks[name], name))
        shrink(capacity)
    return np.array(hits)


def lhd(ids: Sequence[int], capacity: int, *, first_class: int = 17, age_shift: int = 10, samples: int = 8) -> Hits:
    """LHD.cpp in its first 2**20 accesses, before it learns anything.

    Args:
        first_class: what the first rank of class 0 is multiplied with: libcachesim adds 16 for its application number.
        age_shift: log2 of the accesses of one age.
        samples: candidates drawn.
    """
    state, budget, typical, hits = 0xDEADBEEF, int(np.float32(capacity) * np.float32(0.01)), np.float32(0), []
    tags: list[list[int]] = []  # accessed at, last hit age, the one before, id, explores, class
    place: dict[int, int] = {}
    recent: list[int] = [-1] * 8
    num_recent = 0

    def draw() -> int:
        nonlocal state
        state = (state * 0xDA942042E4DD58B5) & (2**128 - 1)
        return state >> 64

    def density(tag: list[int], now: int) -> np.float32:
        age = (now - tag[0]) >> age_shift
        if age >= _MOST_AGES - 1:
            return np.float32(_LOWEST)
        return np.float32((first_class + tag[5]) / (age + 1)) + np.float32(tag[4])

    for now, name in enumerate(ids):
        hits.append(name in place)
        if not hits[-1] and len(tags) == capacity:
            drawn = [draw() % len(tags) for _ in range(samples)]
            drawn += [place[other] for other in recent if other in place]
            ranked = [density(tags[at], now) for at in drawn]
            best = drawn[ranked.index(min(ranked))]
            typical = np.float32(0.9) * typical + (np.float32(1) - np.float32(0.9)) * min(ranked)
            budget += tags[best][4]
            del place[tags[best][3]]
            moved = tags.pop()
            if best < len(tags):
                tags[best] = moved
                place[moved[3]] = best
        if hits[-1]:
            tag = tags[place[name]]
            budget += tag[4]
            tag[1:3] = [min((now - tag[0]) >> age_shift, _MOST_AGES - 1), tag[1]]
        else:
            tag = [0, 0, _MOST_AGES, name, 0, 0]
            place[name] = len(tags)
            tags.append(tag)
        tag[0], tag[5] = now, _class_of(tag[1] + tag[2])
        explore = draw() % 32 == 0
        tag[4] = int(explore and budget > 0)
        budget -= tag[4]
        if not hits[-1] and not explore and density(tag, now) < typical:
            recent[num_recent % 8] = name
            num_recent += 1
    return np.array(hits)


def _class_of(age: int) -> int:
    if age == 0:
        return 15
    found = 0
    while age < _MOST_AGES and found < 15:
        age, found = age << 1, found + 1
    return found
