"""Checks that an allocator contains the plugins inside it, whatever they do. Part of `allocator_checks`.

An error must name what failed: the plugin's class, or its method where the allocator puts a class of its own around it.
"""

from __future__ import annotations

from functools import partial
from random import Random

from framework.errors import PluginError
from framework.testing.adversarial import Constant, Fickle, RaisesInHook, Truncated, bad_names, bad_victims
from framework.testing.driver import Violation
from framework.testing.histories import Step, fail_shortest, play, random_history
from framework.testing.subjects import PLAIN, SALTED, Make, driver_of, fresh, info, traits_of
from framework.types import RequestId, as_tokens


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
