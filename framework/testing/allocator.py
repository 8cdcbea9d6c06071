"""Conformance kit of allocators.

`allocator_checks` are plain functions `check(make)`, cheap first. `make`, mostly the class itself, builds a fresh
allocator from those of `num_blocks`, `block_size`, `max_model_len`, `hash` and `eviction` that it takes; bind options
of its own with `functools.partial`. Rules about sharing bind only allocators that are seen to share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from framework.errors import OutOfBlocks, PluginError
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.testing.adversarial import (
    Constant,
    Fickle,
    MostRecent,
    RaisesInHook,
    ReferenceHash,
    Truncated,
    bad_names,
    bad_victims,
)
from framework.testing.driver import Driver, Traits, Violation
from framework.testing.histories import WEIGHTS, WINDOWED, Step, fail_shortest, play, random_history
from framework.testing.oracles.eviction import SlowFifo, SlowLru
from framework.testing.promises import (
    check_a_promise_is_kept,
    check_a_withdrawn_promise_is_gone,
    check_changed_tokens_are_refused,
    check_discarded_content_is_not_found,
    check_facts_are_plain,
    check_other_tokens_cannot_be_promised,
    check_what_fits_is_given,
)
from framework.testing.subjects import PLAIN, SALTED, Make, collides_often, driver_of, fresh, info, traits_of
from framework.types import Namespace, RequestId, as_tokens


def check_a_bad_policy_is_named_and_contained(make: Make) -> None:
    """A policy that names a block it may not, or raises: a PluginError that names it, and nothing changed."""
    traits = traits_of(make, num_blocks=4)
    if not traits.shares:
        return
    for policy in bad_victims():
        driver = driver_of(make, 4, 2, policy=policy, traits=traits)
        for prompt, written in (([1, 1, 1], 2), ([0, 1, 0, 1], 4)):
            driver.do_admit(prompt, PLAIN, more=4)
            driver.do_compute(0, written, extend=True, commit=True)
            if written == 2:
                driver.do_free(0)
        name = type(policy).__name__
        error = driver.call("extend(request 2, 8)", partial(driver.allocator.extend, RequestId(2), 8), PluginError)
        driver.need(isinstance(error, PluginError), f"{name}: a wrong victim was accepted", driver.allocator.stats())
        named = name in str(error) or ".victim" in str(error)
        driver.need(named, "the error names neither the policy nor its method", f"{name}: {error}")
        driver.after()


def check_a_failing_policy_leaves_sound_metadata(make: Make) -> None:
    """A policy whose k-th callback raises: a PluginError, no half-done call, sound block metadata."""
    traits = traits_of(make, num_blocks=6)
    if not traits.shares:
        return
    for seed, hook in enumerate(("admit", "hit", "pin", "release", "evicted") * 8):

        def run(history: list[Step], hook: str = hook, after: int = seed // 5) -> None:
            driver = driver_of(make, 6, 2, policy=RaisesInHook(hook, after), traits=traits)
            driver.tolerates = PluginError
            play(driver, history)

        fail_shortest(run, random_history(Random(seed), num_steps=30, longest=8))


def check_a_failing_release_loses_no_copy(make: Make) -> None:
    """The last user of a published block writes in its middle: a policy that will not take it back spoils no table."""
    traits = traits_of(make, num_blocks=6)
    if not traits.shares:
        return
    last_user: list[Step] = [
        ("admit", [0, 1, 0, 1], 0),
        ("compute", 0, 9, True, True),
        ("fork", 0, 1),
        ("free", 0),
        ("append", 0, [1]),
        ("compute", 0, 9, True, True),
    ]
    for after in range(3):
        driver = driver_of(make, 6, 2, policy=RaisesInHook("release", after), traits=traits)
        driver.tolerates = PluginError
        play(driver, last_user)


def check_a_bad_hash_is_named_and_contained(make: Make) -> None:
    """A scheme that returns no bytes, the wrong count, or raises: PluginError with its name, nothing changed."""
    traits = traits_of(make)
    if not traits.shares:
        return
    prompt = as_tokens([0, 1, 0, 1, 0])
    for scheme in bad_names():
        allocator = fresh(make, 8, 2, scheme)
        name, before = type(scheme).__name__, allocator.stats()
        try:
            allocator.allocate(info(1), prompt, allocator.lookup(prompt, PLAIN))
            allocator.commit(RequestId(1), prompt)
        except PluginError as error:
            if not any(named in str(error) for named in (name, ".root", ".block")):
                raise Violation(f"the error names neither the scheme {name} nor its method: {error}") from error
        except Exception as error:
            raise Violation(f"{name}: PluginError expected, it raised {error!r}") from error
        else:
            raise Violation(f"{name}: names that are no names were accepted")
        allocator.check()
        if allocator.stats().num_requests == 0 and allocator.stats() != before:
            raise Violation(f"{name}: a failed call changed the counts: {before}, {allocator.stats()}")


def check_a_scheme_that_lies_costs_misses_only(make: Make) -> None:
    """Constant, truncated and per-call random names never serve another prefix's KV."""
    for scheme in (Constant, partial(Truncated, 1), Fickle):
        driver = driver_of(make, 6, 1, scheme())
        for prompt in ([0, 1, 1], [1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 1]):
            driver.do_admit(prompt, PLAIN)
            driver.do_compute(0, 3, extend=True, commit=True)
            for other in ([0, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1]):
                driver.do_lookup(other, PLAIN)
                driver.do_lookup(other, SALTED)
            driver.do_free(0)


