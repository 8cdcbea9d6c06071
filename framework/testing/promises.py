"""Checks of what an allocator promises an engine: `fits`, `promise` and `withdraw`, `commit`, `reset`, `facts`."""

from __future__ import annotations

from collections.abc import Callable

from framework.errors import FrameworkError, InvalidArgument, OutOfBlocks, StaleHit
from framework.interfaces.allocator import Allocator
from framework.testing.driver import Driver, Violation
from framework.testing.facts import require_plain_facts
from framework.testing.subjects import PLAIN, Make, driver_of, fresh, info
from framework.types import RequestId, RequestInfo, TokenArray, as_tokens

FIRST, SECOND = RequestId(1), RequestId(2)
PROMPT = (0, 1, 1, 0, 1)


def check_what_fits_is_given(make: Make) -> None:
    """At every fill of a pool `allocate` gives what `fits` says it would, and refuses what it says it would not.

    Also beside a hit of 80 blocks, in use or not: 20 more blocks can be had, and no more.
    """
    for held in range(1, 12):
        for wanted in range(1, 13):
            allocator = fresh(make, 6, 2)
            _allocate(allocator, info(1, held), as_tokens([1] * held))
            prompt, request = as_tokens([2] * wanted), info(2, wanted)
            hit = allocator.lookup(prompt, PLAIN)
            promised = allocator.fits(request, prompt, hit)
            given = _allocate(allocator, request, prompt)
            if promised != given:
                raise Violation(
                    f"{_name(allocator)}: fits said {promised} of {wanted} tokens beside {held} in 6 blocks of 2, "
                    f"allocate said {given}"
                )
    found = [0, 1] * 40
    for in_use, more in ((False, 20), (False, 21), (True, 20), (True, 21)):
        driver = driver_of(make, 100, 1)
        driver.do_admit(found, PLAIN)
        driver.do_compute(0, len(found), extend=True, commit=True)
        if not in_use:
            driver.do_free(0)
        driver.do_admit(found + [9] * more, PLAIN)


def _allocate(allocator: Allocator, request: RequestInfo, prompt: TokenArray) -> bool:
    hit = allocator.lookup(prompt, PLAIN)
    return not _raises(OutOfBlocks, lambda: allocator.allocate(request, prompt, hit))


