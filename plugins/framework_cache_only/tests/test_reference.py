"""The request model equals a slow model of the same definition, and says who is to blame when a policy errs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from replay_helpers import KEYS, random_requests, slow_replay, workload

from framework.errors import InvalidArgument, PluginError, UnknownPlugin, WorkloadError
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.types import BlockId
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.length_aware import LengthAware
from framework_builtin.eviction.lfu import Lfu
from framework_builtin.eviction.lru import Lru
from framework_cache_only.reference import core_of, count, replay
from framework_cache_only.replay_core import PYTHON, GuardedReplayCore, ReplayCore, ReplayCounts
from framework_cache_only.stack import lru_curve, reuse_distances
from framework_cache_only.testing import replay_core as kit
from framework_testing.driver import Violation
from framework_testing.oracles.eviction import SlowLru

POLICIES: dict[str, type[EvictionPolicy]] = {"lru": Lru, "lfu": Lfu, "fifo": Fifo, "length_aware": LengthAware}
GOLDEN = [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3], [6, 7], [1, 2, 4, 8], [5, 9], [1, 2, 3]]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("leaf_first", [False, True])
def test_the_fast_model_equals_the_slow_one(name: str, leaf_first: bool) -> None:
    for seed in range(20):
        requests = random_requests(seed, count=60, width=2 + seed % 3, longest=2 + seed % 5)
        capacity = 1 + seed % 13
        result = replay(workload(requests), POLICIES[name](), capacity, leaf_first=leaf_first)
        slow = slow_replay(requests, capacity, KEYS[name], leaf_first)
        assert (result.request_hits.tolist(), result.admitted, result.evictions) == slow, (seed, capacity, requests)


def test_tokens_of_a_partial_block_count_as_what_it_holds() -> None:
    paths = workload([[1, 2], [1, 2]])
    paths.input_tokens[:] = 6
    result = replay(paths, Lru(), 4)
    assert (result.hit_tokens, result.prompt_tokens, result.hit_rate) == (6, 12, 0.5)


def test_one_pass_of_reuse_distances_equals_a_replay_at_every_capacity() -> None:
    for seed in range(4):
        paths = workload(random_requests(seed, count=80, width=2 + seed % 3, longest=6))
        sizes = range(1, paths.num_nodes + 2)
        curve = lru_curve(paths, sizes)
        assert curve == [replay(paths, Lru(), size).hit_blocks for size in sizes], seed
        assert (reuse_distances(paths) == 0).sum() == paths.num_nodes


def test_every_eviction_is_shown() -> None:
    seen: list[tuple[int, int]] = []
    result = replay(workload(GOLDEN), Lru(), 4, on_evict=lambda request, node: seen.append((request, node)))
    assert len(seen) == result.evictions
    assert seen[0] == (2, 2), "request 2, [5], pushes out node 2, the end of [1, 2, 3]"


class _Names(EvictionPolicy):
    """Names what its option says, candidate or not."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def pin(self, blocks: Sequence[BlockId], now: float) -> None: ...

    def release(self, blocks: Sequence[BlockId], now: float) -> None: ...

    def evicted(self, block: BlockId, now: float) -> None: ...

    def victim(self, now: float) -> BlockId:
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [0, -1, None, 1.0, "1", 2])
@pytest.mark.parametrize("leaf_first", [False, True])
def test_a_victim_that_is_no_candidate_is_blamed_on_the_policy(answer: object, leaf_first: bool) -> None:
    paths = workload([[1, 2], [1, 3]])
    # blocks 1 and 2 hold [1] and [1, 2]; the second request pins the first of them
    wrong = 1 if answer == 2 else answer
    with pytest.raises(PluginError, match=r"_Names\.victim: must (name a (candidate|block)|return a block id)"):
        replay(paths, _Names(wrong), 2, leaf_first=leaf_first)


def test_bad_arguments_and_traces_without_blocks_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="num_blocks must be at least 1, found 0"):
        replay(workload(GOLDEN), Lru(), 0)
    from framework_cache_only.paths import build_paths

    lengths = WorkloadRequest(arrival_s=0, input_tokens=3, output_tokens=1)
    with pytest.raises(WorkloadError, match="lengths only"):
        build_paths([lengths])
    with pytest.raises(WorkloadError, match="no request"):
        build_paths([])


PATHS, HITS = workload([[0, 1], [0, 2], [0, 1], [3]]), np.array([0, 1, 1, 0], np.int32)


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
    said = ReplayCounts(request_hits=HITS, admitted=5, evictions=3)
    native, found = count(counting(said), PATHS, Lru(), 2)
    assert (native, found.hit_blocks, found.admitted, found.evictions) == (True, 2, 5, 3), found
    assert found.hit_tokens == 8, "two blocks of four tokens"
    assert capsys.readouterr() == ("", "")


def test_a_core_that_declines_is_said_so_in_one_sentence(capsys):
    assert count(counting(None), PATHS, Lru(), 2) == (False, replay(PATHS, Lru(), 2))
    assert capsys.readouterr().err == "the replay core cannot count Lru: counted in Python, the same integers\n"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("text", "must return ReplayCounts"),
        ({"admitted": 1.5}, "must return ReplayCounts"),
        ({"evictions": -1}, "must return ReplayCounts"),
        ({"request_hits": np.zeros(3, np.int32)}, r"must count 4 requests in an array of ints, counted \(3,\)"),
        ({"request_hits": [0, 0]}, "in an array of ints, counted list"),
        ({"request_hits": np.zeros(4)}, r"in an array of ints, counted \(4,\)"),
        ({"request_hits": 3 * HITS}, "counted 3 hits of request 1, which references 2 blocks"),
        ({"request_hits": -HITS}, "counted -1 hits of request 1, which references 2 blocks"),
    ],
)
def test_a_core_that_counts_what_cannot_be_is_named(answer, says):
    if isinstance(answer, dict):
        answer = ReplayCounts(**{"request_hits": HITS, "admitted": 3, "evictions": 0} | answer)
    with pytest.raises(PluginError, match=rf"replay core Mine\.count: .*{says}"):
        counting(answer).count(PATHS, Lru(), 2)


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


def wrong(name, check, count):
    """A core that counts so, and the check that must catch it."""
    return type(name, (Slow,), {"count": count}), check


MUTANTS = dict([
    wrong("TakesEveryPolicyForLru", kit.check_it_counts_as_the_reference,
          lambda self, paths, policy, *rest, **switches: Slow.count(self, paths, SlowLru(), *rest, **switches)),
    wrong("IgnoresBypass", kit.check_it_counts_as_the_reference, lambda self, *given, leaf_first=False, bypass=False:
          Slow.count(self, *given, leaf_first=leaf_first)),
    wrong("TakesNoBlocksForOne", kit.check_a_pool_of_no_blocks_is_refused,
          lambda self, paths, policy, num_blocks, **switches:
          Slow.count(self, paths, policy, max(1, num_blocks), **switches)),
])  # fmt: skip


@pytest.mark.parametrize("check", kit.replay_core_checks)
def test_a_sound_core_passes_its_kit(check):
    check(Slow)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_kit_catches_a_wrong_core(mutant):
    with pytest.raises(Violation):
        MUTANTS[mutant](mutant)


def test_a_long_replay_says_how_far_it_is() -> None:
    paths = workload([[*range(300)]] * 500)
    said: list[int] = []
    counted = replay(paths, Lru(), 400, progress=said.append)
    assert (sum(said), len(said)) == (paths.num_references, 3), said
    assert (counted.request_hits == replay(paths, Lru(), 400).request_hits).all()