# Cheap and pointed


def check_a_fresh_pool_is_all_free(make: Make) -> None:
    """Nothing is used or cached, check() is content, an unseen prompt hits nothing."""
    driver = driver_of(make, 8, 2)
    driver.after()
    stats = driver.allocator.stats()
    driver.need(stats.free_blocks == 8, "a fresh pool is not all free", stats)
    driver.need(driver.do_lookup([0, 1, 0], PLAIN).num_tokens == 0, "a fresh pool hits")
    driver.need(driver.traits.capacity > 0, "a fresh pool of 8 blocks takes no request at all")


def check_the_null_block_is_never_handed_out(make: Make) -> None:
    """Fill the pool to the last block: ids are 1 to num_blocks, each once."""
    driver = driver_of(make, 5, 1)
    while driver.do_admit([1], PLAIN) is not None:
        pass
    driver.need(bool(driver.live), "an empty pool of 5 blocks refuses one token")


def check_a_second_free_is_an_error(make: Make) -> None:
    """Freeing twice, or a request that never was, raises UnknownRequest and harms nobody."""
    driver = driver_of(make, 8, 2)
    driver.do_admit([0, 1, 0], PLAIN)
    driver.do_admit([1, 1, 0], PLAIN)
    driver.do_free(0)
    for kind in ("free", "extend", "commit", "table", "fork"):
        driver.do_wrong(kind, 0)
    driver.do_admit([0, 0, 0], PLAIN)


def check_wrong_calls_raise_and_change_nothing(make: Make) -> None:
    """A duplicate id, a commit beyond the room or backwards, negative numbers: the right error, and nothing changed."""
    driver = driver_of(make, 8, 2)
    driver.do_admit([0, 1, 0], PLAIN)
    driver.do_compute(0, 3, extend=True, commit=True)
    for kind in ("duplicate", "fork onto itself", "commit too far", "commit less", "fork too far", "extend below 0"):
        driver.do_wrong(kind, 0)


def check_a_hit_leaves_a_token_to_compute(make: Make) -> None:
    """A prompt whose every block is cached still has one token to compute."""
    for size in (1, 2, 3):
        driver = driver_of(make, 8, size)
        prompt = [0, 1] * size
        driver.do_admit(prompt, PLAIN)
        driver.do_compute(0, len(prompt), extend=True, commit=True)
        driver.do_lookup(prompt, PLAIN)
        driver.do_admit(prompt, PLAIN)
        driver.do_free(0)
        driver.do_free(0)
        for length in range(len(prompt) + 2):
            driver.do_lookup([*prompt, 1][:length], PLAIN)


def check_nothing_is_found_before_it_is_committed(make: Make) -> None:
    """Between allocate and commit a block has no KV: a second request may not hit it."""
    driver = driver_of(make, 8, 2)
    prompt = [0, 1, 1, 0, 1]
    driver.do_admit(prompt, PLAIN)
    driver.do_lookup(prompt, PLAIN)
    driver.do_compute(0, 2, extend=True, commit=True)
    driver.do_lookup(prompt, PLAIN)
    driver.do_compute(0, 1, extend=True, commit=True)
    driver.do_lookup(prompt, PLAIN)
    driver.do_free(0)
    driver.do_lookup(prompt, PLAIN)


