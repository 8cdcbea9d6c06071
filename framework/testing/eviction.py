"""Conformance kit of eviction policies.

`eviction_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh policy. A `Cache`
(framework.testing.eviction) calls the policy as an allocator would and never breaks a rule itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from types import FrameType
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import Block, BlockView, EvictionPolicy, ScoredPolicy
from framework.testing.driver import Violation
from framework.testing.facts import require_plain_facts
from framework.testing.histories import fail_shortest
from framework.testing.oracles.eviction import SlowLru
from framework.types import UNKNOWN_REQUEST, BlockHash, BlockId, Hint, RequestFacts

Step = tuple[str, int, int]
Path = tuple[int, ...]
PATHS: tuple[Path, ...] = ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2))


class Column(list[Any]):
    """One column of facts. The policy is given a view of it, and every read is counted."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


class Cache:
    """A tree of cached prefixes over `num_blocks` blocks, driving one policy with legal calls only.

    A request's content is a path of small numbers; one number is one block. `history` holds every call made.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        self.policy, self.num_blocks, self.access, self.now = policy, num_blocks, 0, 0.0
        self.columns = {
            name: Column([0] * (num_blocks + 1)) for name in BlockView.__dataclass_fields__ if name != "next_use"
        }
        self.columns["next_use"] = Column([float("inf")] * (num_blocks + 1))
        self.columns["key"] = Column([None] * (num_blocks + 1))
        self.columns["last_request"] = Column([UNKNOWN_REQUEST] * (num_blocks + 1))
        self.free = [BlockId(block) for block in range(num_blocks, 0, -1)]
        self.contents_evicted: list[Path] = []
        self.holder: dict[Path, BlockId] = {}
        self.path: dict[BlockId, Path] = {}
        self.users: dict[BlockId, int] = {}
        self.running: list[list[BlockId]] = []
        self.requests: list[RequestFacts] = []  # of those running
        self.evictions: list[BlockId] = []
        self.history: list[str] = []
        self.num_declined = 0
        policy.attach(BlockView(**self.columns))

    @property
    def candidates(self) -> set[BlockId]:
        """Cached blocks that no request uses."""
        return {block for block in self.path if not self.users[block]}

    def need(self, holds: bool, rule: str, seen: object = "") -> None:
        """Raise unless the rule holds."""
        if not holds:
            calls = "\n".join(f"  {number}. {call}" for number, call in enumerate(self.history, 1))
            name = type(self.policy).__name__
            raise Violation(f"{rule}: {seen}\n{name}, {self.num_blocks} blocks\ncalls so far:\n{calls}")

    def call(self, name: str, blocks: list[BlockId]) -> None:
        """One callback; the list must come back unchanged, and is overwritten afterwards: it may not be kept."""
        if not blocks:
            return
        given, facts = list(blocks), self._facts()
        self.history.append(f"{name}({blocks}, now={self.now})")
        try:
            getattr(self.policy, name)(given, self.now)
        except Exception as error:
            self.need(False, f"{name} raised", repr(error))
        self.need(given == blocks, f"{name} changed the list it was handed", f"{blocks} became {given}")
        self.need(facts == self._facts(), f"{name} wrote to the facts it may only read")
        self.need(sys.getrefcount(given) == 2, f"{name} kept the list it was handed: it is the caller's, copy it")
        given[:] = [BlockId(0)] * len(given)

    def _facts(self) -> Any:
        return {name: list(column) for name, column in self.columns.items()} if self.num_blocks < 64 else None

    def victim(self) -> BlockId:
        """Ask for a victim, twice; it must be a candidate and the same."""
        facts = self._facts()
        try:
            block, again = self.policy.victim(self.now), self.policy.victim(self.now)
        except Exception as error:
            self.need(False, "victim raised", f"{error!r}, candidates {sorted(self.candidates)}")
            raise
        self.history.append(f"victim(now={self.now}) -> {block!r}")
        self.need(type(block) is int, "a victim is no int", repr(block))
        self.need(
            block in self.candidates, "a victim is no candidate", f"{block}, candidates {sorted(self.candidates)}"
        )
        self.need(block == again, "asked twice, victim answers differently", f"{block} then {again}")
        self.need(facts == self._facts(), "victim wrote to the facts it may only read")
        return block

    def nobody(self) -> None:
        """Without a candidate the answer is NoCandidate."""
        self.history.append(f"victim(now={self.now}), no candidate")
        try:
            block = self.policy.victim(self.now)
        except NoCandidate:
            return
        except Exception as error:
            self.need(False, "victim without candidates must raise NoCandidate, it raised", repr(error))
        else:
            self.need(False, "victim without candidates must raise NoCandidate, it returned", repr(block))

    def evict(self) -> None:
        """Evict what the policy names; where it declined all there was, nothing."""
        if self.num_declined and not self.candidates:
            self.nobody()
            return
        block = self.victim()
        self.evictions.append(block)
        self.contents_evicted.append(self.path[block])
        self.drop(block)
        self.free.append(self.next_id(block))

    def next_id(self, block: BlockId) -> BlockId:
        """The id under which the memory of an evicted block is handed out again."""
        return block

    def drop(self, block: BlockId) -> None:
        """The block's content is gone."""
        path = self.path.pop(block)
        del self.holder[path], self.users[block]
        parent = self.holder.get(path[:-1])
        if parent is not None:
            self.columns["children"][parent] -= 1
        for other, below in self.holder.items():
            if other[:-1] == path:
                self.columns["parent"][below] = 0
        self.history.append(f"evicted({block}, now={self.now})")
        try:
            self.policy.evicted(block, self.now)
        except Exception as error:
            self.need(False, "evicted raised", repr(error))

    def begin(self, path: Path, priority: int = 0) -> bool:
        """A request for this path: hits its cached prefix and publishes the rest. False when there is no room."""
        self.access += 1
        prefixes = [path[: depth + 1] for depth in range(len(path))]
        held = [self.holder[prefix] for prefix in prefixes if prefix in self.holder]
        hole = next((depth for depth, prefix in enumerate(prefixes) if prefix not in self.holder), len(path))
        if len(path) - len(held) > len(self.free) + len(self.candidates - set(held)):
            return False
        pinned = [block for block in held if not self.users[block]]
        for block in held:
            self.users[block] += 1
            self.columns["last_access"][block] = self.access
            self.columns["priority"][block] = max(priority, self.columns["priority"][block])
        for block in held[:hole]:
            self.columns["hits"][block] += 1
        self.call("pin", pinned[::-1])
        self.call("hit", held[:hole][::-1])
        while len(path) - len(held) > len(self.free):
            self.evict()
        facts = self._facts_of(path, hole)
        new = [self._publish(prefix, priority, facts) for prefix in prefixes if prefix not in self.holder]
        self.call("admit", new[::-1])
        self.requests.append(facts)
        self.running.append([self.holder[prefix] for prefix in prefixes])
        return True

    def _facts_of(self, path: Path, found: int) -> RequestFacts:
        """What a server may know of a request; of every fourth nothing, as behind an allocator that keeps no facts."""
        if self.access % 4 == 0:
            return UNKNOWN_REQUEST
        hint = (None, Hint(continues=0.5), Hint(continues=0.0, returns_s=3.0))[self.access % 3]
        return RequestFacts(
            turn=len(path) - 1, prompt_tokens=16 * len(path), new_blocks=len(path) - found, arrival=float(self.access),
            session=f"s{path[0]}", category=(None, "chat")[path[0] % 2], hint=hint,
        )  # fmt: skip

    def _publish(self, path: Path, priority: int, request: RequestFacts) -> BlockId:
        block = self.free.pop()
        self.holder[path], self.path[block], self.users[block] = block, path, 1
        orphans = sum(1 for other in self.holder if other[:-1] == path)
        facts = {"depth": len(path) - 1, "num_tokens": 16 * len(path), "admitted": self.access, "hits": 0,
                 "last_access": self.access, "priority": priority, "tenant": path[0] % 2, "children": orphans,
                 "key": BlockHash(repr(path).encode()), "partial": path[-1] == 1,
                 "parent": self.holder.get(path[:-1], 0), "last_request": request}  # fmt: skip
        for name, value in facts.items():
            self.columns[name][block] = value
        parent = self.holder.get(path[:-1])
        if parent is not None:
            self.columns["children"][parent] += 1
        for other, below in self.holder.items():
            if other[:-1] == path:
                self.columns["parent"][below] = block
        return block

    def end(self, pick: int) -> None:
        """A request ends: its blocks without other users become candidates, deepest first."""
        if not self.running:
            return
        self.access += 1
        released, number = [], pick % len(self.running)
        facts = self.requests.pop(number)
        for block in self.running.pop(number)[::-1]:
            self.columns["last_request"][block] = facts
            self.users[block] -= 1
            if not self.users[block]:
                self.columns["last_access"][block] = self.access
                released.append(block)
        self.call("release", [block for block in released if self.keeps(block)])

    def keeps(self, block: BlockId) -> bool:
        """Ask whether the block is worth keeping; one that is declined is gone."""
        facts = self._facts()
        try:
            answer = self.policy.keep(block, self.now)
        except Exception as error:
            self.need(False, "keep raised", repr(error))
            raise
        self.need(type(answer) is bool, "keep must return a bool", repr(answer))
        self.need(facts == self._facts(), "keep wrote to the facts it may only read")
        if not answer:
            self.history.append(f"keep({block}, now={self.now}) -> False")
            self.num_declined += 1
            self.drop(block)
            self.free.append(block)
        return answer

    def play(self, history: list[Step]) -> None:
        """Steps by name; each picks among what is there."""
        for name, first, second in history:
            if name == "begin":
                self.begin(PATHS[first % len(PATHS)][: 1 + second % 4], priority=second % 3)
            elif name == "end":
                self.end(first)
            elif name == "evict" and self.candidates:
                self.evict()
            elif name == "advance":
                self.now += 1.0
            if not self.candidates:
                self.nobody()

    def drain(self) -> None:
        """End everything, then evict everything: each candidate goes exactly once."""
        while self.running:
            self.end(0)
        left = self.candidates
        self.need(left == set(self.path), "the kit itself lost a block")
        gone = len(self.evictions)
        while self.candidates:
            self.evict()
        self.need(sorted(self.evictions[gone:]) == sorted(left), "evicting all did not evict each once")
        self.nobody()


