"""What a core for cache-only replays answers is checked, and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.errors import PluginError
from framework_cache_only.guarded_core import GuardedReplayCore
from framework_cache_only.replay_core import ReplayCounts


class Paths:
    starts = np.array([0, 2, 5])


def core(answer: object) -> Any:
    """A class whose core answers this."""

    def answered(self: Any, *args: Any, **options: Any) -> Any:
        return answer

    return type("Core", (), {"count": answered})


def count(answer: object) -> Any:
    return GuardedReplayCore(core(answer)()).count(Paths, None, 4)  # type: ignore[arg-type]


def counts(hits: Any, **changed: Any) -> ReplayCounts:
    return replace(ReplayCounts(request_hits=hits, admitted=3, evictions=0), **changed)


SOUND = counts(np.array([0, 3], np.int32))


def test_sound_counts_pass_and_none_is_none() -> None:
    assert count(SOUND) is SOUND
    assert count(None) is None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("text", "must return ReplayCounts"),
        (7, "must return ReplayCounts"),
        (counts(SOUND.request_hits, admitted=1.5), "must return ReplayCounts"),
        (counts(SOUND.request_hits, evictions=-1), "must return ReplayCounts"),
        (counts(np.zeros(3, np.int32)), r"must count 2 requests in an array of ints, counted \(3,\)"),
        (counts([0, 0]), "in an array of ints, counted list"),
        (counts(np.zeros(2)), r"in an array of ints, counted \(2,\)"),
        (counts(np.array([0, 4])), "counted 4 hits of request 1, which references 3 blocks"),
        (counts(np.array([-1, 0])), "counted -1 hits of request 0, which references 2 blocks"),
    ],
)
def test_a_core_that_counts_what_cannot_be_is_named(answer: object, says: str) -> None:
    with pytest.raises(PluginError, match=rf"replay core Core\.count: .*{says}"):
        count(answer)
