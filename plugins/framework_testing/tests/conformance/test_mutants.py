"""Each plugin with one fault is caught by the check that is named for it, and what is right passes its kit."""

from __future__ import annotations

from functools import partial

import pytest
from mutants import allocator, backend, compression, eviction, hash, observer, scheduling, tracker

from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case
from framework_testing.driver import Violation
from framework_testing.oracles.eviction import SlowLru

KINDS = (allocator, backend, compression, eviction, hash, observer, scheduling, tracker)


def cases(pairs, marks=lambda kind, check: ()):
    """A parameter for each kind, plugin and check."""
    return [
        pytest.param(kind, plugin, check, marks=marks(kind, check),
                     id="-".join([kind.__name__.rpartition(".")[2], name_of(plugin), name_of(check)]))
        for kind, plugin, check in pairs
    ]  # fmt: skip


def name_of(value):
    """A readable test id."""
    if isinstance(value, partial):
        return "-".join([value.func.__name__, *map(str, value.args), *map(str, value.keywords.values())])
    return value.__name__


@pytest.mark.parametrize(
    ("kind", "mutant", "check"), cases((kind, *pair) for kind in KINDS for pair in dict(kind.MUTANTS).items())
)
def test_the_kit_catches(kind, mutant, check):
    with pytest.raises(AssertionError if kind is backend else Violation):
        check(mutant)


@pytest.mark.parametrize(
    ("kind", "plugin", "check"),
    cases(
        ((kind, plugin, check) for kind in KINDS for plugin, checks in kind.RIGHT for check in checks),
        lambda kind, check: [pytest.mark.slow] * (kind is backend and check in backend.kit.backend_large_checks),
    ),
)
def test_what_is_right_passes(kind, plugin, check):
    check(plugin)


@pytest.mark.parametrize("kind", [observer, tracker])
def test_every_check_catches_a_mutant(kind):
    name = kind.__name__.rpartition(".")[2]
    assert {check for _, check in kind.MUTANTS} == set(getattr(kind.kit, f"{name}_checks"))


@pytest.mark.parametrize(
    ("target", "name", "fault", "right", "check"), compression.FAULTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_compression_kit_catches_an_engine_that(target, name, fault, right, check, monkeypatch):
    check(right)
    monkeypatch.setattr(target, name, fault)
    with pytest.raises(Violation, match="follow from the tokens that stay"):
        check(right)


class Forwards(SlowLru):
    """Not a mutant: what an allocator puts around the policy that it is given."""

    def __init__(self, inner):
        self.inner = inner
        for hook in ("attach", "admit", "hit", "pin", "release", "victim", "evicted"):
            setattr(self, hook, getattr(inner, hook))


def test_a_policy_wrapped_inside_an_allocator_need_not_be_named():
    def wrapping(*, num_blocks, block_size, hash, eviction):
        return allocator.PREFIX(num_blocks=num_blocks, block_size=block_size, hash=hash, eviction=Forwards(eviction))

    allocator.kit.check_a_wrong_victim_is_refused(wrapping)


@pytest.mark.parametrize(
    ("check", "mutant", "begins"),
    [
        (allocator.RANDOM, allocator.PublishesAtAllocation, "a hit serves KV that is not this prompt's: "),
        (eviction.RANDOM, eviction.KeepsLists, "release kept the list it was handed"),
        (eviction.kit.check_a_large_pool, eviction.LosesCandidatesOnce500AreProtected, "the policy failed: "),
        (
            backend.GRID,
            {one.__name__: one for one in backend.WRONG}["ScaleMissing"],
            r"\d+ of \d+ cases are wrong:",
        ),
    ],
)
def test_a_message_is_short_begins_with_the_rule_and_names_the_component(check, mutant, begins):
    with pytest.raises(AssertionError, match=f"^{begins}") as caught:
        check(mutant)
    text = str(caught.value)
    assert len(text) < 2000, text
    if "calls so far:" in text:
        assert mutant.__name__ in text, text


def test_a_failing_case_prints_all_that_differs_from_the_default():
    spec = AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=64, dtype="float32", block_size=16, scale=0.3, sinks=True
    )
    text = str(Case(spec, (3,), (1,), seed=7))
    assert "scale 0.3, sinks" in text, text
    assert "seed 7" in text, text