def check_namespaces_never_share(make: Make) -> None:
    """Another model, adapter or salt is other KV, under a constant hash too."""
    others = (SALTED, Namespace(adapter="x"), Namespace(model="x"), Namespace("x", "", ""), Namespace("", "x", ""))
    for scheme in (ReferenceHash, Constant):
        driver = driver_of(make, 8, 2, scheme())
        driver.do_admit([0, 1, 0, 1, 0], PLAIN)
        driver.do_compute(0, 5, extend=True, commit=True)
        for other in others:
            driver.do_lookup([0, 1, 0, 1, 0], other)
        driver.do_free(0)
        driver.do_admit([0, 1, 0, 1, 0], SALTED)


def check_a_fork_writes_nothing_its_sibling_reads(make: Make) -> None:
    """Parent and child part in mid-block; each keeps its own tokens."""
    for back in range(4):
        driver = driver_of(make, 12, 2)
        driver.do_admit([0, 1, 0], PLAIN)
        driver.do_compute(0, 3, extend=True, commit=True)
        driver.do_fork(0, back)
        for pick, token in ((0, 0), (1, 1)):
            driver.do_append(pick, [token, token])
            driver.do_compute(pick, 2, extend=True, commit=True)
        driver.do_free(0)
        driver.do_append(0, [0])
        driver.do_compute(0, 9, extend=True, commit=True)


def check_a_published_block_is_never_written(make: Make) -> None:
    """A fork into a published block outlives its parent: though its only user, it must copy before it writes."""
    for back in (1, 2, 3):
        driver = driver_of(make, 8, 2)
        driver.do_admit([0, 1, 0, 1], PLAIN)
        driver.do_compute(0, 4, extend=True, commit=True)
        driver.do_fork(0, back)
        driver.do_free(0)
        driver.do_append(0, [0, 0])
        driver.do_compute(0, 9, extend=True, commit=True)
        driver.do_lookup([0, 1, 0, 1, 0], PLAIN)


def check_refusal_changes_nothing(make: Make) -> None:
    """OutOfBlocks from allocate, extend and fork leaves tables, counts and hits as they were."""
    driver = driver_of(make, 6, 2)
    driver.do_admit([0, 1, 0, 1], PLAIN, more=4)
    driver.do_compute(0, 3, extend=True, commit=True)
    driver.do_admit([1, 1, 1], PLAIN)
    driver.do_admit([0, 1, 0, 1, 1, 1, 1], PLAIN)
    driver.do_fork(0, 0)
    for pick in range(3):
        driver.do_append(pick, [0, 0, 1, 1, 0, 1])
        driver.do_compute(pick, 9, extend=True, commit=True)


def check_appending_many_equals_appending_one_by_one(make: Make) -> None:
    """extend by k at once and k times by one give tables of the same length and the same counts."""
    for size in (1, 2, 3, 16):
        many, single = driver_of(make, 24, size), driver_of(make, 24, size)
        for driver, count in ((many, 9), (single, 1)):
            driver.do_admit([0], PLAIN, more=9)
            driver.do_append(0, [1] * 9)
            while driver.live[1].written < 10:
                driver.do_compute(0, count, extend=True, commit=True)
        same = len(many.tables[1]) == len(single.tables[1])
        many.need(same, "append(k) differs from k appends", f"{many.tables} {single.tables}")
        stats = [replace(driver.allocator.stats(), collisions=0) for driver in (many, single)]
        many.need(stats[0] == stats[1], "append(k) and k appends leave different counts", stats)