_IDS_A_SLOT = 3


class Relabelled(Cache):
    """Room for `num_slots` blocks, each with three ids: which of them a block gets changes nothing that may be seen.

    Args:
        labels: "same": a slot keeps its first id; "next": each reuse takes the slot's next id, so that the order of
            ids in the cache stays; "any": each reuse takes any id that is free.
    """

    def __init__(self, policy: EvictionPolicy, num_slots: int, labels: str) -> None:
        super().__init__(policy, _IDS_A_SLOT * num_slots)
        self.free = [BlockId(1 + _IDS_A_SLOT * slot) for slot in reversed(range(num_slots))]
        self._labels, self._draw = labels, Random(num_slots)

    def next_id(self, block: BlockId) -> BlockId:
        """See Cache."""
        if self._labels == "same":
            return block
        if self._labels == "next":
            first = block - (block - 1) % _IDS_A_SLOT
            return BlockId(first + (block - first + 1) % _IDS_A_SLOT)
        taken = {*self.free, *self.path}
        return BlockId(self._draw.choice([i for i in range(1, self.num_blocks + 1) if i not in taken]))


Make = Callable[[], EvictionPolicy]


def random_steps(seed: int, num_steps: int = 40) -> list[Step]:
    """A random history, as `Cache.play` takes it."""
    draw = Random(seed)
    names = draw.choices(("begin", "end", "evict", "advance"), (5, 4, 1, 1), k=num_steps)
    return [(name, draw.randrange(100), draw.randrange(100)) for name in names]


