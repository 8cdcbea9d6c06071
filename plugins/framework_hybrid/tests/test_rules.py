"""Where each rule keeps what a later request resumes from, and what it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from groups_plain import group
from hybrid_helpers import memories, paths_of

from framework.errors import PluginError, plugin_note
from framework.groups.checkpoints import Asked, CheckpointRule, Retention
from framework.registry.culprit import named
from framework_hybrid.replay import replay_groups
from framework_hybrid.rules import AtMost, Dense, EveryFew, Junctions, Superseding

ASKED = Asked(prompt=41, total=59, hit=8, junction=20, step=4)


@pytest.mark.parametrize(
    ("rule", "places"),
    [
        (Retention(0), {20, 40}),
        (Retention(16), {16, 20, 32, 40, 48, 64}),
        (Junctions(), {20, 56}),
        (EveryFew(16), {16, 32, 40, 48}),
        (AtMost(2, 16), {16, 32, 40, 48}),
        (Superseding(), {20, 40}),
    ],
)
def test_the_places_of_each_rule(rule: CheckpointRule, places: set[int]) -> None:
    assert set(rule.places(ASKED) or ()) == places
    assert Dense().places(ASKED) is None


def answering(**answers: Any) -> CheckpointRule:
    """A rule whose methods do as these callables do."""
    methods = {"places": lambda self, asked: [4], **answers}
    made: CheckpointRule = type("Odd", (CheckpointRule,), methods)()
    return made


def raises(self: Any, *given: Any) -> Any:
    raise GeneratorExit("broken")


def yields_and_raises(self: Any, *given: Any) -> Iterator[int]:
    yield 4
    raise ArithmeticError("broken")


FAULTS = (
    raises, yields_and_raises, lambda *given: 4, lambda *given: [-512], lambda *given: [True], lambda *given: repeat(4),
)  # fmt: skip


@pytest.mark.parametrize("hook", ["places", "pauses", "surplus"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_rule_does_wrong_names_it(hook: str, fault: Any) -> None:
    paths = paths_of([[1] * 40])
    memory = memories((group("full"), group("state")), 10**4, paths)["one pool"]
    with pytest.raises(BaseException) as found:
        replay_groups(paths, memory, answering(**{hook: fault}))
    assert f"checkpoint rule Odd.{hook}: " in plugin_note(named(found.value)), found.value


def test_only_resident_ends_are_given_up() -> None:
    paths = paths_of([[1] * 40])
    memory = memories((group("full"), group("state")), 10**4, paths)["one pool"]
    with pytest.raises(PluginError, match=r"Odd\.surplus: must name some of the ends"):
        replay_groups(paths, memory, answering(surplus=lambda self, ends, asked: [7]))


def test_a_lookahead_moves_the_places_by_what_it_takes_off() -> None:
    asked = Asked(prompt=40, total=40, hit=0, junction=20, step=4, drop=4)
    assert set(asked.replays) == {32, 36}, "the same prompt, and a longer one"
    assert set(asked.shared) == {16, 20}


def test_at_most_thins_where_states_stand_closest_and_spares_both_ends() -> None:
    assert AtMost(4, 4).surplus([4, 8, 12, 32, 36, 60], ASKED) == [8, 32]
    assert AtMost(1, 4).surplus([4, 8, 12], ASKED) == [8]
    assert AtMost(4, 4).surplus([4, 8], ASKED) == []


def test_a_deeper_state_supersedes_the_one_resumed_from_unless_others_branch_there() -> None:
    assert Superseding().surplus([8, 20, 40], ASKED) == [8]
    assert Superseding().surplus([8], ASKED) == []
    assert Superseding().surplus([8, 40], Asked(prompt=41, total=59, hit=8, junction=8, step=4)) == []


@pytest.mark.parametrize(("rule", "ends"), [(EveryFew(8), [8, 16, 24, 32, 36, 40]), (AtMost(3, 8), [8, 24, 40])])
def test_the_replay_keeps_the_states_that_the_rule_names_and_no_more(rule: CheckpointRule, ends: list[int]) -> None:
    paths = paths_of([[1] * 40])
    memory = memories((group("full"), group("state")), 10**4, paths)["one pool"]
    replay_groups(paths, memory, rule)
    path = paths.nodes.tolist()
    assert [4 * (at + 1) for at, node in enumerate(path) if memory.find(1, node)] == ends


def test_windows_are_kept_where_a_place_needs_them() -> None:
    paths = paths_of([[1] * 40])
    memory = memories((group("full"), group("window", 9)), 10**4, paths)["one pool"]
    replay_groups(paths, memory, EveryFew(20))
    assert [at for at, node in enumerate(paths.nodes.tolist()) if memory.find(1, node)] == [3, 4, 7, 8, 9]
