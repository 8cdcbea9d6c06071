"""Who counts a cache-only replay: the core that is chosen, or Python; what is said, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from replay_helpers import workload

from framework.errors import InvalidArgument, PluginError, UnknownPlugin
from framework.guard.replay_core import GuardedReplayCore
from framework.interfaces.replay_core import ReplayCore, ReplayCounts
from framework.replay.reference import PYTHON, core_of, count, replay
from framework.testing import replay_core as kit
from framework.testing.driver import Violation
from framework.testing.oracles.eviction import SlowLru
from framework_builtin.eviction.lru import Lru

PATHS = workload([[0, 1], [0, 2], [0, 1], [3]])


def counting(answer: object) -> GuardedReplayCore:
    """A core that says what its maker chose."""

    def said(self, paths, policy, num_blocks, *, leaf_first=False, bypass=False):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return GuardedReplayCore(type("Mine", (ReplayCore,), {"count": said})())


def test_python_counts_where_no_core_is_chosen_and_nothing_is_said(capsys):
    assert core_of(PYTHON) is None
    assert count(None, PATHS, Lru(), 2) == (False, replay(PATHS, Lru(), 2))
    assert capsys.readouterr() == ("", "")


def test_the_counts_of_a_core_are_the_result(capsys):
    said = ReplayCounts(request_hits=np.array([0, 1, 1, 0], np.int32), admitted=5, evictions=3)
    native, found = count(counting(said), PATHS, Lru(), 2)
    assert (native, found.hit_blocks, found.admitted, found.evictions) == (True, 2, 5, 3), found
    assert found.hit_tokens == 8, "two blocks of four tokens"
    assert capsys.readouterr() == ("", "")


def test_a_core_that_declines_is_said_so_in_one_sentence(capsys):
    assert count(counting(None), PATHS, Lru(), 2) == (False, replay(PATHS, Lru(), 2))
    assert capsys.readouterr().err == "the replay core cannot count Lru: counted in Python, the same integers\n"


def test_a_core_that_fails_is_named():
    with pytest.raises(PluginError, match=r"Mine\.count: raised ZeroDivisionError\('oh'\)"):
        count(counting(ZeroDivisionError("oh")), PATHS, Lru(), 2)
    with pytest.raises(InvalidArgument, match="typed"):
        count(counting(InvalidArgument("typed")), PATHS, Lru(), 2)


def test_an_unknown_core_is_refused():
    with pytest.raises(UnknownPlugin, match="no replay_core named 'nativ'"):
        core_of("nativ")


class Slow(ReplayCore):
    """Counts as it should, since the reference does it."""

    def count(self, paths, policy, num_blocks, *, leaf_first=False, bypass=False):
        if num_blocks < 1:
            raise InvalidArgument("no blocks")
        found = replay(paths, policy, num_blocks, leaf_first=leaf_first, bypass=bypass)
        return ReplayCounts(request_hits=found.request_hits, admitted=found.admitted, evictions=found.evictions)


class CountsEvictionsOfAnotherOrder(Slow):
    """Takes every policy for LRU."""

    def count(self, paths, policy, num_blocks, *, leaf_first=False, bypass=False):
        return super().count(paths, SlowLru(), num_blocks, leaf_first=leaf_first, bypass=bypass)


class IgnoresBypass(Slow):
    def count(self, paths, policy, num_blocks, *, leaf_first=False, bypass=False):
        return super().count(paths, policy, num_blocks, leaf_first=leaf_first)


class TakesNoBlocksForOne(Slow):
    def count(self, paths, policy, num_blocks, *, leaf_first=False, bypass=False):
        return super().count(paths, policy, max(1, num_blocks), leaf_first=leaf_first, bypass=bypass)


MUTANTS = {
    CountsEvictionsOfAnotherOrder: kit.check_it_counts_as_the_reference,
    IgnoresBypass: kit.check_it_counts_as_the_reference,
    TakesNoBlocksForOne: kit.check_a_pool_of_no_blocks_is_refused,
}


@pytest.mark.parametrize("check", kit.replay_core_checks)
def test_a_sound_core_passes_its_kit(check):
    check(Slow)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_kit_catches_a_wrong_core(mutant):
    with pytest.raises(Violation):
        MUTANTS[mutant](mutant)
