"""Policies that decline content: a replay counts what an allocator does."""

from __future__ import annotations

import numpy as np
import pytest
from paged_helpers import NS, info, make, tokens
from replay_helpers import random_requests, workload

from framework.errors import PluginError
from framework.interfaces.workload import WorkloadRequest
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay


class OddKept(Lru):
    """Keeps blocks of odd depth, and those hit before."""

    def keep(self, block, now):
        return bool(self.blocks.depth[block] % 2 or self.blocks.hits[block])


class NoTails(Lru):
    def keep(self, block, now):
        return not self.blocks.partial[block]


def admit(allocator, number, prompt):
    ids = tokens(*prompt)
    hit = allocator.lookup(ids, NS)
    allocator.allocate(info(number), ids, hit)
    allocator.commit(info(number).id, ids)
    return hit.num_tokens


@pytest.mark.parametrize("leaf_first", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_cache_only_replay_declines_what_an_allocator_does(seed, leaf_first):
    requests = [[*ids, 9] for ids in random_requests(seed, count=60, width=2, longest=4)]
    paths, capacity = workload([ids[:-1] for ids in requests], block_tokens=2), 12
    gone = []
    found = replay(
        paths, OddKept(), capacity, leaf_first=leaf_first, on_evict=lambda request, node: gone.append(request)
    )
    allocator = make(capacity + 1, kind=PrefixAllocator, eviction=OddKept(), leaf_only=leaf_first)
    hits = []
    for number, ids in enumerate(requests, 1):
        prompt = [token for token in ids[:-1] for _ in (0, 1)] + [9]
        hits.append(admit(allocator, number, prompt) // 2)
        allocator.free(number)
    assert hits == found.request_hits.tolist()
    assert len(gone) == found.evictions


def test_never_keeping_partial_tails_declines_them_and_nothing_else():
    requests = [
        WorkloadRequest(
            arrival_s=float(i), input_tokens=5, output_tokens=1, block_tokens=2, block_ids=np.array([1, 2, 7 + i])
        )
        for i in range(5)
    ]
    found = replay(build_paths(requests), NoTails(), 8)
    assert found.request_hits.tolist() == [0, 2, 2, 2, 2]
    assert (found.admitted, found.evictions) == (7, 5)


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_an_answer_that_is_no_bool_is_the_policy_s_fault(answer):
    class Vague(Fifo):
        def keep(self, block, now):
            return answer

    with pytest.raises(PluginError, match=r"Vague\.keep: must return a bool"):
        replay(workload([[1]]), Vague(), 4)
