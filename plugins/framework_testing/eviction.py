"""Conformance kit of eviction policies.

`eviction_checks` are plain functions `check(make)`, cheap first, and `eviction_large_checks` are those of large pools;
`make()` builds a fresh policy. A `Cache` (framework_testing.eviction) calls the policy as an allocator does and never
breaks a rule itself.
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from random import Random
from types import FrameType, ModuleType
from typing import Any, TypeVar

from framework.errors import NoCandidate
from framework.guard.policy import PolicyHost, names_in_bulk
from framework.interfaces.eviction import Block, BlockView, EvictionPolicy, ScoredPolicy
from framework.paged.cache import BlockCache
from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool, LastRequests
from framework.types import UNKNOWN_REQUEST, BlockHash, BlockId, Hint, RequestFacts
from framework_testing.driver import Violation, last_calls, shortened
from framework_testing.histories import fail_shortest
from framework_testing.oracles.eviction import SlowLru
from framework_testing.rules import checks_of, large_checks_of, need, require_plain_facts

Step = tuple[str, int, int]
Path = tuple[int, ...]
PATHS: tuple[Path, ...] = ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2))


_IDS_A_SLOT = 3
Result = TypeVar("Result")


class Checked(EvictionPolicy):
    """Hands each call on to a policy, notes it, and holds what a policy owes whoever calls it.

    The facts that it may read are read-only: one that writes to them raises.
    """

    def __init__(self, policy: EvictionPolicy, need: Callable[..., None], history: list[str]) -> None:
        self.policy, self.need, self.history = policy, need, history

    def attach(self, blocks: BlockView) -> None:
        self.policy.attach(blocks)

    def _call(self, name: str, blocks: Sequence[BlockId], now: float) -> None:
        """One callback; the list must come back unchanged, and is overwritten afterwards: it may not be kept."""
        given = list(blocks)
        self.history.append(f"{name}({given}, now={now})")
        getattr(self.policy, name)(given, now)
        self.need(given == list(blocks), f"{name} changed the list it was handed", f"{blocks} became {given}")
        self.need(sys.getrefcount(given) == 2, f"{name} kept the list it was handed: it is the caller's, copy it")
        given[:] = [BlockId(0)] * len(given)

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._call("admit", blocks, now)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._call("hit", blocks, now)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._call("pin", blocks, now)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        self._call("release", blocks, now)

    def keep(self, block: BlockId, now: float) -> bool:
        answer = self.policy.keep(block, now)
        self.history.append(f"keep({block}, now={now}) -> {answer!r}")
        return answer

    def victim(self, now: float) -> BlockId:
        block, again = self.policy.victim(now), self.policy.victim(now)
        self.history.append(f"victim(now={now}) -> {block!r}")
        self.need(block == again, "asked twice, victim answers differently", f"{block} then {again}")
        return block

    def victims(self, count: int, now: float) -> list[BlockId]:
        named = self.policy.victims(count, now)
        self.history.append(f"victims({count}, now={now}) -> {named!r}")
        return named

    def evicted(self, block: BlockId, now: float) -> None:
        self.history.append(f"evicted({block}, now={now})")
        self.policy.evicted(block, now)


class Cache:
    """A tree of cached prefixes in the block cache of the paged allocators, which drives one policy.

    A request's content is a path of small numbers; one number is one block. `history` holds every call made.

    Args:
        labels: where given, there are three block ids for each of the `num_blocks` slots: "same": a slot keeps its
            first id; "next": each reuse takes the slot's next id, so that the order of ids in the cache stays; "any":
            each reuse takes any free id.
        in_turns: many victims are asked for by `victim` and `evicted` by turns, also of a policy with `victims` of its
            own.

    Attributes:
        evictions, contents_evicted: blocks whose content went, in order, and their paths.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int, labels: str = "", *, in_turns: bool = False) -> None:
        self.policy, self.num_blocks, self._labels = policy, num_blocks, labels
        self.history: list[str] = []
        self.evictions: list[BlockId] = []
        self.contents_evicted: list[Path] = []
        self.running: list[tuple[list[int], RequestFacts]] = []
        self._paths: dict[BlockHash, Path] = {}
        self._reuses, self._draw = [0] * num_blocks, Random(num_blocks)
        self.pool = BlockPool(_IDS_A_SLOT * num_blocks if labels else num_blocks, 16)
        index = PrefixIndex(self.pool, compares_tokens=False)
        self.host = PolicyHost(Checked(policy, self.need, self.history), self.pool.candidate)
        self.host.policy.in_bulk = names_in_bulk(policy) and not in_turns  # as an allocator sees the policy itself
        self.requests = LastRequests(len(self.pool.ref))
        self.cache = BlockCache(self.pool, index, self.host, False, self._choose if labels else None)
        self.call(lambda: self.host.policy.attach(self.pool.view(self.requests)))

    def _choose(self, count: int) -> list[BlockId]:
        free, chosen = {*self.pool.free}, list[BlockId]()
        for _ in range(count):
            slots = (range(start, start + _IDS_A_SLOT) for start in range(1, len(self.pool.ref), _IDS_A_SLOT))
            slot = next(ids for ids in slots if free.issuperset(ids))
            self._reuses[slot[0] // _IDS_A_SLOT] += 1
            block = slot[self._reuses[slot[0] // _IDS_A_SLOT] % _IDS_A_SLOT if self._labels == "next" else 0]
            chosen.append(BlockId(self._draw.choice(sorted(free)) if self._labels == "any" else block))
            free.remove(chosen[-1])
        return chosen

    @property
    def candidates(self) -> set[BlockId]:
        """Cached blocks that no request uses."""
        return {BlockId(block) for block, offered in enumerate(self.pool.candidate) if offered}

    @property
    def holder(self) -> dict[Path, BlockId]:
        """The block of each cached path."""
        return {self._paths[key]: BlockId(block) for block, key in enumerate(self.pool.block_hash) if key is not None}

    def need(self, holds: bool, rule: str, seen: object = "") -> None:
        """Raise unless the rule holds."""
        if not holds:
            about = f"{type(self.policy).__name__}, {self.num_blocks} blocks"
            raise Violation(f"{rule}: {shortened(seen)}\n{about}\n{last_calls(self.history)}")

    def call(self, work: Callable[[], Result]) -> Result:
        """Do it; what the policy raises or answers wrongly breaks a rule."""
        try:
            return work()
        except Violation:
            raise
        except Exception as error:
            self.need(False, "the policy failed", f"{error!r}; candidates {sorted(self.candidates)}")
            raise

    def nobody(self) -> None:
        """Without a candidate the answer is NoCandidate."""
        now = self.host.now
        self.history.append(f"victim(now={now}), no candidate")
        try:
            block = self.policy.victim(now)
        except NoCandidate:
            return
        except Exception as error:
            self.need(False, "victim without candidates must raise NoCandidate, it raised", repr(error))
        else:
            self.need(False, "victim without candidates must raise NoCandidate, it returned", repr(block))

    def evict(self, count: int = 1) -> None:
        """Evict what the policy names, all at once as an allocator does."""
        for block in self.call(lambda: self.host.victims(count)):
            self.evictions.append(BlockId(block))
            self.contents_evicted.append(self._paths[self.pool.block_hash[block]])  # type: ignore[index]
            self.cache.give_up(block)

    def begin(self, path: Path, priority: int = 0) -> bool:
        """A request for this path: hits its cached prefix and publishes the rest. False when there is no room."""
        pool, index = self.pool, self.cache.index
        keys = [BlockHash(repr(path[: depth + 1]).encode()) for depth in range(len(path))]
        hits = index.find(-1, keys, b"", len(path))
        more, spare = len(path) - len(hits), pool.num_blocks - self.num_blocks
        if more > self.cache.available(hits) - spare:
            return False
        pool.access += 1
        self._paths.update(zip(keys, (path[: depth + 1] for depth in range(len(path))), strict=True))
        table = array("i", hits)
        self.call(lambda: self.cache.take(0, hits, priority))
        short = more + spare - len(pool.free)
        if short > 0:
            self.evict(short)
        table.fromlist(self.cache.take(more))
        facts = self._facts_of(path, len(hits))
        self.requests.used(table[len(hits) :], facts)
        given = -1, table, len(hits), keys[len(hits) :], b"", priority, path[0] % 2
        self.call(lambda: self.cache.publish(*given))
        self.running.append((list(table), facts))
        return True

    def _facts_of(self, path: Path, num_hits: int) -> RequestFacts:
        """What a server may know of a request; of every fourth nothing, as behind an allocator that keeps no facts."""
        access = self.pool.access
        if access % 4 == 0:
            return UNKNOWN_REQUEST
        hint = (None, Hint(continues=0.5), Hint(continues=0.0, returns_s=3.0))[access % 3]
        return RequestFacts(
            turn=len(path) - 1, prompt_tokens=16 * len(path), new_blocks=len(path) - num_hits, arrival=float(access),
            session=f"s{path[0]}", category=(None, "chat")[path[0] % 2], hint=hint,
        )  # fmt: skip

    def end(self, pick: int) -> None:
        """A request ends: its blocks without other users become candidates, deepest first, or are given up."""
        if self.running:
            table, facts = self.running.pop(pick % len(self.running))
            self.pool.access += 1
            self.requests.used(table, facts)
            self.call(lambda: self.cache.unref(table[::-1]))

    def play(self, history: list[Step]) -> None:
        """Steps by name; each picks among what is there."""
        for name, first, second in history:
            if name == "begin":
                self.begin(PATHS[first % len(PATHS)][: 1 + second % 4], priority=second % 3)
            elif name == "end":
                self.end(first)
            elif name == "evict" and self.candidates:
                self.evict(min(1 + second % 5, len(self.candidates)))
            elif name == "advance":
                self.host.now += 1.0
            elif name == "reset":
                self.call(self.cache.reset)
            if not self.candidates:
                self.nobody()

    def drain(self, at_once: int = 1) -> None:
        """End everything, then evict everything, `at_once` at a time: each candidate goes exactly once."""
        while self.running:
            self.end(0)
        left, gone = self.candidates, len(self.evictions)
        for first in range(0, len(left), at_once):
            self.evict(min(at_once, len(left) - first))
        self.need(sorted(self.evictions[gone:]) == sorted(left), "evicting all did not evict each once")
        self.nobody()


Make = Callable[[], EvictionPolicy]


def random_steps(seed: int, num_steps: int = 40) -> list[Step]:
    """A random history, as `Cache.play` takes it."""
    draw = Random(seed)
    names = draw.choices(("begin", "end", "evict", "advance", "reset"), (5, 4, 1, 1, 0.3), k=num_steps)
    return [(name, draw.randrange(100), draw.randrange(100)) for name in names]


def _over_random_steps(run: Callable[[list[Step], int], object], examples: int, num_steps: int = 60) -> None:
    """`run(steps, num_blocks)` over random histories in pools of 1 to 9 blocks; a failure shows the shortest."""
    for seed in range(examples):
        fail_shortest(run, random_steps(seed, num_steps), 1 + seed % 9)


def _played(cache: Cache, history: list[Step]) -> Cache:
    cache.play(history)
    cache.drain()
    return cache


def _need_alike(one: Cache, other: Cache, rule: str, said: str) -> None:
    """Two caches in which the same happened gave up the same contents, in the same order."""
    seen = f"{one.contents_evicted}, {said} {other.contents_evicted}"
    one.need(one.contents_evicted == other.contents_evicted, rule, seen)


def evictions_of(policy: EvictionPolicy, history: list[Step], num_blocks: int) -> list[BlockId]:
    """What this policy evicts, in order, over a history and the drain after it."""
    return _played(Cache(policy, num_blocks), history).evictions


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
                seen: Any = cache.policy
                policy = deepcopy(seen, {id(seen.blocks): seen.blocks})  # a score may draw random numbers, or count
                facts = Block(policy.blocks)
                facts.id = block
                scores.append(policy.score(facts, cache.host.now + later))
            cache.need(
                scores[0] == scores[1] == scores[2],
                "the score changes with `now` while nothing happens to the block; set time_varying = True",
                f"block {block}: {scores}",
            )


def check_random_histories(make: Make) -> None:
    """Every rule, over 80 random legal histories; a failure shows the shortest."""
    _over_random_steps(lambda history, num_blocks: _played(Cache(make(), num_blocks), history), 80, 40)


def check_contents_decide_and_not_ids(make: Make) -> None:
    """The same history with blocks that return under other ids: the same contents go, in the same order.

    A policy that remembers an id past `evicted`, or the order of a set of ids, fails. Ties that a ScoredPolicy breaks
    by lowest id are its contract: its ids keep their order.
    """
    labels = ("next",) if isinstance(make(), ScoredPolicy) else ("next", "any")

    def run(history: list[Step], num_slots: int) -> None:
        first = _played(Cache(make(), num_slots, "same"), history)
        for label in labels:
            other = _played(Cache(make(), num_slots, label), history)
            _need_alike(other, first, "with blocks under other ids, other contents are evicted", "else")

    _over_random_steps(run, 12)


def check_a_recency_stack_is_one(make: Make) -> None:
    """A policy that declares `recency_stack` evicts what LRU evicts: hits and releases count, deepest block first."""
    if not make().recency_stack:
        return

    def run(history: list[Step], num_blocks: int) -> None:
        cache, lru = (_played(Cache(policy, num_blocks), history) for policy in (make(), SlowLru()))
        rule = "it declares recency_stack and does not evict the least recently used block"
        _need_alike(cache, lru, rule, "LRU evicts")

    _over_random_steps(run, 24)


def check_two_instances_evict_alike(make: Make) -> None:
    """Same seed, same history, same evictions, though the instances run side by side."""

    def run(history: list[Step], num_blocks: int) -> None:
        first, second = Cache(make(), num_blocks), Cache(make(), num_blocks)
        for step in history:
            for cache in (first, second):
                cache.play([step])
        for cache in (first, second):
            cache.drain()
        _need_alike(first, second, "two instances evict differently", "and")

    _over_random_steps(run, 12)


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


def _stream(cache: Cache, seed: int, num_requests: int) -> Cache:
    """Requests of up to 8 blocks for 60 contents, some far more often than others; two or three run at a time."""
    draw = Random(seed)
    for _ in range(num_requests):
        content = int(60 * draw.random() ** 3)
        cache.begin((content % 7, content, *range(draw.randint(0, 6))), priority=content % 3)
        while len(cache.running) > 2:
            cache.end(draw.randrange(3))
        cache.host.now += 1.0
    cache.drain(at_once=5)
    return cache


def check_many_victims_are_one_after_another(make: Make) -> None:
    """`victims(n)` names, in order, what n turns of `victim` and `evicted` name, and remembers of them what they do."""
    if not names_in_bulk(make()):
        return  # it is asked by turns

    def compare(play: Callable[[Cache], Cache], num_blocks: int) -> None:
        once = play(Cache(make(), num_blocks))
        turns = play(Cache(make(), num_blocks, in_turns=True))
        pairs = enumerate(zip(once.evictions, turns.evictions, strict=False))
        number = next((number for number, (one, other) in pairs if one != other), None)
        first, second = (cache.evictions[number or 0 : (number or 0) + 5] for cache in (once, turns))
        once.need(
            once.evictions == turns.evictions,
            "victims(count) evicts other blocks than victim and evicted by turns",
            f"from eviction {number} on {first}, by turns {second}",
        )

    _over_random_steps(lambda history, num_blocks: compare(lambda cache: _played(cache, history), num_blocks), 24)
    for seed in range(6):
        compare(partial(_stream, seed=seed, num_requests=150), 26 + seed)


def check_what_is_remembered_is_bounded(make: Make) -> None:
    """What a policy remembers of contents that are gone (ghosts, sessions) has a bound, reached by 18,000 contents.

    Counted are the entries of its dicts, sets, lists and deques, not those of arrays of numbers. It goes on to 36,000
    contents where the second half of 9,000, and of 18,000, leaves more than half an entry each.
    """
    policy = make()
    columns = attached(policy, 32)
    sizes = list[int]()
    for number in range(1, 36_001):
        if number > 32:
            block = policy.victim(float(number))
            policy.evicted(block, float(number))
        else:
            block = BlockId(number)
        columns["key"][block] = BlockHash(b"%d" % number)
        columns["last_access"][block] = columns["admitted"][block] = number
        session = RequestFacts(turn=0, prompt_tokens=16, new_blocks=1, arrival=float(number), session=f"s{number}")
        columns["last_request"][block] = session
        policy.admit([block], float(number))
        policy.release([block], float(number))
        if number in (4_500, 9_000, 18_000, 36_000):
            sizes.append(_entries(policy))
            if len(sizes) > 1 and sizes[-1] - sizes[-2] <= number / 4:
                return
    need(policy, False, "remembers ever more; give what it keeps of contents that are gone (ghosts, sessions) a bound",
         f"{sizes[2]} entries after 18,000 contents in a pool of 32 blocks, {sizes[3]} after 36,000")  # fmt: skip


def attached(
    policy: EvictionPolicy, num_blocks: int, column: type[list[Any]] = list, **given: list[Any]
) -> dict[str, list[Any]]:
    """A policy's facts, by name, of blocks that have none yet but those given."""
    columns = {name: column([0] * (num_blocks + 1)) for name in BlockView.__dataclass_fields__}
    columns["key"] = column([b"%d" % block for block in range(num_blocks + 1)])
    columns["last_request"] = column([UNKNOWN_REQUEST] * (num_blocks + 1))
    columns |= given
    policy.attach(BlockView(**columns))
    return columns


def _entries(policy: EvictionPolicy) -> int:
    """Entries of all containers that a policy holds; those of its view of the blocks are the cache's."""
    seen, todo, count = {id(policy.blocks)}, list[Any]([policy]), 0
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (type, str, bytes, ModuleType)) or callable(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, Mapping):
            todo += [*thing.keys(), *thing.values()]
            count += len(thing)
        elif isinstance(thing, (list, tuple, set, frozenset, deque)):
            todo += thing
            count += len(thing)
        slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
        todo += [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in slots)]
    return count


def check_a_large_pool(make: Make) -> None:
    """Hundreds of blocks, published, hit, evicted and drained by the same rules as a few; also when all were hit."""
    cache = Cache(make(), 160)
    for turn in range(200):
        cache.begin((turn % 70, turn % 3, turn % 2))
        if turn % 2:
            cache.end(turn)
        cache.host.now += turn % 5 == 0
    cache.drain()
    _many_are_hit(Cache(make(), 720), at_once=40)


def _many_are_hit(cache: Cache, at_once: int) -> None:
    """Five sixths of the pool are hit twice, what is new takes the rest and more, and all are evicted."""
    contents = cache.num_blocks // 6
    for turn in range(contents * 3 + contents // 2):
        cache.begin((turn % contents if turn < contents * 3 else turn, *range(4)))
        cache.end(0)
        cache.host.now += turn % 50 == 0
        cache.history.clear()
    cache.drain(at_once)


def check_large_pools(make: Make) -> None:
    """100,000 blocks, most of them hit, evicted a thousand at a time; 2,000 of a policy that is `time_varying`."""
    time_varying = getattr(make(), "time_varying", False)
    _many_are_hit(Cache(make(), 2000 if time_varying else 100_000), at_once=1000)


def check_work_does_not_grow_with_the_pool(make: Make) -> None:
    """O(log n) an operation: 32 times the blocks may not cost 6 times the calls, reads and comparisons.

    Counts, not seconds. A policy that declares `time_varying` scores all candidates on each eviction and is exempt.
    """
    policy = make()
    if getattr(policy, "time_varying", False):
        return
    few, many = _work(make(), 128), _work(make(), 4096)
    need(policy, many <= 6 * few + 64, "does not scale; operations a step",
         f"{few:.1f} at 128 blocks, {many:.1f} at 4096")  # fmt: skip


def _counted(compare: Callable[[int, Any], bool]) -> Any:
    def call(one: int, other: Any) -> bool:
        CountedId.compared += 1
        return compare(int(one), int(other) if isinstance(other, int) else other)

    return call


class CountedId(int):
    """A block id that counts how often it is compared."""

    compared = 0
    __eq__, __lt__, __gt__ = map(_counted, (operator.eq, operator.lt, operator.gt))
    __hash__ = int.__hash__


def _work(policy: EvictionPolicy, num_blocks: int, rounds: int = 64) -> float:
    """Python calls, fact reads and id comparisons a step, when one block is evicted, reused and released at a time."""

    class Column(list[Any]):
        """Facts whose every read is a call that is counted."""

        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    columns = attached(policy, num_blocks, Column)
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
    return (calls + CountedId.compared) / rounds


eviction_checks, eviction_large_checks = checks_of(globals()), large_checks_of(globals())
