"""Any history of calls, right and wrong, over every installed allocator, policy and hash.

`Driver` is the oracle: it learns only what the pool would see and checks every rule after every call. Here Hypothesis
chooses the calls and shrinks what fails; pools, prompts and alphabets are small, so that everything collides.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.metadata import entry_points
from itertools import product

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from framework.errors import PluginError
from framework.testing import adversarial
from framework.testing.driver import Contained, Driver, Violation
from framework.testing.histories import NAMESPACES, WRONG_CALLS, branch
from framework.testing.oracles.allocator import SlowAllocator
from framework.testing.subjects import collides_often, driver_of, traits_of
from framework.types import as_tokens

ALLOCATORS = {point.name: point for point in entry_points(group="framework.allocator")}
POLICIES = {point.name: point for point in entry_points(group="framework.eviction")}
SCHEMES = {point.name: point for point in entry_points(group="framework.hash")}

WEAK = {"constant": adversarial.Constant, "2 bits": partial(adversarial.Truncated, 2), "8 bits": adversarial.Truncated,
        "fickle": adversarial.Fickle}  # fmt: skip
HOSTILE = {
    "mru": adversarial.MostRecent,
    **{f"raises in {hook}": partial(adversarial.RaisesInHook, hook, 2) for hook in ("admit", "hit", "pin", "evicted")},
    "names pinned": adversarial.NamesPinned,
    "names none": adversarial.NamesNone,
}

LONGEST = [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]
stems = st.one_of(
    st.integers(0, len(LONGEST)).map(lambda length: LONGEST[:length]),
    st.tuples(st.integers(0, 6), st.lists(st.integers(0, 1), max_size=3)).map(lambda t: [*LONGEST[: t[0]], *t[1]]),
    st.lists(st.integers(0, 1), max_size=7),
)
spaces = st.sampled_from([NAMESPACES[0], NAMESPACES[0], NAMESPACES[1]])
picks = st.integers(0, 3)


class Machine(RuleBasedStateMachine):
    """One allocator under one policy and one hash. A subclass says how the allocator is made."""

    make = None

    @initialize(
        num_blocks=st.integers(1, 10),
        block_size=st.sampled_from([1, 2, 3, 1, 2, 3, 16]),
        scheme=st.sampled_from([*SCHEMES, *SCHEMES, *WEAK]),
        policy=st.sampled_from([*POLICIES, *POLICIES, *POLICIES, *HOSTILE]),
    )
    def begin(self, num_blocks, block_size, scheme, policy):
        make = type(self).make
        make_scheme = WEAK[scheme] if scheme in WEAK else SCHEMES[scheme].load()
        make_policy = HOSTILE[policy] if policy in HOSTILE else POLICIES[policy].load()
        traits = traits_of(make, collides=collides_often(make_scheme()), num_blocks=num_blocks, block_size=block_size)
        self.driver: Driver = driver_of(make, num_blocks, block_size, make_scheme(), make_policy(), traits)
        self.driver.tolerates = PluginError if policy in HOSTILE and policy != "mru" else None
        self.remembered = None

    def step(self, method, *given, **named):
        with suppress(Contained):
            return method(*given, **named)

    @rule(prompt=stems, namespace=spaces)
    def submit(self, prompt, namespace):
        self.step(self.driver.do_admit, prompt, namespace)

    @rule(prompt=stems, namespace=spaces)
    def submit_and_compute(self, prompt, namespace):
        request = self.step(self.driver.do_admit, prompt, namespace)
        if request is not None:
            at = sorted(self.driver.live).index(request)
            self.step(self.driver.do_compute, at, 99, extend=True, commit=True)

    @rule(prompt=stems, namespace=spaces)
    def submit_and_finish(self, prompt, namespace):
        self.serve(prompt, namespace)

    def serve(self, prompt, namespace):
        """One request from beginning to end."""
        request = self.step(self.driver.do_admit, prompt, namespace)
        if request is not None:
            at = sorted(self.driver.live).index(request)
            self.step(self.driver.do_compute, at, 99, extend=True, commit=True)
            self.step(self.driver.do_free, at)

    @rule(pick=picks, count=st.integers(1, 9), extend=st.booleans(), commit=st.booleans())
    def compute(self, pick, count, extend, commit):
        self.step(self.driver.do_compute, pick, count, extend, commit)

    @rule(pick=picks, more=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def append_and_compute(self, pick, more):
        self.driver.do_append(pick, more)
        self.step(self.driver.do_compute, pick, 99, extend=False, commit=True)

    @rule(pick=picks, back=st.integers(0, 4))
    def fork(self, pick, back):
        self.step(self.driver.do_fork, pick, back)

    @rule(pick=picks, back=st.integers(0, 4), end_parent=st.booleans())
    def fork_and_part(self, pick, back, end_parent):
        self.step(branch, self.driver, pick, back, end_parent)

    @rule(prompt=stems, back=st.integers(1, 3))
    def part_from_a_parent_that_published(self, prompt, back):
        request = self.step(self.driver.do_admit, prompt, NAMESPACES[0])
        if request in self.driver.live:
            at = sorted(self.driver.live).index(request)
            self.step(self.driver.do_compute, at, 99, extend=True, commit=True)
            self.step(branch, self.driver, at, back, True)

    @rule(pick=picks, count=st.integers(0, 4))
    def let_the_windows_pass(self, pick, count):
        self.step(self.driver.do_unref_leading, pick, count)

    @rule(pick=picks)
    def free(self, pick):
        self.step(self.driver.do_free, pick)

    @rule(pick=picks)
    def preempt_and_resume(self, pick):
        self.step(self.driver.do_preempt, pick)

    @rule(prompt=stems, namespace=spaces)
    def look_up_only(self, prompt, namespace):
        self.remembered = (prompt, namespace, self.driver.do_lookup(prompt, namespace))

    @precondition(lambda self: self.remembered is not None)
    @rule()
    def use_a_hit_that_may_be_stale(self):
        prompt, namespace, hit = self.remembered
        self.step(self.driver.do_admit, prompt, namespace, hit=hit)

    @rule(kind=st.sampled_from(WRONG_CALLS), pick=picks)
    def call_wrongly(self, kind, pick):
        self.driver.do_wrong(kind, pick)

    @rule()
    def reset(self):
        self.step(self.driver.do_reset)

    @rule(prompt=stems, part=st.integers(1, 4))
    def reset_in_mid_prompt(self, prompt, part):
        request = self.step(self.driver.do_admit, prompt, NAMESPACES[0])
        for count in (part, 99):
            if request in self.driver.live:
                at = sorted(self.driver.live).index(request)
                self.step(self.driver.do_compute, at, count, extend=True, commit=True)
                self.step(self.driver.do_reset if count == part else self.driver.do_advance)
        self.serve(prompt, NAMESPACES[0])
        self.driver.do_lookup([*prompt, 0], NAMESPACES[0])

    @rule()
    def advance(self):
        self.driver.do_advance()

    @invariant()
    def the_invariants_hold(self):
        self.driver.allocator.check()

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        while self.driver.live:
            before = len(self.driver.live)
            self.step(self.driver.do_free, 0)
            assert len(self.driver.live) < before or self.driver.tolerates, self.driver.history
            if len(self.driver.live) == before:
                return
        counts = self.driver.allocator.stats()
        assert counts.used_blocks == 0, f"blocks are in use though nobody is: {counts}\n{self.driver.history}"


def run(make, *, examples: int, steps: int, shrink: bool = True) -> None:
    """Drive one allocator class with `examples` histories of up to `steps` calls."""
    machine = type(f"Machine_{make.__name__}", (Machine,), {"make": make})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_no_history_breaks_an_installed_allocator(allocator):
    run(ALLOCATORS[allocator].load(), examples=80, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_no_long_history_breaks_an_installed_allocator(allocator):
    run(ALLOCATORS[allocator].load(), examples=2000, steps=100)


class WritesIntoPublished(SlowAllocator):
    """Forgets that a later request may find the block it writes."""

    def must_copy(self, block):
        return self.references[block] > 1


class TrustsEveryHash(SlowAllocator):
    """Serves what has the right name."""

    def find(self, block_hash, content):
        return self.holder_of.get(block_hash)


class CountsEvictableHitsTwice(SlowAllocator):
    """A cached block that is hit is also counted as room."""

    def fits(self, request, tokens, hit):
        return self.room(len(tokens)) - len(hit.blocks) <= self.reclaimable()


class PublishesOldWeights(SlowAllocator):
    """What a request began before a reset is published after it."""

    def reset(self, request=None):
        super().reset(request)
        for row in self.rows.values():
            row.stale = False


@pytest.mark.parametrize(
    "mutant", [WritesIntoPublished, TrustsEveryHash, CountsEvictableHitsTwice, PublishesOldWeights]
)
def test_the_machine_catches_planted_faults(mutant):
    with pytest.raises(Violation):
        run(mutant, examples=2000, steps=30, shrink=False)


MOVES = (
    ("submit 0", lambda d: d.do_admit([0, 0], NAMESPACES[0])),
    ("submit short", lambda d: d.do_admit([1], NAMESPACES[0])),
    ("submit 1", lambda d: d.do_admit([0, 1], NAMESPACES[0])),
    ("compute first", lambda d: d.do_compute(0, 9, extend=True, commit=True)),
    ("compute last", lambda d: d.do_compute(len(d.live) - 1, 1, extend=True, commit=True)),
    ("fork and part", lambda d: branch(d, 0, 0, end_parent=False)),
    ("free first", lambda d: d.do_free(0)),
    ("free last", lambda d: d.do_free(len(d.live) - 1)),
    ("reset", lambda d: d.do_reset()),
)


def state_of(driver: Driver) -> object:
    """What makes two histories lead to the same place, up to the ids of requests and blocks."""
    names: dict[int, int] = {}
    rows = []
    for request in sorted(driver.live):
        row = driver.live[request]
        table = tuple(names.setdefault(block, len(names)) for block in driver.tables[request])
        rows.append((tuple(row.tokens), row.written, row.committed, row.must_extend, row.old, table))
    hits = []
    for prompt in ([0, 0, 0], [0, 1, 0]):
        hit = driver.allocator.lookup(as_tokens(prompt), NAMESPACES[0])
        hits.append(tuple(names.setdefault(block, len(names)) for block in hit.blocks))
    counts = driver.allocator.stats()
    return tuple(rows), tuple(hits), counts.free_blocks, counts.cached_blocks


def explore(allocator: str, policy: str, scheme: object, num_blocks: int, depth: int) -> int:
    """Every history of up to `depth` moves with blocks of one token, each state once; returns how many states."""
    make, make_policy = ALLOCATORS[allocator].load(), POLICIES[policy].load()
    traits = traits_of(make, collides=collides_often(scheme()), num_blocks=num_blocks, block_size=1)
    seen, frontier = set(), [()]
    for _ in range(depth):
        reached = []
        for history, (_, move) in product(frontier, MOVES):
            driver = driver_of(make, num_blocks, 1, scheme(), make_policy(), traits)
            for earlier in history:
                earlier(driver)
            move(driver)
            state = state_of(driver)
            if state not in seen:
                seen.add(state)
                reached.append((*history, move))
        frontier = reached
    return len(seen)


@pytest.mark.parametrize("scheme", [adversarial.ReferenceHash, adversarial.Constant])
def test_every_short_history_of_the_default_allocator_is_sound(scheme):
    assert explore("prefix_cow", "lru", scheme, num_blocks=3, depth=4) > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize("scheme", [adversarial.ReferenceHash, adversarial.Constant])
@pytest.mark.parametrize("allocator", sorted(ALLOCATORS))
def test_every_history_of_six_calls_is_sound(allocator, scheme, num_blocks):
    assert explore(allocator, "lru", scheme, num_blocks, depth=6) > 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_history_of_five_calls_is_sound_under_every_policy(policy):
    assert explore("prefix_cow", policy, adversarial.ReferenceHash, num_blocks=3, depth=5) > 50
