"""Conformance kit of allocators.

`allocator_checks` are plain functions `check(make)`, cheap first. `make`, mostly the class itself, builds a fresh
allocator from those of `num_blocks`, `block_size`, `max_model_len`, `hash` and `eviction` that it takes; bind options
of its own with `functools.partial`. Most rules are those of `Driver`, which holds them after every call of a random
history; the other checks make situations that such histories do not reach. Rules about sharing bind only allocators
that are seen to share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from random import Random
from typing import Any

import numpy as np

from framework.errors import OutOfBlocks, PluginError, UnknownRequest
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.types import BlockId, Hint, Namespace, RequestId, RequestInfo, TokenArray, as_tokens
from framework_testing.adversarial import (
    BAD_NAMES,
    BAD_VICTIMS,
    Constant,
    Fickle,
    MostRecent,
    ReferenceHash,
    Truncated,
)
from framework_testing.driver import Driver, Traits, Violation
from framework_testing.hash import CONTENT_NAMES, spreads
from framework_testing.histories import NAMESPACES, SHARING_AHEAD, WINDOWED, Step, fail_shortest, play, random_history
from framework_testing.oracles.eviction import SlowFifo, SlowLru
from framework_testing.rules import checks_of, large_checks_of, need, require_plain_facts

Make = Callable[..., Allocator]

PLAIN = Namespace()


def traits_of(make: Make, *, collides: bool = False, num_blocks: int = 8, block_size: int = 2) -> Traits:
    """What a fresh allocator is seen to do: share, keep tables exact, give one request the whole pool.

    Nothing else is inferred, and each only from what is seen at every length that this pool holds.
    """
    try:
        return _traits(make, collides, num_blocks, block_size)
    except Exception as error:
        raise Violation(f"the simplest life of one request failed: {error!r}") from error


@lru_cache(maxsize=128)  # of each size of pool once, also while a history is made shorter
def _traits(make: Make, collides: bool, num_blocks: int, block_size: int) -> Traits:
    allocator = fresh(make, 8, 2)
    prompt = as_tokens([0, 1, 0, 1, 0])
    allocator.allocate(info(1, 5), prompt, allocator.lookup(prompt, PLAIN))
    allocator.publish(RequestId(1), prompt)
    shares_ahead = allocator.lookup(prompt, PLAIN).num_tokens > 0
    allocator.commit(RequestId(1), prompt)
    shares = allocator.lookup(prompt, PLAIN).num_tokens > 0
    idle = fresh(make, num_blocks, block_size)
    exact, capacity = _is_exact(idle) and _is_exact(fresh(make, 8, 2)), _most_blocks(idle)
    idle.allocate(info(1, 1), prompt[:1], idle.lookup(prompt[:1], PLAIN))
    kept = num_blocks - 1 - _most_blocks(idle) if exact else 0
    return Traits(
        shares=shares,
        exact=exact,
        capacity=capacity * block_size,
        kept=kept,
        shares_ahead=shares_ahead,
        strict=shares and not collides,
    )


def _is_exact(idle: Allocator) -> bool:
    """Whether tables have the blocks that their tokens need and no more, at every length that an empty pool holds.

    Both of requests allocated with that length and of one that grows to it. A table may be longer: by a run of two
    blocks, by doubling, by a reservation; one that is exact for short requests need not be for long ones.
    """
    size, most = idle.block_size, GuardedAllocator(idle).max_request_tokens
    lengths = [1, *(tokens for tokens in range(size, most + 1, size))]
    for grows in (False, True):
        for tokens in lengths:
            first = 1 if grows else tokens
            prompt, request = as_tokens([1] * first), RequestInfo(id=RequestId(tokens), max_total_tokens=tokens)
            idle.allocate(request, prompt, idle.lookup(prompt, PLAIN))
            lengths_seen = [(first, len(idle.table(request.id)))]
            for more in range(size, tokens + 1, size) if grows else ():
                idle.extend(request.id, more)
                lengths_seen.append((more, len(idle.table(request.id))))
            idle.free(request.id)
            if any(blocks != -(-length // size) for length, blocks in lengths_seen):
                return False
    return True


def _most_blocks(allocator: Allocator) -> int:
    """The most blocks that one more request may have now, as `fits` says."""
    for blocks in range(allocator.num_blocks, 0, -1):
        prompt = as_tokens([7] * (blocks * allocator.block_size))
        if allocator.fits(info(9, len(prompt)), prompt, allocator.lookup(prompt, PLAIN)):
            return blocks
    return 0


def info(number: int, tokens: int = 8) -> RequestInfo:
    """A request of this id."""
    return RequestInfo(id=RequestId(number), max_total_tokens=tokens)


def fresh(
    make: Make,
    num_blocks: int,
    block_size: int,
    scheme: HashScheme | None = None,
    policy: EvictionPolicy | None = None,
    *,
    max_model_len: int | None = None,
) -> Allocator:
    """An allocator from those shared values that `make` takes."""
    shared: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len or max(block_size, num_blocks * block_size * 2 // 3),
        "hash": scheme or ReferenceHash(),
        "eviction": policy or SlowLru(),
    }
    accepted = inspect.signature(make).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return make(**shared)
    return make(**{name: value for name, value in shared.items() if name in accepted})


def collides_often(scheme: HashScheme) -> bool:
    """Whether misses through collisions are to be expected: for few bits, and for names that change."""
    return isinstance(scheme, Fickle) or not spreads(scheme)


def driver_of(
    make: Make,
    num_blocks: int,
    block_size: int,
    scheme: HashScheme | None = None,
    policy: EvictionPolicy | None = None,
    traits: Traits | None = None,
) -> Driver:
    """A fresh allocator under a driver that knows its traits."""
    scheme, policy = scheme or ReferenceHash(), policy or SlowLru()
    if traits is None:
        traits = traits_of(make, collides=collides_often(scheme), num_blocks=num_blocks, block_size=block_size)
    allocator = fresh(make, num_blocks, block_size, scheme, policy)
    about = (
        f"{type(allocator).__name__}, {num_blocks} blocks of {block_size} tokens, "
        f"{type(scheme).__name__}, {type(policy).__name__}"
    )
    return Driver(allocator, traits, about, repeats=not isinstance(scheme, Fickle))


def _allocate(allocator: Allocator, request: RequestInfo, prompt: TokenArray) -> bool:
    """Look up and allocate; False where there is no room."""
    try:
        allocator.allocate(request, prompt, allocator.lookup(prompt, PLAIN))
    except OutOfBlocks:
        return False
    return True


def check_max_request_tokens_is_true(make: Make) -> None:
    """Up to `max_request_tokens` an empty pool has room, at once and as a request grows; for more it has none."""
    for num_blocks, tokens, grows in product((1, 4, 7), range(1, 17), (False, True)):
        allocator = fresh(make, num_blocks, 2)
        promised = tokens <= GuardedAllocator(allocator).max_request_tokens
        given = _allocate(allocator, info(1, tokens), as_tokens([1] if grows else [1] * tokens))
        if grows and given and promised:
            try:
                for length in range(2, tokens + 1):
                    allocator.extend(RequestId(1), length)
            except OutOfBlocks:
                given = False
        how = "one after another" if grows else "at once"
        need(allocator, promised == given or (grows and not promised), f"{tokens} tokens {how} in {num_blocks} blocks "
             "of 2", f"max_request_tokens says {promised}, the pool {given}")  # fmt: skip


def check_facts_are_plain(make: Make) -> None:
    """`facts` gives names to texts and finite numbers at any time, and changes nothing."""
    driver = driver_of(make, 8, 2)
    require_plain_facts("allocator", driver.allocator)
    driver.do_admit([0, 1, 1, 0], PLAIN)
    driver.do_compute(0, 4, extend=True, commit=True)
    before = driver.snapshot()
    require_plain_facts("allocator", driver.allocator)
    driver.need(driver.snapshot() == before, "facts changed something")


def check_listening_ends(make: Make) -> None:
    """listen(None) stops the events."""
    driver = driver_of(make, 4, 1)
    driver.allocator.listen(None)
    driver.do_admit([0, 1], PLAIN)
    driver.do_compute(0, 2, extend=True, commit=True)
    driver.need(not driver.events, "events were sent to nobody", driver.events)


def check_discarded_content_is_not_found(make: Make) -> None:
    """Nothing of a reset request's table is found, also once who shares it has ended; what is computed anew is."""
    short = [0, 1, 1, 0, 1]
    longer = as_tokens([*short, 1, 1, 0])
    for passed in (0, 2):
        driver = driver_of(make, 12, 2)
        if not driver.traits.shares:
            return
        allocator = driver.allocator
        for tokens in (short, longer.tolist()):
            driver.do_admit(tokens, PLAIN, more=4)
            driver.do_compute(-1, len(tokens), extend=True, commit=True)
        if passed:
            driver.do_unref_leading(0, passed // 2)
        driver.call("reset(request 1)", partial(allocator.reset, RequestId(1)))
        driver.truth.published.clear()
        driver.need(not allocator.lookup(longer, PLAIN).num_tokens, "what was discarded is found")
        driver.do_free(0)
        driver.do_append(0, [0, 1])
        driver.do_compute(0, 9, extend=True, commit=True)
        driver.do_free(0)
        driver.truth.published.clear()
        num_tokens = allocator.lookup(longer, PLAIN).num_tokens
        driver.need(not num_tokens, "what shared a discarded block is found below it", num_tokens)
        driver.do_admit(short, PLAIN)
        driver.do_compute(0, 9, extend=True, commit=True)
        driver.do_free(0)


class _Reads(SlowLru):
    """LRU that keeps the time of each call, and reads all that a policy may."""

    needs_future = True
    needs_requests = True

    def __init__(self) -> None:
        self.times: list[float] = []

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        super().release(blocks, now)
        self.times.append(now)


def check_the_policy_reads_all_that_is_known(make: Make) -> None:
    """The policy reads each request's priority, tenant, session and the rest, the time, and, if promised, the future.

    A view without `last_request` says that nobody keeps it; one with it has what the request came with. Binds an
    allocator that shares and attaches the policy that it is given.
    """
    if not traits_of(make).shares:
        return
    policy, tenants = _Reads(), []
    allocator = fresh(make, 16, 2, policy=policy)
    if not hasattr(policy, "blocks"):
        return  # it has an order of its own
    for number, given in enumerate(_KNOWN, 1):
        request = replace(given, id=RequestId(number), max_total_tokens=5)
        prompt = as_tokens([number, 1, 2, 3, 4])
        allocator.advance(10.0 * number)
        allocator.allocate(request, prompt, allocator.lookup(prompt, PLAIN))
        allocator.commit(request.id, prompt)
        blocks = allocator.table(request.id)[:2].tolist()
        view = policy.blocks
        read: list[Any] = [view.priority[block] for block in blocks]
        need(allocator, {*read} == {given.priority},
             f"the policy reads another priority than the request's {given.priority}", read)  # fmt: skip
        tenants.append(view.tenant[blocks[0]])
        allocator.free(request.id, (50.0 + number, 60.0 + number))
        need(allocator, policy.times[-1:] == [10.0 * number], f"advance({10.0 * number}) does not reach the policy",
             f"its last release was called with now={policy.times[-1:]}")  # fmt: skip
        if allocator.takes_future:
            read, future = [view.next_use[block] for block in blocks], [50.0 + number, 60.0 + number]
            need(allocator, read == future, "it says takes_future, and blocks have another next_use than free was "
                 f"given, {future}", read)  # fmt: skip
        if view.last_request is not BlockView.__dataclass_fields__["last_request"].default:
            facts = view.last_request[blocks[0]]
            for name in ("tenant", "session", "category", "hint", "turn", "arrival", "prompt_tokens"):
                found, wanted = getattr(facts, name), getattr(given, name)
                need(allocator, found == wanted, f"the last request's {name} is not the request's",
                     f"{found!r}, not {wanted!r}")  # fmt: skip
    need(allocator, tenants[0] == tenants[2] != tenants[1], "the policy reads tenants 'a', 'b' and 'a' as", tenants)


_KNOWN = (
    RequestInfo(id=RequestId(0), max_total_tokens=5, priority=3, tenant="a", session="s", category="chat", turn=0,
                hint=Hint(continues=0.5), arrival=1.0, prompt_tokens=5),
    RequestInfo(id=RequestId(0), max_total_tokens=5, priority=1, tenant="b", session="t", category="code", turn=2,
                hint=Hint(returns_s=9.0), arrival=2.0, prompt_tokens=5),
    RequestInfo(id=RequestId(0), max_total_tokens=5, priority=7, tenant="a", session="u", category="tool", turn=4,
                hint=Hint(continues=0.0), arrival=3.0, prompt_tokens=5),
)  # fmt: skip


def check_a_prompt_gets_its_room_in_parts(make: Make) -> None:
    """`allocate` with `num_tokens` gives room for so many at least, and `extend` the rest; all of it is found later."""
    traits = traits_of(make)
    for total, first in ((9, 3), (9, 9), (9, 1), (8, 4), (8, 7)):
        allocator = fresh(make, 12, 2, max_model_len=24)
        prompt, what = as_tokens([3, 1, 4, 1, 5, 9, 2, 6, 5][:total]), f"a prompt of {total} tokens, {first} at first"
        allocator.allocate(info(1, total), prompt, allocator.lookup(prompt, PLAIN), first)
        for end in range(first, total + 1):
            allocator.extend(RequestId(1), end)
            blocks = len(allocator.table(RequestId(1)))
            need(allocator, end <= 2 * blocks, what, f"{end} tokens have {blocks} blocks of 2")
            allocator.commit(RequestId(1), prompt[:end])
        need(allocator, allocator.stats().prompt_tokens == total, f"{what}, counts as", allocator.stats())
        allocator.free(RequestId(1))
        num_tokens = allocator.lookup(as_tokens([*prompt, 0]), PLAIN).num_tokens
        need(allocator, not traits.strict or num_tokens >= total // 2 * 2, f"{what}: of it are found", num_tokens)
        _all_have_ended(allocator, "the only one, which got its room in parts")


def check_namespaces_are_kept_apart(make: Make) -> None:
    """What one model, adapter or salt computed is found under the same three alone."""
    named = [Namespace(), Namespace(model="x"), Namespace(adapter="x"), Namespace(salt="x")]
    for owner in named:
        driver = driver_of(make, 16, 2)
        if not driver.traits.shares:
            return
        driver.do_admit([0, 1, 1, 0, 1], owner)
        driver.do_compute(0, 5, extend=True, commit=True)
        for other in named:
            driver.do_lookup([0, 1, 1, 0, 1, 0], other)  # which holds its rules
        driver.do_free(0)


CONTENTS = tuple(
    Namespace(contents=contents) for contents in (
        (), ((2, 4, "a"),), ((2, 4, "b"),), ((3, 5, "a"),), ((2, 3, "a"),), ((0, 7, "a"),), ((6, 7, "a"),),
        ((2, 4, "a"), (5, 6, "b")), ((2, 5, "a"), (2, 4, "b")), ((2, 4, "b"), (5, 6, "b")),
    )
)  # fmt: skip
"""Of a prompt of 7 equal tokens, as placeholders are."""


def check_contents_are_kept_apart(make: Make) -> None:
    """A content's name and place matter to the blocks that it touches and to those below, and to no other: whatever
    the names of blocks are, though all tokens are equal, and in a block that a generated token fills too."""
    for names in (ReferenceHash(), Constant()):
        traits = traits_of(make, collides=collides_often(names), num_blocks=8, block_size=2)
        for owner in CONTENTS if traits.shares else ():
            driver = driver_of(make, 8, 2, names, traits=traits)
            driver.do_admit([7] * 7, owner)
            driver.do_append(0, [7])
            driver.do_compute(0, 8, extend=True, commit=True)
            for other in CONTENTS:
                driver.do_lookup([7] * 9, other)  # which holds its rules


def check_names_of_contents_are_taken_whole(make: Make) -> None:
    """Of 1,500 names of contents none is mistaken for another: had they 16 bits, some 17 pairs would be."""
    allocator = fresh(make, 4096, 2)
    prompt = as_tokens([7, 7, 7])
    for number, name in enumerate(CONTENT_NAMES):
        space = Namespace(contents=((0, 2, name),))
        hit = allocator.lookup(prompt, space)
        need(allocator, not hit.num_tokens, "a content hits another one's block", name)
        allocator.allocate(replace(info(number, 3), namespace=space), prompt, hit)
        allocator.commit(RequestId(number), prompt)
        allocator.free(RequestId(number))


def check_collisions_are_counted(make: Make) -> None:
    """`stats().collisions` counts names that matched other content: where one name hides what was published."""
    driver = driver_of(make, 16, 2, Constant())
    if not driver.traits.shares:
        return
    prompts = [0, 1, 1, 0, 1], [1, 0, 0, 1, 0]
    for prompt in prompts:
        driver.do_admit(prompt, PLAIN)
        driver.do_compute(0, 5, extend=True, commit=True)
        driver.do_free(0)
    found = [driver.do_lookup(prompt, PLAIN).num_tokens for prompt in prompts]
    if min(found) == 0:  # else it needs no names
        collisions = driver.allocator.stats().collisions
        driver.need(collisions > 0, "content is hidden by a name that another has, and no collision is counted",
                    f"prompts {prompts} of one name hit {found} tokens, collisions {collisions}")  # fmt: skip


def check_scattered_tables_are_given_back(make: Make) -> None:
    """Requests that grow by turns to 30 blocks each, and one of 40 where every other block is free: all come back."""
    allocator = fresh(make, 256, 1, max_model_len=96)
    for turn in range(3):
        first = 1000 * turn
        grown = [first + number for number in (1, 2, 3) if _allocate(allocator, info(first + number, 30), _ONE)]
        for length in range(2, 31):
            for request in grown:
                with suppress(OutOfBlocks):  # who reserves more than is needed
                    allocator.extend(RequestId(request), length)
        for request in grown:
            allocator.free(RequestId(request))
        _all_have_ended(allocator, "of which three grew by turns")
        small = [first + number for number in range(10, 900) if _allocate(allocator, info(first + number, 1), _ONE)]
        for request in small[::2]:
            allocator.free(RequestId(request))
        large = [first + 999] if _allocate(allocator, info(first + 999, 40), as_tokens([7] * 40)) else []
        for request in (*large, *small[1::2]):
            allocator.free(RequestId(request))
        _all_have_ended(allocator, "of which one had scattered blocks")


_ONE = as_tokens([1])


def _all_have_ended(allocator: Allocator, which: str) -> None:
    stats = allocator.stats()
    try:
        allocator.check()
        if stats.used_blocks or stats.free_blocks + stats.cached_blocks != stats.num_blocks:
            raise Violation(f"blocks are in use or lost: {stats}")
    except Exception as error:
        raise Violation(f"{type(allocator).__name__}: all requests have ended, {which}: {error}") from error


def check_large_pools(make: Make) -> None:
    """100,000 blocks, prompts of 3,000, blocks of 128 and 512 tokens: what is published is found, and nothing is lost.

    Five of six share two thirds of their prompt, and they are freed in another order than they came.
    """
    traits = traits_of(make)
    for num_blocks, size, blocks in ((100_000, 1, 3000), (100_000, 16, 3000), (2000, 128, 30), (1000, 512, 12)):
        allocator = fresh(make, num_blocks, size, max_model_len=2 * blocks * size)
        what = f"{num_blocks} blocks of {size}"
        shared = [token % 50_000 for token in range(blocks * size * 2 // 3)]
        for number in range(1, 49):
            own = [(number * 7919 + token) % 50_000 for token in range(blocks * size - len(shared))]
            prompt = as_tokens((shared if number % 6 else own[:1]) + own)
            found = allocator.lookup(prompt, PLAIN)
            least = 0 if number % 6 == 0 or number == 1 or not traits.strict else len(shared) // size * size
            need(allocator, least <= found.num_tokens < len(prompt), f"{what}: of {least} published tokens are found",
                 found.num_tokens)  # fmt: skip
            if not _allocate(allocator, info(number, 2 * blocks * size), prompt):
                break
            allocator.extend(RequestId(number), len(prompt) + 1)
            allocator.commit(RequestId(number), prompt)
            table = allocator.table(RequestId(number))
            distinct = len(np.unique(table))
            need(allocator, len(table) * size > len(prompt) and distinct == len(table) and table.min() > 0,
                 f"{what}: {len(prompt) + 1} tokens have", f"{len(table)} blocks, {distinct} distinct")  # fmt: skip
            if number % 3 == 0:
                allocator.free(RequestId(number - 2))
        live = allocator.stats().num_requests
        for request in range(number, 0, -1):
            with suppress(UnknownRequest):
                allocator.free(RequestId(request))
                live -= 1
        need(allocator, not live, f"{what}: num_requests was more than there were, by", live)
        _all_have_ended(allocator, "of thousands of blocks")


def check_what_fits_is_given(make: Make) -> None:
    """At every fill of a pool `allocate` gives what `fits` says it would, and refuses what it says it would not.

    Also beside a hit of 80 blocks, in use or not: 20 more blocks can be had, and no more.
    """
    for used in range(1, 12):
        for wanted in range(1, 13):
            allocator = fresh(make, 6, 2)
            _allocate(allocator, info(1, used), as_tokens([1] * used))
            prompt, request = as_tokens([2] * wanted), info(2, wanted)
            promised = allocator.fits(request, prompt, allocator.lookup(prompt, PLAIN))
            given = _allocate(allocator, request, prompt)
            need(allocator, promised == given, f"{wanted} tokens beside {used} in 6 blocks of 2",
                 f"fits said {promised}, allocate said {given}")  # fmt: skip
    found = [0, 1] * 40
    for in_use, more in ((False, 20), (False, 21), (True, 20), (True, 21)):
        driver = driver_of(make, 100, 1)
        driver.do_admit(found, PLAIN)
        driver.do_compute(0, len(found), extend=True, commit=True)
        if not in_use:
            driver.do_free(0)
        driver.do_admit(found + [9] * more, PLAIN)


def check_a_wrong_victim_is_refused(make: Make) -> None:
    """A policy that names a block it may not: a PluginError that names it."""
    traits = traits_of(make, num_blocks=4)
    if not traits.shares:
        return
    for policy in (bad() for bad in BAD_VICTIMS):
        driver = driver_of(make, 4, 2, policy=policy, traits=traits)
        for prompt, written in (([1, 1, 1], 2), ([0, 1, 0, 1], 4)):
            driver.do_admit(prompt, PLAIN, more=4)
            driver.do_compute(0, written, extend=True, commit=True)
            if written == 2:
                driver.do_free(0)
        _require_refusal(policy, ".victim", partial(driver.allocator.extend, RequestId(2), 8))


def check_wrong_names_are_refused(make: Make) -> None:
    """A scheme that returns no bytes, or the wrong count: a PluginError that names it."""
    traits = traits_of(make)
    if not traits.shares:
        return
    prompt = as_tokens([0, 1, 0, 1, 0])

    def serve(scheme: HashScheme) -> None:
        allocator = fresh(make, 8, 2, scheme)
        _allocate(allocator, info(1), prompt)
        allocator.commit(RequestId(1), prompt)

    for scheme in (bad() for bad in BAD_NAMES):
        _require_refusal(scheme, ".block", partial(serve, scheme))


def _require_refusal(plugin: object, hook: str, work: Callable[[], object]) -> None:
    name = type(plugin).__name__
    try:
        work()
    except PluginError as error:
        if name not in str(error) and hook not in str(error):
            raise Violation(f"the error names neither {name} nor its method: {error}") from error
    except Exception as error:
        raise Violation(f"{name}: PluginError expected, it raised {error!r}") from error
    else:
        raise Violation(f"{name}: a wrong answer was accepted")


def survive(
    history: list[Step],
    num_blocks: int,
    *,
    make: Make,
    block_size: int,
    scheme: Callable[[], HashScheme],
    policy: Callable[[], EvictionPolicy],
) -> None:
    """A history breaks no rule, and at its end no block is in use, what is found is true, and one can have the pool."""
    driver = driver_of(make, num_blocks, block_size, scheme(), policy())
    play(driver, history)
    while driver.live:
        driver.do_compute(0, 99, extend=True, commit=True)
        driver.do_free(0)
    for namespace, tokens in list(driver.prompts):
        driver.do_lookup(list(tokens), namespace)
    stats = driver.allocator.stats()
    driver.need(stats.used_blocks == 0 and stats.num_requests == 0, "blocks are in use though nobody is", stats)
    request = driver.do_admit([9] * driver.traits.capacity, Namespace(salt="refill"))
    driver.need(request is not None, "an idle pool does not free all of its blocks", driver.allocator.stats())


def _random(
    make: Make,
    *,
    examples: int,
    schemes: tuple[Callable[[], HashScheme], ...],
    weights: Mapping[str, float] = SHARING_AHEAD,
    namespaces: Sequence[Namespace] = NAMESPACES,
) -> None:
    """Play random histories over small pools; a failure shows the shortest one."""
    policies: tuple[type[EvictionPolicy], ...] = (SlowLru, SlowFifo, MostRecent)
    for seed in range(examples):
        draw = Random(seed)
        size = draw.choice((1, 1, 2, 2, 3, 16))
        num_blocks = draw.randint(1, 6 if size == 16 else 12)
        run = partial(survive, make=make, block_size=size, scheme=draw.choice(schemes), policy=draw.choice(policies))
        history = random_history(draw, 30, 20 if size == 16 else 4 * size, weights, namespaces)
        fail_shortest(run, history, num_blocks)


def check_random_histories(make: Make) -> None:
    """Every rule after every call of 150 random histories, with a sound hash."""
    _random(make, examples=150, schemes=(ReferenceHash,))


def check_random_histories_under_colliding_hashes(make: Make) -> None:
    """The same with a constant, a 2-bit, an 8-bit and a changing hash: never another prefix's KV."""
    schemes = (Constant, partial(Truncated, 2), partial(Truncated, 8), Fickle)
    _random(make, examples=80, schemes=schemes)


def check_random_histories_with_contents(make: Make) -> None:
    """The same over 20 histories whose prompts have contents, forks and preempted requests among them."""
    _random(make, examples=20, schemes=(ReferenceHash, Constant), namespaces=CONTENTS[1:])


def check_blocks_that_windows_passed_are_unreferenced_soundly(make: Make) -> None:
    """Every rule over 100 histories in which rows call `unref_leading`; one that does nothing there passes."""
    _random(make, examples=80, schemes=(ReferenceHash,), weights=WINDOWED)
    _random(make, examples=20, schemes=(Constant,), weights=WINDOWED)


def check_the_same_history_gives_the_same_events(make: Make) -> None:
    """Two runs of one history: equal tables, equal counts, equal event logs."""

    def run(history: list[Step], num_blocks: int) -> None:
        seen = []
        for _ in range(2):
            driver = driver_of(make, num_blocks, 2)
            play(driver, history)
            seen.append((driver.tables, driver.allocator.stats(), driver.events))
        driver.need(seen[0] == seen[1], "two runs of one history differ", f"\n{seen[0]}\n{seen[1]}")

    for seed in range(10):
        fail_shortest(run, random_history(Random(seed), num_steps=30, longest=8), 5)


allocator_checks, allocator_large_checks = checks_of(globals()), large_checks_of(globals())