def evictions_of(policy: EvictionPolicy, history: list[Step], num_blocks: int) -> list[BlockId]:
    """What this policy evicts, in order, over a history and the drain after it."""
    cache = Cache(policy, num_blocks)
    cache.play(history)
    cache.drain()
    return cache.evictions


# The checks


def check_an_empty_policy_says_so(make: Make) -> None:
    """NoCandidate before anything was released, while all is in use, and after all was evicted."""
    cache = Cache(make(), 4)
    cache.nobody()
    cache.begin((0, 0, 0))
    cache.nobody()
    cache.drain()


def check_a_pinned_block_is_no_victim(make: Make) -> None:
    """Hit blocks leave the candidates, and come back when released."""
    cache = Cache(make(), 4)
    cache.begin((0, 0))
    cache.begin((1, 0))
    cache.end(0)
    cache.end(0)
    cache.begin((0, 0))
    cache.evict()
    cache.evict()
    cache.nobody()
    cache.drain()


def check_an_evicted_block_may_return(make: Make) -> None:
    """A block id that was evicted is reused for other content: nothing of the old one is left."""
    cache = Cache(make(), 2)
    for turn in range(6):
        cache.begin((turn, 0))
        cache.end(0)
    cache.drain()


def check_dropped_blocks_are_forgotten(make: Make) -> None:
    """A reset calls `evicted` for candidates and for blocks in use; none of them is ever named again."""
    cache = Cache(make(), 6)
    cache.begin((0, 0))
    cache.begin((1, 0))
    cache.end(0)
    for block in list(cache.path):
        cache.drop(block)
    cache.running, cache.requests, cache.free = [], [], [BlockId(block) for block in range(6, 0, -1)]
    cache.nobody()
    cache.begin((2, 0, 0))
    cache.end(0)
    cache.drain()


