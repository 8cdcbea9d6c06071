"""An allocator may count a cache-only replay itself: who is asked, what is said, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from replay_helpers import workload

from framework.errors import InvalidArgument, PluginError, UnknownPlugin
from framework.interfaces.allocator import Allocator, ReplayCounts
from framework.replay.cores import PYTHON, count
from framework.replay.reference import replay
from framework_builtin.eviction.lru import Lru

PATHS = workload([[0, 1], [0, 2], [0, 1], [3]])


class Counting(Allocator):
    """A core that says what its maker chose."""

    answer: object = None

    @classmethod
    def replay_references(cls, paths, policy, num_blocks, *, leaf_first=False, bypass=False):
        if isinstance(cls.answer, Exception):
            raise cls.answer
        return cls.answer


def counting(said: object) -> type[Allocator]:
    return type("Mine", (Counting,), {"answer": said})


def test_an_allocator_without_a_core_is_never_asked_and_nothing_is_said(capsys):
    meant = replay(PATHS, Lru(), 2)
    for allocator in (None, "prefix", {"name": "prefix_cow", "watermark": 0.5}, type("Plain", (Allocator,), {})):
        assert count(allocator, PATHS, Lru(), 2) == (PYTHON, meant), allocator
    assert capsys.readouterr() == ("", "")


def test_the_counts_of_a_core_are_the_result(capsys):
    said = ReplayCounts(request_hits=np.array([0, 1, 1, 0], np.int32), admitted=5, evictions=3)
    name, found = count(counting(said), PATHS, Lru(), 2)
    assert (name, found.hit_blocks, found.admitted, found.evictions) == ("Mine", 2, 5, 3), found
    assert found.hit_tokens == 8, "two blocks of four tokens"
    assert capsys.readouterr() == ("", "")


def test_a_core_that_declines_is_said_so_in_one_sentence(capsys):
    assert count(counting(None), PATHS, Lru(), 2) == (PYTHON, replay(PATHS, Lru(), 2))
    assert capsys.readouterr().err == "allocator=Mine cannot count Lru itself: counted in Python, the same integers\n"


def test_a_core_that_fails_is_named():
    with pytest.raises(PluginError, match=r"Mine\.replay_references: raised ZeroDivisionError\('oh'\)"):
        count(counting(ZeroDivisionError("oh")), PATHS, Lru(), 2)
    with pytest.raises(InvalidArgument, match="typed"):
        count(counting(InvalidArgument("typed")), PATHS, Lru(), 2)
    short = ReplayCounts(request_hits=np.zeros(3, np.int32), admitted=0, evictions=0)
    with pytest.raises(PluginError, match="must count 4 requests"):
        count(counting(short), PATHS, Lru(), 2)


@pytest.mark.parametrize("hits", [[0, -1, 0, 0], [0, 1, 1, 2]])
def test_hits_that_no_request_can_have_are_refused(hits):
    said = ReplayCounts(request_hits=np.array(hits, np.int32), admitted=5, evictions=3)
    with pytest.raises(PluginError, match=r"counted (-1 hits of request 1|2 hits of request 3), which references"):
        count(counting(said), PATHS, Lru(), 2)


def test_an_unknown_allocator_is_refused():
    with pytest.raises(UnknownPlugin, match="no allocator named 'prefixx'"):
        count("prefixx", PATHS, Lru(), 2)
