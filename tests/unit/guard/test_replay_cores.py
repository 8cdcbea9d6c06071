"""What a core for cache-only replays raises or answers is checked, and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.errors import InvalidArgument, PluginError
from framework.guard.replay_cores import count_references, count_tiers, has_core
from framework.interfaces.allocator import Allocator
from framework.interfaces.replay_counts import TierCounts, TieredReplayCounts


class Paths:
    starts = np.array([0, 2, 5])


def core(answer: object) -> Any:
    """A class whose cores answer, or raise, this."""

    def answered(cls: type, *args: Any, **options: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return type("Core", (), {"replay_references": classmethod(answered), "replay_tiers": classmethod(answered)})


def counts(hits: Any, **changed: Any) -> TieredReplayCounts:
    sound = TieredReplayCounts(
        tier_hits=hits, pool_hit_tokens=4, admitted=3, evictions=0, tiers=(TierCounts(1, 4, 2, 1, 0, 0, 0, 1, 2),)
    )
    return replace(sound, **changed)


def tiers_of(answer: object) -> Any:
    return count_tiers(core(answer), Paths, [None, None], [4, 4], None)  # type: ignore[list-item,arg-type]


SOUND = counts(np.array([[0, 0], [1, 2]], np.int32))


def test_sound_counts_pass_and_none_is_none() -> None:
    assert tiers_of(SOUND) is SOUND
    assert tiers_of(None) is None
    assert count_references(core(None), Paths, None, 4) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", ["text", 7, SystemExit(0), SOUND])
def test_a_core_that_raises_or_counts_nonsense_is_named(answer: object) -> None:
    with pytest.raises(PluginError, match=r"allocator Core\.replay_references: "):
        count_references(core(answer), Paths, None, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ZeroDivisionError("oh"), r"raised ZeroDivisionError\('oh'\)"),
        ("text", "must return TieredReplayCounts"),
        (counts(SOUND.tier_hits, admitted=1.5), "must return TieredReplayCounts"),
        (counts(SOUND.tier_hits, pool_hit_tokens=-1), "must return TieredReplayCounts"),
        (counts(SOUND.tier_hits, tiers=()), "every lower tier's TierCounts"),
        (counts(SOUND.tier_hits, tiers=(TierCounts(1, 4, 2, 1, 0, 0, 0, -1, 2),)), "every lower tier's TierCounts"),
        (counts(np.zeros(2, np.int32)), r"must count 2 requests and 2 tiers in an array of ints, counted \(2,\)"),
        (counts(np.zeros((2, 2))), r"in an array of ints, counted \(2, 2\)"),
        (counts(np.array([[0, 0], [2, 2]])), "counted 4 hits of request 1, which references 3 blocks"),
        (counts(np.array([[-1, 1], [0, 0]])), "counted -1 hits of request 0, which references 2 blocks"),
    ],
)
def test_a_core_of_tiers_that_fails_or_counts_what_cannot_be_is_named(answer: object, says: str) -> None:
    with pytest.raises(PluginError, match=rf"Core\.replay_tiers: .*{says}"):
        tiers_of(answer)


def test_errors_of_the_contract_pass() -> None:
    with pytest.raises(InvalidArgument, match="typed"):
        tiers_of(InvalidArgument("typed"))


def test_only_a_core_of_its_own_counts_as_one() -> None:
    old: Any = type("Old", (), {})
    assert has_core(core(None), "replay_tiers")
    assert not has_core(old, "replay_tiers")
    assert not has_core(Allocator, "replay_tiers")
