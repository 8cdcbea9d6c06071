"""Full attention beside a sliding window or a state: the allocator against what memory would hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from framework.errors import InvalidArgument, InvariantViolation, OutOfBlocks, StaleHit
from framework.groups.kinds import KVGroup
from framework.groups.serving import GroupedAllocator, WindowedHit, reach
from framework.interfaces.allocator import Hit
from framework.registry.components import build_allocator
from framework.types import Namespace, RequestId, RequestInfo

SIZE, NAMESPACE = 4, Namespace()
FULL = KVGroup(name="full", kind="full", block_tokens=SIZE, block_bytes=64)


STATE = 2
"""As a window: a state is in the block of the last token."""


def group(window: int, kind: str = "window") -> KVGroup:
    if kind == "state":
        return KVGroup(name="state", kind="state", block_tokens=SIZE, block_bytes=256)
    return KVGroup(name="window", kind="window", block_tokens=SIZE, block_bytes=256, length=window)


def grouped(
    allocator: Any = "prefix_cow",
    *,
    window: int = 10,
    kind: str = "window",
    blocks: tuple[int, int] = (24, 12),
    eviction: Any = "lru",
) -> GroupedAllocator:
    parts = [
        build_allocator(allocator, eviction, "sha256", num_blocks=count, block_size=SIZE, max_model_len=256)
        for count in blocks
    ]
    return GroupedAllocator((FULL, group(window, kind)), parts)


def info(number: int, total: int = 60) -> RequestInfo:
    return RequestInfo(id=RequestId(number), max_total_tokens=total)


class Memory:
    """The allocator under random calls, over blocks that remember from which prefix each slot was computed.

    Whatever a step would read must be there: all tokens before in full attention, the window's last in the other. A
    state is one slot a block, the last: what it was computed from is all tokens up to where it stands.
    """

    def __init__(self, allocator: GroupedAllocator, window: int, seed: int) -> None:
        self.allocator, self.window, self.random = allocator, window, random.Random(seed)
        self.state = allocator.groups[1].kind == "state"
        self.slots: list[dict[int, list[Any]]] = [{}, {}]  # by group: block -> the prefix written at each place
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.number, self.hits, self.refused, self.cut = 0, 0, 0, 0
        self.texts = [[self.random.randrange(3) for _ in range(44)] for _ in range(4)]

    def tables(self, number: int) -> tuple[list[int], list[int]]:
        whole, own = self.allocator.table(RequestId(number)), self.allocator.table(RequestId(number), 1)
        return whole.tolist(), own.tolist()

    def require(self, number: int, upto: int) -> None:
        """A token at `upto` reads what it must in both groups."""
        for at, (table, first) in enumerate(zip(self.tables(number), (0, max(0, upto - self.window + 1)), strict=True)):
            for place in range(first, upto):
                block = table[place // SIZE]
                slot = SIZE - 1 if at and self.state else place % SIZE
                found = self.slots[at].get(block, [None] * SIZE)[slot] if block else None
                wanted = tuple(self.tokens[number][: place + 1])
                assert found == wanted, f"request {number}, group {at}, place {place} of {upto}: {found} != {wanted}"

    def apply(self, change: Any) -> None:
        for copy in change.copies:
            self.slots[copy.group][copy.destination] = list(self.slots[copy.group].get(copy.source, [None] * SIZE))

    def lookups(self) -> list[int]:
        return [self.allocator.lookup(np.array(text, dtype=np.int32), NAMESPACE).num_tokens for text in self.texts]

    def unchanged(self, call: Callable[[], Any]) -> Any:
        """The call's result; None if it was refused, in which case nothing changed."""
        before = self.allocator.stats(), self.allocator.window.stats(), self.lookups(), self.allocator._version
        try:
            return call()
        except OutOfBlocks:
            self.refused += 1
            after = self.allocator.stats(), self.allocator.window.stats(), self.lookups(), self.allocator._version
            assert before == after, f"a refused call changed {before} to {after}"
            return None

    def brute_hit(self, tokens: list[int]) -> int:
        """The longest prefix shorter than the prompt that both groups can go on from, from the blocks published."""
        held = [
            {part.pool.block_hash[block] for block in range(1, part.num_blocks + 1)} for part in self.allocator.parts
        ]
        names = self.allocator.lookup(np.array(tokens, dtype=np.int32), NAMESPACE).hashes
        for count in range((len(tokens) - 1) // SIZE, 0, -1):
            first = max(0, count * SIZE - (self.window - 1)) // SIZE
            if {*names[:count]} <= held[0] and {*names[first:count]} <= held[1]:
                return count * SIZE
        return 0

    def admit(self) -> None:
        text = self.random.choice(self.texts)[: self.random.randrange(1, 44)]
        text = text if self.random.random() < 0.7 else [*text, *(self.random.randrange(3) for _ in range(4))]
        tokens, self.number = np.array(text, dtype=np.int32), self.number + 1
        hit = self.allocator.lookup(tokens, NAMESPACE)
        if self.allocator.full.share_prefix:
            assert hit.num_tokens == self.brute_hit(text), f"{hit.num_tokens} found, {self.brute_hit(text)} resident"
        upto = self.random.randrange(0, (len(text) - 1) // SIZE + 1) * SIZE
        loads = self.allocator.full.share_prefix and upto > hit.num_tokens and self.random.random() < 0.5
        if loads and isinstance(hit, WindowedHit):
            hit = self.allocator.reaching(hit, upto)
        fits, asked = self.allocator.fits(info(self.number), tokens, hit), info(self.number)
        done = self.unchanged(lambda: (self.allocator.allocate(asked, tokens, hit), True)[1])
        assert bool(done) == fits
        if done:
            self.tokens[self.number], self.computed[self.number] = text, hit.num_tokens
            self.hits += hit.num_tokens > 0
            self.cut += hit.num_tokens > self.window
            if loads:
                self.load(text, hit.num_tokens, upto)
            self.require(self.number, self.computed[self.number])

    def load(self, text: list[int], held: int, upto: int) -> None:
        """What the pools lack up to there comes from elsewhere: of the window, what is needed there."""
        needed = self.allocator.groups[1].needs(upto).start * SIZE
        for at, (table, first) in enumerate(zip(self.tables(self.number), (held, needed), strict=True)):
            for place in range(first, upto):
                row = self.slots[at].setdefault(table[place // SIZE], [None] * SIZE)
                row[SIZE - 1 if at and self.state else place % SIZE] = tuple(text[: place + 1])
        self.allocator.check()
        self.allocator.commit(RequestId(self.number), np.array(text[:upto], dtype=np.int32))
        self.computed[self.number] = upto

    def step(self) -> None:
        """Computes some tokens of one request, generated ones included."""
        number = self.random.choice(list(self.tokens))
        tokens, start = self.tokens[number], self.computed[number]
        if start == len(tokens):
            tokens.append(self.random.randrange(3))
        end = min(len(tokens), start + self.random.choice((1, 3, 9, 16)))
        change = self.unchanged(lambda: self.allocator.extend(RequestId(number), end))
        if change is None:
            self.free(number)
            return
        self.apply(change)
        for at, table in enumerate(self.tables(number)):
            for place in range(start, end):
                assert table[place // SIZE], (number, at, place, table)
                row = self.slots[at].setdefault(table[place // SIZE], [None] * SIZE)
                row[SIZE - 1 if at and self.state else place % SIZE] = tuple(tokens[: place + 1])
        for place in (end,) if self.state else range(start, end):  # of the states, the step passed the others
            self.require(number, place)
        self.computed[number] = end
        if end // SIZE > start // SIZE:  # as the engine does
            self.apply(self.allocator.commit(RequestId(number), np.array(tokens[:end], dtype=np.int32)))
        self.allocator.unref_leading(RequestId(number), max(0, end + 1 - self.window))
        self.require(number, end)

    def fork(self) -> None:
        parent = self.random.choice(list(self.tokens))
        count, self.number = self.computed[parent], self.number + 1
        if not count:
            return
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
            elif kind < 0.93:
                self.free(self.random.choice(list(self.tokens)))
            self.allocator.check()
            for number, count in self.computed.items():
                self.require(number, count)
        for number in list(self.tokens):
            self.free(number)
        for part in self.allocator.parts:
            assert part.stats().used_blocks == 0, part.stats()


@pytest.mark.parametrize("window", [2, 4, 5, 9, 10, 17])
@pytest.mark.parametrize("allocator", ["prefix_cow", "prefix", "cow", "naive"])
def test_what_a_step_reads_is_there_and_of_its_own_branch(allocator: Any, window: int) -> None:
    memories = []
    for seed in range(4):
        memories.append(Memory(grouped(allocator, window=window), window, seed))
        memories[-1].run(150)
    shares = memories[0].allocator.full.share_prefix
    assert sum(memory.refused for memory in memories) > 0, "no call was refused"
    assert (sum(memory.cut for memory in memories) > 0) == shares, "no hit was longer than the window"


@pytest.mark.parametrize("allocator", ["prefix_cow", "prefix", "cow", "naive"])
def test_the_state_that_a_step_goes_on_from_is_of_its_own_tokens(allocator: Any) -> None:
    memories = []
    for seed in range(6):
        memories.append(Memory(grouped(allocator, window=STATE, kind="state"), STATE, seed))
        memories[-1].run(150)
    assert sum(memory.refused for memory in memories) > 0, "no call was refused"
    assert (sum(memory.hits for memory in memories) > 5) == memories[0].allocator.full.share_prefix


class Rule:
    """vLLM's retention 0 without a bound of memory, over prefixes as tuples."""

    def __init__(self) -> None:
        self.seen, self.kept = set[tuple[int, ...]](), set[tuple[int, ...]]()

    def hit(self, prompt: list[int]) -> int:
        """Serves a prompt; returns its hit."""
        prefixes = [tuple(prompt[:end]) for end in range(0, len(prompt), SIZE)]  # all but the last token's
        hit = max(len(prefix) for prefix in prefixes if not prefix or prefix in self.kept)
        shared = max((prefix for prefix in prefixes if not prefix or prefix in self.seen), key=len)
        self.kept |= {shared, prefixes[-1]} if len(shared) > hit else {prefixes[-1]}
        self.seen |= {tuple(prompt[:end]) for end in range(SIZE, len(prompt) + 1, SIZE)}
        return hit


@pytest.mark.parametrize("seed", range(6))
def test_states_hit_as_the_rule_says_whoever_passes_them(seed: int) -> None:
    allocator, rule, draw = grouped(kind="state", blocks=(400, 400)), Rule(), random.Random(seed)
    stems = [[draw.randrange(9) for _ in range(48)] for _ in range(4)]
    found, wanted = list[int](), list[int]()
    for number in range(60):
        prompt = draw.choice(stems)[: draw.choice((21, 30, 48))] + [
            draw.randrange(9) for _ in range(draw.randint(1, 12))
        ]
        prompt += [9] * (len(prompt) % SIZE == 0)  # else the state at the very end is kept, too
        found.append(compute(allocator, number, prompt, step=draw.choice((3, 8, 60))))
        wanted.append(rule.hit(prompt))
        allocator.free(RequestId(number))
        allocator.check()
    assert found == wanted
    assert found.count(0) < 30


def test_a_state_that_one_request_keeps_outlives_another_that_computed_it_again() -> None:
    allocator, prompt = grouped(kind="state", blocks=(60, 60)), [*range(50)]
    compute(allocator, 1, prompt)
    allocator.free(RequestId(1))
    allocator.full.forget([allocator.full.lookup(np.array(prompt, dtype=np.int32), NAMESPACE).blocks[0]])
    longer = [*prompt, *range(90, 100)]
    assert compute(allocator, 2, longer) == 0, "a block of full attention is gone, so all is computed again"
    allocator.free(RequestId(2))
    assert compute(allocator, 3, prompt) == 48
    allocator.check()


@pytest.mark.parametrize("kind", ["window", "state"])
def test_what_was_loaded_may_lie_below_a_block_that_nobody_uses(kind: str) -> None:
    allocator, prompt = grouped(kind=kind, window=9, blocks=(60, 60)), np.arange(41, dtype=np.int32)
    for length in (37, 41):  # of states, those after 36 and 40 tokens are kept
        compute(allocator, length, prompt[:length].tolist(), step=4)
        allocator.free(RequestId(length))
    allocator.full.forget([allocator.full.lookup(prompt, NAMESPACE).blocks[7]])
    hit = allocator.lookup(prompt, NAMESPACE)
    assert isinstance(hit, WindowedHit)
    allocator.allocate(info(1), prompt, allocator.reaching(hit, 40))
    allocator.check()
    allocator.commit(RequestId(1), prompt[:40])
    allocator.check()


def test_a_state_that_was_loaded_is_kept() -> None:
    allocator, prompt = grouped(kind="state", blocks=(60, 60)), np.arange(60, dtype=np.int32)
    hit = allocator.lookup(prompt, NAMESPACE)
    assert isinstance(hit, WindowedHit)
    allocator.allocate(info(1), prompt, allocator.reaching(hit, 24))
    for end in (24, 32, 60):
        allocator.extend(RequestId(1), end)
        allocator.commit(RequestId(1), prompt[:end])
        allocator.unref_leading(RequestId(1), end - 1)
    allocator.free(RequestId(1))
    assert compute(allocator, 2, [*range(24), 7, 7, 7]) == 24


def test_a_fork_behind_the_state_is_refused() -> None:
    allocator = grouped(window=STATE, kind="state")
    compute(allocator, 1, [*range(11)])
    with pytest.raises(InvalidArgument, match="whose state is after 11"):
        allocator.fork(RequestId(1), info(2), 9)
    allocator.check()


def compute(allocator: GroupedAllocator, number: int, tokens: list[int], step: int = 8) -> int:
    """Serves a prompt in steps; returns its hit."""
    array = np.array(tokens, dtype=np.int32)
    hit = allocator.lookup(array, NAMESPACE)
    allocator.allocate(info(number), array, hit)
    for end in [*range(hit.num_tokens + step, len(tokens), step), len(tokens)]:
        allocator.extend(RequestId(number), end)
        allocator.commit(RequestId(number), array[:end])
        allocator.unref_leading(RequestId(number), max(0, end + 1 - reach(allocator.groups[1])))
    return hit.num_tokens


def test_a_hit_ends_where_the_window_still_has_what_it_needs() -> None:
    allocator = grouped(window=9, blocks=(40, 6))
    prompt = [*range(41)]
    assert compute(allocator, 1, prompt, step=4) == 0
    allocator.free(RequestId(1))
    assert compute(allocator, 2, prompt) == 40, "its last 8 tokens are the last that the window cached"
    allocator.free(RequestId(2))
    assert compute(allocator, 3, prompt[:24]) < 20, "the blocks before were evicted from the window"
    found = allocator.results()
    assert found["full_hit_tokens"] == 60, found
    assert found["window_lost_tokens"] == 60 - allocator.stats().hit_tokens, found


def test_wrong_hits_and_calls_are_refused_and_change_nothing() -> None:
    allocator = grouped(window=9)
    tokens = np.arange(20, dtype=np.int32)
    old = allocator.lookup(tokens, NAMESPACE)
    compute(allocator, 1, tokens.tolist())
    with pytest.raises(StaleHit):
        allocator.fits(info(2), tokens, old)
    fresh = allocator.lookup(tokens, NAMESPACE)
    with pytest.raises(InvalidArgument, match="not one of the window's"):
        allocator.fits(info(2), tokens, Hit(3, (), fresh.hashes, fresh.version))
    with pytest.raises(InvalidArgument, match="extend first"):
        allocator.commit(RequestId(1), np.arange(30, dtype=np.int32))
    with pytest.raises(InvalidArgument, match="unref_leading"):
        allocator.fork(RequestId(1), info(2), 4)
    allocator.check()
    assert allocator.stats().num_requests == allocator.window.stats().num_requests == 1


@pytest.mark.parametrize(
    ("allocator", "hash", "says"),
    [
        ("contiguous", "sha256", "prefix and prefix_cow do"),
        ("radix", "sha256", "prefix and prefix_cow do"),
        ("prefix", "xxh64", "collision-resistant"),
        ({"name": "prefix", "duplicates": "keep"}, "sha256", "duplicates=merge"),
        ({"name": "prefix", "leaf_only": True}, "sha256", "leaf_only=false"),
    ],
)
def test_an_allocator_that_cannot_be_a_group_is_refused_in_a_sentence(allocator: Any, hash: str, says: str) -> None:
    part = build_allocator(allocator, "lru", hash, num_blocks=8, block_size=SIZE, max_model_len=64)
    with pytest.raises(InvalidArgument, match=says):
        GroupedAllocator((FULL, group(9)), (part, part))


@pytest.mark.parametrize("kinds", [(), ("full",), ("full", "window", "state"), ("window", "full"), ("full", "full")])
def test_other_groups_than_two_of_the_served_kinds_are_refused(kinds: tuple[str, ...]) -> None:
    groups = [FULL if kind == "full" else group(9, kind) for kind in kinds]
    with pytest.raises(InvalidArgument, match="two groups are served, of kinds full, and window or state"):
        GroupedAllocator(groups, grouped().parts[: len(kinds)])


def test_check_names_what_differs_between_the_groups() -> None:
    allocator = grouped()
    compute(allocator, 1, [*range(9)])
    allocator.window.free(RequestId(1))
    with pytest.raises(InvariantViolation, match=r"tables of \[\[1\], \[\]\]"):
        allocator.check()
