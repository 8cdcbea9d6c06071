"""What policies see in a replay that counts hits alone: requests behind their blocks, as in an engine, and a clock."""

from __future__ import annotations

import numpy as np
from paged_helpers import ArrivalWatch, Watching, serve, tokens

from framework.interfaces.workload import WorkloadRequest
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.ttl import Ttl
from framework_builtin.hash.sha256 import Sha256
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay


def test_a_cache_only_replay_and_an_engine_infer_the_same_turns():
    prompts = [[1, 1, 2, 2], [1, 1, 3, 3, 4, 4], [1, 1, 2, 2, 5, 5], [1, 1, 2, 2, 5, 5, 6],
               [1, 1, 2, 2, 5, 5, 6, 6, 7, 7],
               [9], [1, 1, 2, 2, 5, 5], [1, 1, 3, 3, 4, 4, 8, 8]]  # fmt: skip
    wanted = [0, 0, 1, 1, 2, 0, 1, 1]
    requests = [
        WorkloadRequest(arrival_s=float(i), input_tokens=len(p), output_tokens=1, block_tokens=2,
                     session="s" if i % 2 else None,
                     block_ids=np.array([p[at] * 100 + (p[at : at + 2] != [p[at]] * 2) for at in range(0, len(p), 2)]))
        for i, p in enumerate(prompts)
    ]  # fmt: skip
    policy = Watching()
    paths = build_paths(requests)
    replay(paths, policy, 100)
    assert paths.turns.tolist() == wanted
    assert policy.turns("release") == wanted
    assert [facts[0][2].arrival for call, facts in policy.seen if call == "release"] == [float(i) for i in range(8)]
    assert [facts[0][2].session for call, facts in policy.seen if call == "release"] == [None, "s"] * 4
    engine_policy = Watching()
    allocator = PrefixCowAllocator(num_blocks=100, block_size=2, hash=Sha256(), eviction=engine_policy)
    for number, prompt in enumerate(prompts):
        serve(allocator, number + 1, tokens(*prompt))
    assert engine_policy.turns("release") == [turn for turn, p in zip(wanted, prompts, strict=True) if len(p) > 1]


def test_a_partial_tail_is_known_in_a_cache_only_replay():
    class Partial(Lru):
        tails: tuple[bool, ...] = ()

        def release(self, blocks, now):
            self.tails = tuple(self.blocks.partial[block] for block in blocks)
            super().release(blocks, now)

    request = WorkloadRequest(arrival_s=0.0, input_tokens=5, output_tokens=1, block_tokens=2, block_ids=np.arange(3))
    policy = Partial()
    replay(build_paths([request]), policy, 8)
    assert policy.tails == (True, False, False)


def test_a_cache_only_replay_gives_the_arrival_of_the_request_at_hand_as_now() -> None:
    requests = [
        WorkloadRequest(arrival_s=at, input_tokens=1, output_tokens=1, block_ids=np.array([block]), block_tokens=1)
        for at, block in ((0.0, 1), (500.0, 2), (550.0, 1), (700.0, 3), (710.0, 1))
    ]
    paths, watch = build_paths(requests), ArrivalWatch()
    replay(paths, watch, 2)
    assert watch.seen == [(at, at) for at in (0.0, 500.0, 550.0, 700.0, 710.0)], watch.seen
    # Block 1 is 700 s old when block 3 needs room, block 2 but 200 s.
    hits = {ttl: replay(paths, Ttl(ttl, refresh=False), 2).hit_blocks for ttl in (600.0, 1000.0)}
    assert hits == {600.0: 1, 1000.0: 2}, hits
