"""Facts of blocks, hits and changes of tables, against a model that follows every call, the failed ones included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Any

import pytest
from paged_helpers import NS, info, tokens

from framework.errors import OutOfBlocks
from framework.interfaces.allocator import Hit
from framework.paged.allocator import PagedAllocator
from framework.types import BlockCopy, RequestId, TableChange
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.eviction.lru import Lru
from framework_builtin.hash.sha256 import Sha256
from framework_builtin.hash.xxh64 import Xxh64

FACTS = ("depth", "hits", "priority", "tenant", "admitted", "last_access", "next_use")


class Model:
    """An allocator, and the facts of its published blocks as the calls so far make them."""

    def __init__(self, allocator: PagedAllocator) -> None:
        self.allocator, self.pool = allocator, allocator.pool
        self.clock, self.counted = 0, Counter(hit_tokens=0, prompt_tokens=0, copied_blocks=0)
        self.facts: dict[int, dict[str, float]] = {}
        self.hit, self.asked, self.answer = Hit(version=-1), tokens(1), None
        self.look()

    def look(self) -> None:
        """The state before a call."""
        self.tables = {request: list(table.blocks) for request, table in self.allocator.tables.items()}
        self.published = {request: table.published for request, table in self.allocator.tables.items()}
        self.stats = self.allocator.stats()
        self.ahead = {*self.allocator.ahead}
        self.users = Counter(block for blocks in self.tables.values() for block in blocks if block)

    def keys(self) -> set[int]:
        return {block for block, key in enumerate(self.pool.block_hash) if key is not None}

    def call(self, method: Callable[..., Any], request: int, *given: Any) -> bool:
        """Make this call and follow it; whether it succeeded."""
        name = method.__name__
        try:
            self.answer = method(*given) if name == "allocate" else method(RequestId(request), *given)
        except OutOfBlocks:  # nothing changed but the clock
            self.clock = self.pool.access
            self.compare(name)
            tables = {request: list(table.blocks) for request, table in self.allocator.tables.items()}
            assert (tables, self.allocator.stats()) == (self.tables, self.stats), name
            return False
        after = {name: list(table.blocks) for name, table in self.allocator.tables.items()}
        getattr(self, f"after_{name}")(request, after.get(RequestId(request), []), *given)
        for block in self.facts.keys() - self.keys():
            del self.facts[block]
        self.compare(name)
        self.look()
        return True

    def touch(self, blocks: Any, priority: float = -inf) -> None:
        for block in blocks:
            if block in self.facts:
                self.facts[block]["last_access"] = self.clock
                self.facts[block]["priority"] = max(self.facts[block]["priority"], priority)

    def after_allocate(self, request: int, table: list[int], given: Any, prompt: Any, hit: Any) -> None:
        self.clock += 1
        self.counted.update(hit_tokens=hit.num_tokens, prompt_tokens=len(prompt))
        self.touch(hit.blocks, given.priority)
        for block in hit.blocks:
            self.facts[block]["hits"] += 1

    def after_extend(self, request: int, table: list[int], num_tokens: int) -> None:
        before = self.tables[RequestId(request)]
        self.clock += table != before
        self.counted["copied_blocks"] += len(self.answer.copies)
        left = [(old, new) for old, new in zip(before, table, strict=False) if old != new]
        self.touch(old for old, _ in left if self.users[old] == 1)
        changed = [at for at, pair in enumerate(zip(before, table, strict=False)) if pair[0] != pair[1]]
        assert self.answer == TableChange(min([*changed, len(before)]), tuple(BlockCopy(*pair) for pair in left))
        assert self.ahead.isdisjoint(old for old, _ in left), "a block was copied before it was written"

    def after_commit(self, request: int, table: list[int], given: Any) -> None:
        row, before = self.allocator.tables[RequestId(request)], self.tables[RequestId(request)]
        first = self.published[RequestId(request)]
        self.clock += row.published > first
        self.touch((new for old, new in zip(before, table, strict=True) if old != new), row.request.priority)
        for depth in range(first, row.published):
            if table[depth] not in self.facts:
                self.facts[table[depth]] = {
                    "depth": depth, "hits": 0, "priority": row.request.priority, "tenant": row.tenant,
                    "admitted": self.clock, "last_access": self.clock, "next_use": inf,
                }  # fmt: skip

    after_publish = after_commit

    def after_fork(self, request: int, table: list[int], child: Any, num_tokens: int) -> None:
        self.clock += 1
        self.counted["copied_blocks"] += len(self.answer.copies)
        self.touch(set(self.allocator.tables[child.id].blocks) & set(table))

    def after_unref_leading(self, request: int, table: list[int], num_tokens: int) -> None:
        self.clock += table != self.tables[RequestId(request)]
        self.touch(set(self.tables[RequestId(request)]) - set(table))

    def after_free(self, request: int, table: list[int], uses: Sequence[float] = ()) -> None:
        named = self.tables[RequestId(request)][: self.published[RequestId(request)]]
        for block, use in zip(named, uses, strict=False):
            if block:
                self.facts[block]["next_use"] = use
        self.clock += 1
        self.touch(self.tables[RequestId(request)])

    def compare(self, name: str) -> None:
        found = {block: {fact: getattr(self.pool, fact)[block] for fact in FACTS} for block in self.keys()}
        wrong = {block: (found.get(block), self.facts.get(block)) for block in found.keys() | self.facts.keys()}
        wrong = {block: pair for block, pair in wrong.items() if pair[0] != pair[1]}
        assert not wrong, f"after {name}, access {self.clock}: block: (found, expected) {wrong}"
        assert self.pool.access == self.clock, f"after {name}: access {self.pool.access}, expected {self.clock}"
        stats = self.allocator.stats()
        assert {name: getattr(stats, name) for name in self.counted} == self.counted, name
        again = self.allocator.lookup(self.asked, NS)
        assert again.version != self.hit.version or again.blocks == self.hit.blocks, f"after {name} a hit is stale"


def play(model: Model, draw: Random, steps: int, longest: int) -> int:
    """A random history; returns how many blocks it evicted."""
    allocator = model.allocator
    trunks = [[draw.randrange(3) for _ in range(longest)] for _ in range(3)]
    running: dict[int, list[int]] = {}
    for number in range(1, steps):
        kind = draw.choice(("admit", "admit", "grow", "grow", "fork", "free", "free", "free", "publish", "pass"))
        at = draw.choice([*running]) if running else 0
        model.asked = tokens(*draw.choice(trunks), 0)
        model.hit = allocator.lookup(model.asked, NS)
        if kind == "admit":
            prompt = [*draw.choice(trunks)[: draw.randint(1, longest)], draw.randrange(9)]
            given = info(number, priority=draw.choice([0, 0, 0, 3, 5]), tenant=draw.choice("ab"))
            if model.call(allocator.allocate, number, given, tokens(*prompt), allocator.lookup(tokens(*prompt), NS)):
                running[number] = prompt
                if draw.random() < 0.7:
                    model.call(allocator.commit, number, tokens(*prompt))
        elif kind == "grow" and at:
            model.call(allocator.extend, at, draw.randint(0, len(running[at])))
            grown = [*running[at], *(draw.randrange(2) for _ in range(draw.randint(1, 2 * allocator.block_size)))]
            if model.call(allocator.extend, at, len(grown)) and model.call(allocator.commit, at, tokens(*grown)):
                running[at] = grown
        elif kind == "fork" and at:
            kept = draw.randint(0, len(running[at]))
            if allocator.tables[RequestId(at)].num_null == 0 and model.call(allocator.fork, at, info(number), kept):
                running[number] = running[at][:kept]
                if draw.random() < 0.5:
                    model.call(allocator.extend, at, len(running[at]))
        elif kind == "publish" and at and model.call(allocator.publish, at, tokens(*running[at])):
            prompt = tokens(*running[at], 0)
            if model.call(allocator.allocate, number, info(number), prompt, allocator.lookup(prompt, NS)):
                running[number] = prompt.tolist()
            if draw.random() < 0.5:
                model.call(allocator.extend, at, len(running[at]))
            model.call(allocator.commit, at, tokens(*running[at]))
        elif kind == "pass" and at and draw.random() < 0.5:
            model.call(allocator.unref_leading, at, draw.randint(0, len(running[at])))
        elif kind == "free" and at:
            model.call(allocator.free, at, [draw.randrange(100) for _ in running[at]] if draw.random() < 0.5 else ())
            del running[at]
        allocator.check()
    for at in running:
        model.call(allocator.free, at)
    assert allocator.stats().used_blocks == 0, allocator.stats()
    return allocator.stats().evictions


class Other(Lru):
    """No LRU that an allocator may know."""


class Declines(Other):
    """Keeps three of four blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def keep(self, block: Any, now: float) -> bool:
        self.asked += 1
        return self.asked % 4 > 0


@pytest.mark.parametrize("policy", [Other, Declines])
@pytest.mark.parametrize("kind", [PrefixAllocator, PrefixCowAllocator])
def test_each_fact_of_each_block_is_what_the_calls_made_it(kind: type[PagedAllocator], policy: type[Lru]) -> None:
    evictions = 0
    for seed in range(9):
        many = seed % 3 == 0  # blocks at once
        allocator = kind(
            num_blocks=260 if many else 14, block_size=1 if many else 2, hash=(Sha256, Xxh64)[seed % 2](),
            eviction=policy(), leaf_only=seed % 4 == 3, watermark=0.0,
        )  # fmt: skip
        evictions += play(Model(allocator), Random(seed), 60 if many else 150, 90 if many else 9)
    assert evictions > 90, evictions