def check_a_stale_hit_is_refused_or_still_true(make: Make) -> None:
    """A hit whose blocks were evicted since: StaleHit, and nothing changed; nor is it found again."""
    driver = driver_of(make, 3, 2)
    driver.do_admit([0, 1, 0], PLAIN)
    driver.do_compute(0, 3, extend=True, commit=True)
    driver.do_free(0)
    hit = driver.do_lookup([0, 1, 0], PLAIN)
    driver.do_admit([1] * 6, PLAIN)
    driver.do_compute(0, 6, extend=True, commit=True)
    driver.do_free(0)
    driver.do_lookup([0, 1, 0], PLAIN)
    driver.do_admit([0, 1, 0], PLAIN, hit=hit)
    for grows in (1, 3, 5, 0):  # by a block, by two, or by a fork's copy: those of the hit are evicted for it
        driver = driver_of(make, 4, 2)
        for prompt, namespace in (([0, 1, 0, 1], PLAIN), ([0, 1], SALTED)):
            driver.do_admit(prompt, namespace)
            driver.do_compute(0, len(prompt), extend=True, commit=True)
            driver.do_free(0)
        driver.do_admit([1], SALTED, more=5)
        driver.do_compute(0, 1, extend=True, commit=True)
        hit = driver.do_lookup([0, 1, 0, 1, 0], PLAIN)
        if grows:
            driver.extend(min(driver.live), 1 + grows)
        else:
            driver.do_fork(0, 0)
        driver.do_admit([0, 1, 0, 1, 0][: hit.num_tokens + 1], PLAIN, hit=hit)


def check_reset_forgets_all_content(make: Make) -> None:
    """After new weights nothing old is found, not even what a live request finishes later."""
    driver = driver_of(make, 8, 2)
    prompt = [0, 1, 1, 0, 1, 1]
    driver.do_admit(prompt, PLAIN)
    driver.do_compute(0, 3, extend=True, commit=True)
    driver.do_reset()
    driver.do_lookup(prompt, PLAIN)
    driver.do_compute(0, 3, extend=True, commit=True)
    driver.do_lookup(prompt, PLAIN)
    driver.do_free(0)
    driver.do_lookup(prompt, PLAIN)
    driver.do_admit(prompt, PLAIN)
    driver.do_compute(0, 6, extend=True, commit=True)
    driver.do_lookup(prompt, PLAIN)


def check_content_outlives_either_of_two_owners(make: Make) -> None:
    """Two requests compute one prefix at once; whichever ends first, it stays findable."""
    for first in (0, 1):
        driver = driver_of(make, 8, 2)
        prompt = [0, 1, 1, 0, 1]
        for _ in range(2):
            driver.do_admit(prompt, PLAIN)
        for pick in (0, 1):
            driver.do_compute(pick, 5, extend=True, commit=True)
        driver.do_free(first)
        for _ in range(5):
            driver.do_admit([1, 1], SALTED)
        found = driver.do_lookup(prompt, PLAIN).num_tokens
        driver.need(not driver.traits.shares or found == 4, "a live request's content is not found", found)


def check_every_block_comes_back(make: Make) -> None:
    """When all requests have ended no block is in use, and one new request can have them all."""
    driver = driver_of(make, 8, 2)
    _drain_and_refill(driver, busy=True)


def _drain_and_refill(driver: Driver, *, busy: bool = False) -> None:
    if busy:
        for start in (0, 1):
            driver.do_admit([start, 1, 0, 1, 0], PLAIN)
            driver.do_compute(start, 5, extend=True, commit=True)
        driver.do_fork(0, 1)
        driver.do_append(0, [1, 1])
        driver.do_compute(0, 2, extend=True, commit=True)
    while driver.live:
        driver.do_free(0)
    stats = driver.allocator.stats()
    driver.need(stats.used_blocks == 0 and stats.num_requests == 0, "blocks are in use though nobody is", stats)
    whole = driver.traits.capacity
    request = driver.do_admit([9] * whole, Namespace(salt="refill"))
    driver.need(request is not None, "an idle pool does not free all of its blocks", driver.allocator.stats())


def check_max_request_tokens_is_true(make: Make) -> None:
    """Up to `max_request_tokens` an empty pool has room; for more it has none."""
    for tokens in range(1, 13):
        allocator, prompt = fresh(make, 4, 2), as_tokens([1] * tokens)
        request = info(1, tokens)
        promised = tokens <= GuardedAllocator(allocator).max_request_tokens
        try:
            allocator.allocate(request, prompt, allocator.lookup(prompt, PLAIN))
        except OutOfBlocks:
            given = False
        else:
            given = True
        if promised != given:
            raise Violation(f"{tokens} tokens in 4 blocks of 2: max_request_tokens says {promised}, the pool {given}")


def check_listening_ends(make: Make) -> None:
    """listen(None) stops the events."""
    driver = driver_of(make, 4, 1)
    driver.allocator.listen(None)
    driver.do_admit([0, 1], PLAIN)
    driver.do_compute(0, 2, extend=True, commit=True)
    driver.need(not driver.events, "events were sent to nobody", driver.events)


# Random histories