def check_contents_decide_and_not_ids(make: Make) -> None:
    """The same history with blocks that return under other ids: the same contents go, in the same order.

    A policy that remembers an id past `evicted`, or the order of a set of ids, fails. Ties that a ScoredPolicy breaks
    by lowest id are its contract: its ids keep their order.
    """
    labels = ("next",) if isinstance(make(), ScoredPolicy) else ("next", "any")
    for seed in range(12):

        def run(history: list[Step], num_slots: int = 2 + seed % 6) -> None:
            first = _relabelled(make(), history, num_slots, "same")
            for label in labels:
                other = _relabelled(make(), history, num_slots, label)
                other.need(
                    first.contents_evicted == other.contents_evicted,
                    "with blocks under other ids, other contents are evicted",
                    f"{first.contents_evicted}, then {other.contents_evicted}",
                )

        fail_shortest(run, random_steps(seed, 60))


def _relabelled(policy: EvictionPolicy, history: list[Step], num_slots: int, labels: str) -> Relabelled:
    cache = Relabelled(policy, num_slots, labels)
    cache.play(history)
    cache.drain()
    return cache


def check_a_recency_stack_is_one(make: Make) -> None:
    """A policy that declares `recency_stack` evicts what LRU evicts: hits and releases count, deepest block first."""
    if not make().recency_stack:
        return
    for seed in range(24):

        def run(history: list[Step], num_blocks: int = 2 + seed % 6) -> None:
            cache, lru = Cache(make(), num_blocks), Cache(SlowLru(), num_blocks)
            for one in (cache, lru):
                one.play(history)
                one.drain()
            cache.need(
                cache.contents_evicted == lru.contents_evicted,
                "it declares recency_stack and does not evict the least recently used block",
                f"{cache.contents_evicted}, LRU evicts {lru.contents_evicted}",
            )

        fail_shortest(run, random_steps(seed, 60))


def check_a_score_that_reads_the_time_says_so(make: Make) -> None:
    """Without `time_varying` a score is taken once, at `release`: what it takes from `now` would be out of date."""
    if not isinstance(make(), ScoredPolicy) or getattr(make(), "time_varying", False):
        return
    for seed in range(8):
        cache = Cache(make(), 6)
        cache.play(random_steps(seed))
        for block in sorted(cache.candidates):
            scores = []
            for later in (0.0, 1.0, 1000.0):
                policy: Any = deepcopy(cache.policy)  # a score may draw random numbers, or count
                facts = Block(policy.blocks)
                facts.id = block
                scores.append(policy.score(facts, cache.now + later))
            cache.need(
                scores[0] == scores[1] == scores[2],
                "the score changes with `now` while nothing happens to the block; set time_varying = True",
                f"block {block}: {scores}",
            )


def check_a_large_pool(make: Make) -> None:
    """Hundreds of blocks, published, hit, evicted and drained by the same rules as a few."""
    cache = Cache(make(), 160)
    for turn in range(200):
        cache.begin((turn % 70, turn % 3, turn % 2))
        if turn % 2:
            cache.end(turn)
        cache.now += turn % 5 == 0
    cache.drain()


def check_random_histories(make: Make) -> None:
    """Every rule, over 80 random legal histories; a failure shows the shortest."""
    for seed in range(80):
        num_blocks = 1 + seed % 9

        def run(history: list[Step], num_blocks: int = num_blocks) -> None:
            evictions_of(make(), history, num_blocks)

        fail_shortest(run, random_steps(seed))