def _raises(error: type[FrameworkError], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False


def check_changed_tokens_are_refused(make: Make) -> None:
    """Tokens known by a commit may not differ in a later one: InvalidArgument, and nothing changed, where it shares.

    An allocator that shares no prefix need not know the tokens.
    """
    for at in range(4):
        driver = driver_of(make, 8, 2)
        driver.do_admit([0, 1, 1, 0], PLAIN, more=4)
        driver.do_compute(0, 4, extend=True, commit=True)
        driver.do_append(0, [1, 1])
        changed = [token if index != at else 1 - token for index, token in enumerate([0, 1, 1, 0])]
        _refuses(driver, [*changed, 1, 1], f"token {at} of 4 committed ones was changed")
        driver.do_compute(0, 2, extend=True, commit=True)
    driver = driver_of(make, 8, 2)
    driver.do_admit([0, 1, 1, 0], PLAIN)
    _refuses(driver, [0, 0], "a token of the prompt was changed before its first commit")


def _refuses(driver: Driver, tokens: list[int], what: str) -> None:
    if not driver.traits.shares:
        return
    request = RequestId(1)
    if len(tokens) > len(driver.tables[1]) * driver.size:
        driver.extend(1, len(tokens))
    text = f"commit(request 1, {tokens})"
    error = driver.call(text, lambda: driver.allocator.commit(request, as_tokens(tokens)), InvalidArgument)
    driver.need(isinstance(error, InvalidArgument), f"commit must refuse: {what}", repr(error))
    driver.after()


def check_a_promise_is_kept(make: Make) -> None:
    """A promised block is shared by who is admitted in the same step, and stays found once it is committed."""
    allocator, prompt, shared = _promised(make)
    if not shared:
        return
    for request in (FIRST, SECOND):
        allocator.extend(request, len(prompt))
    _need(allocator, allocator.table(FIRST)[: len(shared)].tolist() == shared, "a promised block was copied away")
    for request in (FIRST, SECOND):
        allocator.commit(request, prompt)
        allocator.check()
    for request in (FIRST, SECOND):
        allocator.free(request)
    allocator.check()
    _need(allocator, allocator.lookup(prompt, PLAIN).num_tokens >= 4, "a kept promise is not found")


def check_a_withdrawn_promise_is_gone(make: Make) -> None:
    """After `withdraw` nothing finds the block, whoever shares it is named, and every block comes back.

    A hit from before it is stale.
    """
    for relied in (False, True):
        allocator, prompt, shared = _promised(make, relied=relied)
        if not shared:
            return
        hit = allocator.lookup(prompt, PLAIN)
        broken = [int(request) for request in allocator.withdraw(FIRST)]
        _need(allocator, broken == ([2] if relied else []), "withdraw must name who relies on the promise", broken)
        _need(allocator, not allocator.lookup(prompt, PLAIN).num_tokens, "what was withdrawn is found")
        stale = _raises(StaleHit, lambda: allocator.allocate(info(3, 8), prompt, hit))  # noqa: B023  called at once
        _need(allocator, stale, "a hit of what was withdrawn is taken", hit)
        if relied:
            for name, wrong in (("commit", lambda: allocator.commit(SECOND, prompt)),  # noqa: B023
                                ("fork", lambda: allocator.fork(SECOND, info(3, 8), 1))):  # noqa: B023  # fmt: skip
                refused = _raises(InvalidArgument, wrong)
                _need(allocator, refused, f"{name} of a request whose blocks nobody will compute is taken")
            allocator.free(SECOND)
        allocator.extend(FIRST, len(prompt))
        allocator.commit(FIRST, prompt)
        allocator.free(FIRST)
        allocator.check()
        stats = allocator.stats()
        _need(allocator, not stats.used_blocks, "blocks are in use though nobody is", stats)


def check_discarded_content_is_not_found(make: Make) -> None:
    """Nothing of a reset request's table is found, also once who shares it has ended; what is computed anew is."""
    for passed in (0, 2):
        allocator, prompt, longer = fresh(make, 12, 2), as_tokens(PROMPT), as_tokens([*PROMPT, 1, 1, 0])
        for request, tokens in ((FIRST, prompt), (SECOND, longer)):
            if request == SECOND and not allocator.lookup(longer, PLAIN).num_tokens:
                return  # it shares nothing
            _allocate(allocator, info(request, 10), tokens)
            allocator.extend(request, len(tokens))
            allocator.commit(request, tokens)
        if passed:
            allocator.unref_leading(FIRST, passed)
        allocator.reset(FIRST)
        allocator.check()
        _need(allocator, not allocator.lookup(longer, PLAIN).num_tokens, "what was discarded is found")
        allocator.free(FIRST)
        grown = as_tokens([*longer.tolist(), 0, 1])
        allocator.extend(SECOND, len(grown))
        allocator.commit(SECOND, grown)
        allocator.check()
        allocator.free(SECOND)
        allocator.check()
        found = allocator.lookup(longer, PLAIN).num_tokens
        _need(allocator, not found, "what shared a discarded block is found below it", found)
        third = RequestId(3)
        _allocate(allocator, info(third, 10), prompt)
        allocator.extend(third, len(prompt))
        allocator.commit(third, prompt)
        allocator.free(third)
        allocator.check()
        stats = allocator.stats()
        _need(allocator, not stats.used_blocks, "blocks are in use though nobody is", stats)


def check_other_tokens_cannot_be_promised(make: Make) -> None:
    """Other tokens than those known cannot be promised: InvalidArgument. Generated ones can."""
    allocator, prompt, shared = _promised(make, relied=False)
    if not shared:
        return
    allocator.extend(FIRST, 8)
    other = as_tokens([*PROMPT[:-1], 1 - PROMPT[-1], 1, 1, 0])
    refused = _raises(InvalidArgument, lambda: allocator.promise(FIRST, other))
    _need(allocator, refused, "a promise of other tokens was taken", f"{prompt.tolist()} are known")
    grown = as_tokens([*PROMPT, 1, 1, 0])
    allocator.promise(FIRST, grown)
    allocator.commit(FIRST, grown)
    allocator.check()


def _promised(make: Make, *, relied: bool = True) -> tuple[Allocator, TokenArray, list[int]]:
    """An allocator whose first request promised 4 tokens, and the blocks of them that a second one would share.

    With `relied` the second one is admitted. No blocks: it shares nothing within a step, as the contract allows.
    """
    allocator, prompt = fresh(make, 12, 2), as_tokens(PROMPT)
    _allocate(allocator, info(1, 8), prompt)
    allocator.promise(FIRST, prompt[:4])
    hit = allocator.lookup(prompt, PLAIN)
    shared = [int(block) for block in hit.blocks]
    _need(allocator, shared == allocator.table(FIRST)[: len(shared)].tolist(), "a hit names no promised block", hit)
    if relied and shared:
        allocator.allocate(info(2, 8), prompt, hit)
        _need(allocator, allocator.table(SECOND)[: len(shared)].tolist() == shared, "a promised block is not shared")
    return allocator, prompt, shared


def check_facts_are_plain(make: Make) -> None:
    """`facts` gives names to texts and finite numbers at any time, and changes nothing."""
    driver = driver_of(make, 8, 2)
    require_plain_facts("allocator", driver.allocator)
    driver.do_admit([0, 1, 1, 0], PLAIN)
    driver.do_compute(0, 4, extend=True, commit=True)
    before = driver.snapshot()
    require_plain_facts("allocator", driver.allocator)
    driver.need(driver.snapshot() == before, "facts changed something")
    driver.do_free(0)
    require_plain_facts("allocator", driver.allocator)


def _need(allocator: Allocator, holds: bool, rule: str, seen: object = "") -> None:
    if not holds:
        raise Violation(f"{_name(allocator)}: {rule}" + (f": {seen}" if seen != "" else ""))


def _name(allocator: Allocator) -> str:
    return type(allocator).__name__
