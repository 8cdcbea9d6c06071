"""The allocator over groups against what memory would hold: one to four groups, and three ways to share memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from groups_plain import LAYOUTS, Rule, brute_hit, group

from framework.errors import InvalidArgument, InvariantViolation, OutOfBlocks, StaleHit
from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import Asked, CheckpointRule, Retention, Turns
from framework.groups.memory import Memory
from framework.interfaces.allocator import CacheEvent, Hit
from framework.interfaces.groups import KVGroup
from framework.registry.components import build_component
from framework.types import Namespace, RequestId, RequestInfo
from framework_builtin.memory.one_pool import OnePool
from framework_builtin.memory.pool_per_group import PoolPerGroup
from framework_builtin.memory.two_level import TwoLevel

SIZE, NAMESPACE = 4, Namespace()
WAYS = ("one_pool", "pool_per_group", "uncoupled", "two_level")
SHARES: dict[str, dict[str, Any]] = {
    "prefix_cow": {}, "prefix": {"share_forks": "full"}, "cow": {"share_prefix": False},
    "naive": {"share_prefix": False, "share_forks": "none"},
}  # fmt: skip


class Everything(CheckpointRule):
    """Keeps all, states where a step ends."""

    def places(self, asked: Asked) -> None:
        return None


def memory_of(groups: Sequence[KVGroup], blocks: int, way: str, further: int | None = None) -> Memory:
    def policy(num_blocks: int) -> Any:
        return build_component("eviction", "lru", {})

    num_bytes = blocks * len(groups) * groups[0].block_bytes
    if way == "one_pool":
        return OnePool().open(groups, policy, num_bytes=num_bytes, unit=SIZE)
    if way == "two_level":
        return TwoLevel().open(groups, policy, num_bytes=num_bytes, unit=SIZE)
    counts = [blocks, *(further or blocks for _ in groups[1:])]
    return PoolPerGroup(coupled=way == "pool_per_group").open(groups, policy, num_blocks=counts, unit=SIZE)


def grouped(
    groups: Sequence[KVGroup], *, blocks: int = 24, further: int | None = None, way: str = "pool_per_group",
    rule: CheckpointRule | None = None, step_tokens: int = 16, **options: Any,
) -> GroupedAllocator:  # fmt: skip
    memory, scheme = memory_of(groups, blocks, way, further), build_component("hash", "sha256", {})
    return GroupedAllocator(memory, rule or Turns(), scheme, num_blocks=blocks, step_tokens=step_tokens, **options)


PAIRS = {"window": (group("full"), group("window", 9)), "state": (group("full"), group("state"))}


def info(number: int, total: int = 60) -> RequestInfo:
    return RequestInfo(id=RequestId(number), max_total_tokens=total)


class Slots:
    """The allocator under random calls, over blocks that remember from which prefix each slot was computed.

    Whatever a step would read must be there. A state is one slot a block, the last: what it was computed from is all
    tokens up to where it stands.
    """

    def __init__(self, allocator: GroupedAllocator, seed: int) -> None:
        self.allocator, self.random = allocator, random.Random(seed)
        self.slots: dict[tuple[int, int], tuple[int, list[Any]]] = {}  # (pool, block) -> group, prefixes at its places
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.number, self.hits, self.refused, self.copies = 0, 0, 0, 0
        self.texts = [[self.random.randrange(3) for _ in range(44)] for _ in range(4)]
        self.known: dict[tuple[int, int], Any] = {}  # (group, block) -> content, as the events say
        allocator.listen(self.heard)

    def heard(self, event: CacheEvent) -> None:
        for block, name in zip(event.blocks, event.hashes, strict=True):
            if event.kind == "admit":
                self.known[event.group, block] = name
            else:
                assert self.known.pop((event.group, block)) == name, event

    def row(self, g: int, block: int) -> list[Any]:
        key = id(self.allocator.memory.pools[g]), block
        if key not in self.slots or self.slots[key][0] != g:
            self.slots[key] = g, [None] * SIZE
        return self.slots[key][1]

    def tables(self, number: int) -> list[list[int]]:
        return [self.allocator.table(RequestId(number), g).tolist() for g in range(len(self.allocator.groups))]

    def reads(self, each: KVGroup, upto: int) -> list[int]:
        """Places that a token at `upto` reads."""
        if each.kind == "state":
            return [upto - 1] if upto else []
        first = {
            "full": 0,
            "window": upto - each.length + 1,
            "chunk": each.length and upto // each.length * each.length,
        }
        return [*range(max(0, first[each.kind]), upto)]

    def require(self, number: int, upto: int) -> None:
        for g, (each, table) in enumerate(zip(self.allocator.groups, self.tables(number), strict=True)):
            for place in self.reads(each, upto):
                block = table[place // SIZE]
                slot = SIZE - 1 if each.kind == "state" else place % SIZE
                found = self.row(g, block)[slot] if block else None
                wanted = tuple(self.tokens[number][: place + 1])
                assert found == wanted, f"request {number}, {each.name}, place {place} of {upto}: {found} != {wanted}"

    def write(self, number: int, start: int, end: int, *, loads: bool = False) -> None:
        for g, (each, table) in enumerate(zip(self.allocator.groups, self.tables(number), strict=True)):
            first = each.needs(end).start * SIZE if loads and g else start
            for place in range(first, end):
                if block := table[place // SIZE]:
                    slot = SIZE - 1 if each.kind == "state" else place % SIZE
                    self.row(g, block)[slot] = tuple(self.tokens[number][: place + 1])
                else:
                    assert loads or each.kind == "state", (number, each.name, place, table)

    def apply(self, change: Any) -> None:
        for copy in change.copies:
            self.row(copy.group, copy.destination)[:] = self.row(copy.group, copy.source)
        self.copies += len(change.copies)

    def lookups(self) -> list[Any]:
        found = [self.allocator.lookup(np.array(text, dtype=np.int32), NAMESPACE) for text in self.texts]
        return [(hit.num_tokens, hit.groups) for hit in found]

    def unchanged(self, call: Callable[[], Any]) -> Any:
        """The call's result; None if it was refused, in which case nothing is found that was not, or the reverse."""
        before = self.lookups()
        try:
            return call()
        except OutOfBlocks:
            self.refused += 1
            assert self.lookups() == before
            return None

    def brute_hit(self, tokens: list[int]) -> int:
        resident = set(self.allocator.memory.resident())
        names = self.allocator.lookup(np.array(tokens, dtype=np.int32), NAMESPACE).hashes
        have = [{n for n, name in enumerate(names) if (g, name) in resident} for g in range(len(self.allocator.groups))]
        return brute_hit(self.allocator.groups, have, len(tokens) - 1)

    def admit(self) -> None:
        text = self.random.choice(self.texts)[: self.random.randrange(1, 44)]
        text = text if self.random.random() < 0.7 else [*text, *(self.random.randrange(3) for _ in range(4))]
        tokens, self.number = np.array(text, dtype=np.int32), self.number + 1
        hit = self.allocator.lookup(tokens, NAMESPACE)
        if self.allocator.share_prefix:
            assert hit.num_tokens == self.brute_hit(text), f"{hit.num_tokens} found, {self.brute_hit(text)} resident"
        upto = self.random.randrange(0, (len(text) - 1) // SIZE + 1) * SIZE
        drops = any(each.lookahead_drop for each in self.allocator.groups)
        loads = self.allocator.share_prefix and upto > hit.num_tokens and self.random.random() < 0.3 and not drops
        if loads:
            hit = self.allocator.reaching(hit, upto)
        fits, asked = self.allocator.fits(info(self.number), tokens, hit), info(self.number)
        room = max(hit.num_tokens, upto * loads) + 1

        def allocate() -> bool:
            self.allocator.allocate(asked, tokens, hit, room)
            return True

        done = self.unchanged(allocate)
        assert done or not fits
        if done:
            self.tokens[self.number], self.computed[self.number] = text, hit.num_tokens
            self.hits += hit.num_tokens > 0
            if loads:
                self.write(self.number, hit.num_tokens, upto, loads=True)
                self.allocator.commit(RequestId(self.number), np.array(text[:upto], dtype=np.int32))
                self.computed[self.number] = upto
            self.require(self.number, self.computed[self.number])

    def step(self) -> None:
        """Computes some tokens of one request, generated ones included, as the engine does."""
        number = self.random.choice(list(self.tokens))
        tokens, start = self.tokens[number], self.computed[number]
        if start == len(tokens):
            tokens.append(self.random.randrange(3))
        end = min(len(tokens), start + self.random.choice((1, 3, 9, 16)))
        end = max(self.allocator.step_end(info(number), start, end), start + 1)
        change = TableUnchanged
        if end > self.allocator.steady_tokens(RequestId(number)) or end // SIZE > start // SIZE:
            change = self.unchanged(lambda: self.allocator.extend(RequestId(number), end))
        if change is None:
            self.free(number)
            return
        self.apply(change)
        array = np.array(tokens[:end], dtype=np.int32)
        if self.random.random() < 0.5 and end // SIZE > start // SIZE:
            self.allocator.publish(RequestId(number), array)
        self.require(number, start)
        self.write(number, start, end)
        for g, (each, table) in enumerate(zip(self.allocator.groups, self.tables(number), strict=True)):
            assert each.kind == "state" or all(table[place // SIZE] for place in range(start, end)), (g, table)
        self.computed[number] = end
        if end // SIZE > start // SIZE:
            self.allocator.commit(RequestId(number), array)
        self.require(number, end)

    def fork(self) -> None:
        parent = self.random.choice(list(self.tokens))
        count, self.number = self.computed[parent], self.number + 1
        change = self.unchanged(lambda: self.allocator.fork(RequestId(parent), info(self.number), count))
        if change is not None:
            self.apply(change)
            self.tokens[self.number], self.computed[self.number] = self.tokens[parent][:count], count
            self.require(self.number, count)

    def free(self, number: int) -> None:
        self.allocator.free(RequestId(number))
        del self.tokens[number], self.computed[number]

    def run(self, num_calls: int) -> None:
        for _ in range(num_calls):
            self.allocator.advance(0.0)
            kind = self.random.random()
            if not self.tokens or kind < 0.2:
                self.admit()
            elif kind < 0.75:
                self.step()
            elif kind < 0.82:
                self.fork()
            elif kind < 0.83:
                number = self.random.choice(list(self.tokens))
                self.allocator.reset(RequestId(number))
                self.free(number)
            elif kind < 0.835:
                self.allocator.reset()
                assert not self.known
            elif kind < 0.93:
                self.free(self.random.choice(list(self.tokens)))
            self.allocator.check()
            for number, count in self.computed.items():
                self.require(number, count)
            resident = [(event, name) for event, name in self.known.items()]
            assert {(g, name) for (g, _), name in resident} == set(self.allocator.memory.resident())
        for number in list(self.tokens):
            self.free(number)
        assert not any(pool.used for pool in self.allocator.memory.pools)


class TableUnchanged:
    copies = ()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_step_reads_is_there_and_of_its_own_branch(layout: str, way: str) -> None:
    runs = []
    for seed, rule in enumerate((Turns(), Everything(), Retention(8))):
        runs.append(Slots(grouped(LAYOUTS[layout], way=way, rule=rule), seed))
        runs[-1].run(120)
    assert sum(run.hits for run in runs) > 5
    assert sum(run.copies for run in runs) > 0


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("kind", PAIRS)
def test_what_is_shared_is_what_was_asked_for(kind: str, shares: str) -> None:
    runs = []
    for seed in range(3):
        runs.append(Slots(grouped(PAIRS[kind], blocks=14, further=10, rule=Everything(), **SHARES[shares]), seed))
        runs[-1].run(120)
    assert sum(run.refused for run in runs) > 0, "no call was refused"
    assert (sum(run.hits for run in runs) > 0) == shares.startswith("prefix")


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("layout", ["window", "windows", "state"])
def test_hits_are_those_of_the_rule(layout: str, ends: bool) -> None:
    for seed in range(4):
        groups, draw = LAYOUTS[layout], random.Random(seed)
        allocator = grouped(groups, blocks=900, rule=Turns() if ends else Retention(0))
        rule, found, wanted = Rule(groups, ends=ends), list[int](), list[int]()
        stems = [[draw.randrange(9) for _ in range(48)] for _ in range(4)]
        for number in range(50):
            prompt = draw.choice(stems)[: draw.choice((21, 30, 48))]
            prompt += [draw.randrange(9) for _ in range(draw.randint(1, 12))]
            found.append(compute(allocator, number, prompt, step=draw.choice((3, 8, 60))))
            wanted.append(rule.hit(prompt, prompt))
            allocator.free(RequestId(number))
            allocator.check()
        assert found == wanted
        assert found.count(0) < 30


def compute(
    allocator: GroupedAllocator, number: int, tokens: list[int], step: int = 8, space: Namespace = NAMESPACE
) -> int:
    """Serves a prompt in steps; returns its hit."""
    array, asked = np.array(tokens, dtype=np.int32), replace(info(number, len(tokens) + 1), namespace=space)
    allocator.advance(0.0)
    hit = allocator.lookup(array, space)
    allocator.allocate(asked, array, hit, hit.num_tokens + 1)
    start = hit.num_tokens
    while start < len(tokens):
        end = max(allocator.step_end(asked, start, min(start + step, len(tokens))), start + 1)
        allocator.extend(RequestId(number), end)
        allocator.commit(RequestId(number), array[:end])
        start = end
    return hit.num_tokens


def test_a_hit_names_each_groups_blocks_and_what_cut_it() -> None:
    allocator, prompt = grouped(PAIRS["window"], blocks=40, further=6, rule=Everything()), [*range(41)]
    assert compute(allocator, 1, prompt, step=4) == 0
    allocator.free(RequestId(1))
    hit = allocator.lookup(np.array(prompt, dtype=np.int32), NAMESPACE)
    assert (hit.num_tokens, hit.blocks, len(hit.groups[0])) == (40, hit.groups[0], 10)
    assert hit.groups[1][:8] == (0,) * 8, "nothing before the window is needed"
    assert all(hit.groups[1][8:])
    shorter = allocator.lookup(np.array(prompt[:24], dtype=np.int32), NAMESPACE)
    assert shorter.found is not None
    assert (shorter.num_tokens, shorter.found.cut_by, shorter.found.could[0]) == (0, 1, 20)
    compute(allocator, 2, prompt[:24])
    found = allocator.results()
    assert (found["full_hit_tokens"], found["window_lost_tokens"], allocator.stats().hit_tokens) == (20, 20, 0)


@pytest.mark.parametrize("kind", PAIRS)
def test_images_of_equal_placeholders_share_in_every_group_what_stands_before_them(kind: str) -> None:
    allocator = grouped(PAIRS[kind], blocks=60, rule=Everything())
    prompt = [*range(9), *[99] * 6, *range(20, 30)]  # the image lies in tokens 9 to 14, a generated one fills a block
    spaces = [Namespace(contents=((9, 15, name),)) for name in ("cat", "dog")]
    hits = [compute(allocator, number, prompt, step=4, space=spaces[number % 2]) for number in range(4)]
    assert (hits, compute(allocator, 9, prompt, step=4)) == ([0, 8, 24, 24], 8)
    allocator.check()


def test_a_window_slides_no_further_than_the_last_place_to_go_on_from() -> None:
    allocator, prompt = grouped((group("full"), group("window", 11)), blocks=40), np.arange(30, dtype=np.int32)
    allocator.allocate(info(1), prompt, allocator.lookup(prompt, NAMESPACE), 14)
    allocator.commit(RequestId(1), prompt[:14])
    allocator.extend(RequestId(1), 20)
    allocator.free(RequestId(1))  # with 14 tokens computed, it ended
    hit = allocator.lookup(prompt, NAMESPACE)
    assert hit.num_tokens == 12, "token 12 reads the first block, which token 14 does not"


@pytest.mark.parametrize("kind", PAIRS)
def test_what_was_loaded_is_kept(kind: str) -> None:
    allocator, prompt = grouped(PAIRS[kind], blocks=60), np.arange(60, dtype=np.int32)
    hit = allocator.reaching(allocator.lookup(prompt, NAMESPACE), 24)
    allocator.allocate(info(1, 64), prompt, hit, 25)
    for end in (24, 32, 60):
        allocator.extend(RequestId(1), end)
        allocator.commit(RequestId(1), prompt[:end])
    allocator.free(RequestId(1))
    allocator.check()
    assert compute(allocator, 2, [*range(24), 7, 7, 7]) == 24


@pytest.mark.parametrize("kind", PAIRS)
def test_what_was_to_be_loaded_and_never_came_is_not_found(kind: str) -> None:
    """Full attention has all of it, so that nothing but a window or state was to come."""
    allocator, prompt = grouped(PAIRS[kind], blocks=60, rule=Retention(0)), np.arange(60, dtype=np.int32)
    compute(allocator, 1, [*range(48)])
    allocator.free(RequestId(1))
    allocator.rule = Turns()
    hit = allocator.reaching(allocator.lookup(prompt, NAMESPACE), 24)
    assert hit.num_tokens == 24
    allocator.allocate(info(2, 64), prompt, hit, 25)
    allocator.free(RequestId(2))
    assert allocator.lookup(prompt[:30], NAMESPACE).num_tokens == 0
    allocator.check()


def test_a_fork_behind_the_state_is_refused() -> None:
    allocator = grouped(PAIRS["state"])
    compute(allocator, 1, [*range(11)])
    with pytest.raises(InvalidArgument, match="9 tokens of request 1 are not there to be forked"):
        allocator.fork(RequestId(1), info(2), 9)
    allocator.check()


def test_what_is_promised_and_never_computed_is_not_found_after_free() -> None:
    allocator, prompt = grouped(PAIRS["window"]), np.arange(20, dtype=np.int32)
    allocator.allocate(info(1), prompt, allocator.lookup(prompt, NAMESPACE), 16)
    allocator.extend(RequestId(1), 16)
    allocator.publish(RequestId(1), prompt[:16])
    assert allocator.lookup(prompt, NAMESPACE).num_tokens == 16
    allocator.free(RequestId(1))
    assert allocator.lookup(prompt, NAMESPACE).num_tokens == 0
    allocator.check()


def test_what_runs_through_a_reset_publishes_nothing_more() -> None:
    allocator, prompt = grouped(PAIRS["window"]), np.arange(20, dtype=np.int32)
    compute(allocator, 1, prompt[:10].tolist())
    allocator.reset()
    allocator.extend(RequestId(1), 16)
    allocator.commit(RequestId(1), prompt[:16])
    assert allocator.lookup(prompt, NAMESPACE).num_tokens == 0
    allocator.free(RequestId(1))
    assert allocator.stats().cached_blocks == 0
    allocator.check()


def test_prefixes_are_forgotten_with_the_contents_that_need_them() -> None:
    allocator = grouped(PAIRS["state"], blocks=12)
    for number in range(40):
        compute(allocator, number, [number] * 30)
        allocator.free(RequestId(number))
    assert 0 < len(allocator.memory.parents) <= 24
    allocator.reset()
    assert not allocator.memory.parents


def test_wrong_hits_and_calls_are_refused_and_change_nothing() -> None:
    allocator = grouped(PAIRS["window"])
    tokens = np.arange(20, dtype=np.int32)
    old = allocator.lookup(tokens, NAMESPACE)
    compute(allocator, 1, tokens.tolist())
    with pytest.raises(StaleHit):
        allocator.fits(info(2), tokens, old)
    fresh = allocator.lookup(tokens, NAMESPACE)
    with pytest.raises(InvalidArgument, match="no hit of an allocator over groups"):
        allocator.fits(info(2), tokens, Hit(3, (), fresh.hashes, fresh.version))
    with pytest.raises(InvalidArgument, match="extend first"):
        allocator.commit(RequestId(1), np.arange(30, dtype=np.int32))
    with pytest.raises(InvalidArgument, match="differ from those known before"):
        allocator.commit(RequestId(1), tokens[::-1].copy())
    with pytest.raises(InvalidArgument, match="not there to be forked"):
        allocator.fork(RequestId(1), info(2), 4)
    allocator.check()


def test_check_names_what_a_request_holds_of_another_content() -> None:
    allocator = grouped(PAIRS["window"])
    compute(allocator, 1, [*range(9)])
    table = allocator._runs[RequestId(1)].tables[0]
    table[0], table[1] = table[1], table[0]
    with pytest.raises(InvariantViolation, match="of full is published with other content"):
        allocator.check()