def check_two_instances_evict_alike(make: Make) -> None:
    """Same seed, same history, same evictions, though the instances run side by side."""
    for seed in range(12):

        def run(history: list[Step]) -> None:
            first, second = Cache(make(), 6), Cache(make(), 6)
            for step in history:
                for cache in (first, second):
                    cache.play([step])
            for cache in (first, second):
                cache.drain()
            first.need(first.evictions == second.evictions, "two instances evict differently",
                       f"{first.evictions}, {second.evictions}")  # fmt: skip

        fail_shortest(run, random_steps(seed))


def check_facts_are_plain_and_change_nothing(make: Make) -> None:
    """`facts` gives names to texts and finite numbers at any time, and asking for them changes no eviction."""
    history = random_steps(7, num_steps=60)
    policy = make()
    cache = Cache(policy, 5)
    require_plain_facts("eviction policy", policy)
    for step in history:
        cache.play([step])
        require_plain_facts("eviction policy", policy)
    cache.drain()
    unasked = evictions_of(make(), history, 5)
    cache.need(cache.evictions == unasked, "facts changed what is evicted", f"{cache.evictions}, else {unasked}")


def check_work_does_not_grow_with_the_pool(make: Make) -> None:
    """O(log n) an operation: 32 times the blocks may not cost 6 times the calls, reads and comparisons.

    Counts, not seconds. A policy that declares `time_varying` scores all candidates on each eviction and is exempt.
    """
    policy = make()
    if getattr(policy, "time_varying", False):
        return
    few, many = _work(make(), 128), _work(make(), 4096)
    if many > 6 * few + 64:
        name = type(policy).__name__
        raise Violation(f"{name} does not scale: {few:.1f} operations a step at 128 blocks, {many:.1f} at 4096")


class CountedId(int):
    """A block id that counts how often it is compared."""

    compared = 0

    def _count(self) -> None:
        CountedId.compared += 1

    def __eq__(self, other: object) -> bool:
        self._count()
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        self._count()
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        self._count()
        return int(self) > int(other)

    __hash__ = int.__hash__


def _work(policy: EvictionPolicy, num_blocks: int, rounds: int = 64) -> float:
    """Python calls, fact reads and id comparisons a step, when one block is evicted, reused and released at a time."""
    columns = {name: Column([0] * (num_blocks + 1)) for name in BlockView.__dataclass_fields__}
    columns["key"] = Column([b"%d" % block for block in range(num_blocks + 1)])
    columns["last_request"] = Column([UNKNOWN_REQUEST] * (num_blocks + 1))
    policy.attach(BlockView(**columns))
    ids: list[Any] = [CountedId(block) for block in range(num_blocks + 1)]
    for block in range(1, num_blocks + 1):
        columns["last_access"][block] = columns["admitted"][block] = block
        policy.admit([ids[block]], 0.0)
        policy.release([ids[block]], 0.0)
    calls, before = 0, sys.getprofile()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    CountedId.compared = 0
    reads = sum(column.reads for column in columns.values())
    sys.setprofile(count)
    try:
        for turn in range(rounds):
            block = policy.victim(0.0)
            policy.evicted(block, 0.0)
            columns["last_access"][block] = columns["admitted"][block] = num_blocks + turn
            policy.admit([ids[block]], 0.0)
            policy.release([ids[block]], 0.0)
            middle = [ids[1 + (turn * 37) % num_blocks]]
            policy.pin(middle, 0.0)
            policy.hit(middle, 0.0)
            policy.release(middle, 0.0)
    finally:
        sys.setprofile(before)
    total = calls + CountedId.compared + sum(column.reads for column in columns.values()) - reads
    return total / rounds


eviction_checks = (
    check_an_empty_policy_says_so,
    check_a_pinned_block_is_no_victim,
    check_an_evicted_block_may_return,
    check_dropped_blocks_are_forgotten,
    check_a_score_that_reads_the_time_says_so,
    check_random_histories,
    check_contents_decide_and_not_ids,
    check_a_recency_stack_is_one,
    check_two_instances_evict_alike,
    check_facts_are_plain_and_change_nothing,
    check_a_large_pool,
    check_work_does_not_grow_with_the_pool,
)