def _random(
    make: Make,
    *,
    examples: int,
    schemes: tuple[Callable[[], HashScheme], ...],
    weights: Mapping[str, float] = WEIGHTS,
) -> None:
    """Play random histories over small pools; a failure shows the shortest one."""
    known: dict[Any, Traits] = {}
    policies: tuple[type[EvictionPolicy], ...] = (SlowLru, SlowFifo, MostRecent)
    for seed in range(examples):
        draw = Random(seed)
        size = draw.choice((1, 1, 2, 2, 3, 16))
        num_blocks = draw.randint(1, 6 if size == 16 else 12)
        scheme, policy = draw.choice(schemes), draw.choice(policies)
        key = (num_blocks, size)
        if key not in known:
            collides = collides_often(scheme())
            known[key] = traits_of(make, collides=collides, num_blocks=num_blocks, block_size=size)

        def run(
            history: list[Step],
            num_blocks: int = num_blocks,
            size: int = size,
            scheme: Callable[[], HashScheme] = scheme,
            policy: type[EvictionPolicy] = policy,
        ) -> None:
            driver = driver_of(make, num_blocks, size, scheme(), policy(), known[num_blocks, size])
            play(driver, history)
            _drain_and_refill(driver)

        fail_shortest(run, random_history(draw, 30, 20 if size == 16 else 4 * size, weights))


def check_random_histories(make: Make) -> None:
    """Every rule after every call of 150 random histories, with a sound hash."""
    _random(make, examples=150, schemes=(ReferenceHash,))


def check_random_histories_under_colliding_hashes(make: Make) -> None:
    """The same with a constant, a 2-bit and an 8-bit hash: never another prefix's KV."""
    schemes = (Constant, partial(Truncated, 2), partial(Truncated, 8))
    _random(make, examples=80, schemes=schemes)


def check_blocks_that_windows_passed_are_unreferenced_soundly(make: Make) -> None:
    """Every rule over 100 histories in which rows call `unref_leading`; one that does nothing there passes."""
    _random(make, examples=80, schemes=(ReferenceHash,), weights=WINDOWED)
    _random(make, examples=20, schemes=(Constant,), weights=WINDOWED)


def check_the_same_history_gives_the_same_events(make: Make) -> None:
    """Two runs of one history: equal tables, equal counts, equal event logs."""
    traits = traits_of(make, num_blocks=5)

    def run(history: list[Step]) -> None:
        seen = []
        for _ in range(2):
            driver = driver_of(make, 5, 2, traits=traits)
            play(driver, history)
            seen.append((driver.tables, driver.allocator.stats(), driver.events))
        driver.need(seen[0] == seen[1], "two runs of one history differ", f"\n{seen[0]}\n{seen[1]}")

    for seed in range(10):
        fail_shortest(run, random_history(Random(seed), num_steps=30, longest=8))


allocator_checks = (
    check_a_fresh_pool_is_all_free,
    check_the_null_block_is_never_handed_out,
    check_a_second_free_is_an_error,
    check_wrong_calls_raise_and_change_nothing,
    check_a_hit_leaves_a_token_to_compute,
    check_nothing_is_found_before_it_is_committed,
    check_namespaces_never_share,
    check_a_fork_writes_nothing_its_sibling_reads,
    check_a_published_block_is_never_written,
    check_refusal_changes_nothing,
    check_appending_many_equals_appending_one_by_one,
    check_a_stale_hit_is_refused_or_still_true,
    check_reset_forgets_all_content,
    check_content_outlives_either_of_two_owners,
    check_every_block_comes_back,
    check_max_request_tokens_is_true,
    check_what_fits_is_given,
    check_changed_tokens_are_refused,
    check_a_promise_is_kept,
    check_a_withdrawn_promise_is_gone,
    check_discarded_content_is_not_found,
    check_other_tokens_cannot_be_promised,
    check_facts_are_plain,
    check_listening_ends,
    check_a_bad_policy_is_named_and_contained,
    check_a_failing_policy_leaves_sound_metadata,
    check_a_failing_release_loses_no_copy,
    check_a_bad_hash_is_named_and_contained,
    check_a_scheme_that_lies_costs_misses_only,
    check_random_histories,
    check_random_histories_under_colliding_hashes,
    check_blocks_that_windows_passed_are_unreferenced_soundly,
    check_the_same_history_gives_the_same_events,
)
