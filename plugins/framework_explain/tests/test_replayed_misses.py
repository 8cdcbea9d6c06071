"""The causes of a cache-only replay's misses, against a model that follows every call into the policy."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_helpers import random_requests, workload

from framework import registry
from framework.errors import FrameworkError
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_component
from framework_builtin.eviction.lru import Lru
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_explain.account import (
    DECLINED,
    ELSEWHERE,
    END,
    EVICTED,
    HIT,
    NEW,
    OUTCOMES,
    TIER,
    UNREACHABLE,
    Account,
    Evictions,
)
from framework_explain.replayed_misses import LossLog, explain
from framework_tiers.counted import CountedTiers
from framework_tiers.rules import OnEviction
from framework_workloads.trace import open_trace

TRACES = os.environ.get("KVLAB_TRACES")
Fate = tuple[int, int]


class Follower:
    """The contents of a cache and the last fate of each, from the calls that its policy gets."""

    def __init__(self, policy: Any) -> None:
        self.resident: set[int] = set()
        self.fates: dict[int, Fate] = {}
        self.at: dict[int, tuple[int, float]] = {}
        self.refused: set[int] = set()
        self.request = -1
        admit, evicted, keep, victims = policy.admit, policy.evicted, policy.keep, policy.victims
        view: dict[str, Any] = {}

        def attach(blocks: Any, attach: Any = policy.attach) -> None:
            view["key"] = blocks.key
            attach(blocks)

        def admitted(blocks: Sequence[int], now: float) -> None:
            for block in blocks:
                self.at[block] = int.from_bytes(view["key"][block], "little"), now
                self.resident.add(self.at[block][0])
            admit(blocks, now)

        def gone(block: int, now: float) -> None:
            node, since = self.at[block]
            self.resident.discard(node)
            declined = block in self.refused or (policy.bypass and since == now)
            self.fates[node] = (DECLINED if declined else EVICTED, self.request)
            self.refused.discard(block)

        def evicted_one(block: int, now: float) -> None:
            gone(block, now)
            evicted(block, now)

        def kept(block: int, now: float) -> bool:
            answer: bool = keep(block, now)
            if not answer:
                self.refused.add(block)
            return answer

        def several(count: int, now: float) -> list[int]:
            policy.evicted = evicted  # what `victims` calls itself
            found: list[int] = victims(count, now)
            policy.evicted = evicted_one
            for block in found:
                gone(block, now)
            return found

        policy.attach, policy.admit, policy.evicted, policy.victims = attach, admitted, evicted_one, several
        if type(policy).keep is not EvictionPolicy.keep:
            policy.keep = kept


def expected(
    paths: RequestPaths, policy: Any, num_blocks: int, leaf_first: bool, requests: list[list[int]], salts: list[str]
) -> list[list[tuple[int, int]]]:
    """(outcome, request it was evicted for or -1) of each block of each of these requests."""
    follower, found, states = Follower(policy), list[list[tuple[int, int]]](), list[tuple[set[int], dict[int, Fate]]]()

    class Walk(RequestPaths):
        def walk(self) -> Any:
            for path in super().walk():
                follower.request += 1
                states.append(({*follower.resident}, {**follower.fates}))
                yield path

    walked = Walk(**{name: getattr(paths, name) for name in paths.__dataclass_fields__})
    hits = replay(walked, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass).request_hits.tolist()
    seen: set[int] = set()
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for path, (resident, fates), count, ids, salt in zip(paths.walk(), states, hits, requests, salts, strict=True):
        row, prefixes = [], [tuple(ids[: depth + 1]) for depth in range(len(ids))]
        others = {other for other, _ in known} - {salt}
        there = [{other for other in others if known.get((other, prefix)) in resident} for prefix in prefixes]
        for depth, node in enumerate(path):
            if depth < count:
                row.append((HIT, -1))
            elif node in resident:
                row.append((UNREACHABLE, -1))
            elif node not in seen:
                row.append((ELSEWHERE if set.intersection(*there[: depth + 1]) else NEW, -1))
            else:
                cause, by = fates.get(node, (DECLINED, -1))
                row.append((cause, by if cause == EVICTED else -1))
        seen.update(path)
        known.update(zip(((salt, prefix) for prefix in prefixes), path, strict=True))
        found.append(row)
    return found


def account_of(paths: RequestPaths, name: str, num_blocks: int, leaf_first: bool = False) -> Account:
    policy = build_component("eviction", name, {"num_blocks": num_blocks, "block_size": paths.block_tokens, "seed": 0})
    log = LossLog()
    counts = replay(paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass, losses=log)
    return explain(paths, counts.request_hits, log, num_blocks=num_blocks, policy=name)


@pytest.mark.parametrize("name", sorted(registry.names("eviction")))
def test_every_policys_misses_have_the_causes_that_a_slow_model_finds(name: str) -> None:
    totals = np.zeros(len(OUTCOMES), dtype=np.int64)
    for seed in range(8):
        draw, leaf_first = random.Random(seed), seed % 2 == 1
        num_blocks, requests = draw.randint(1, 9), random_requests(seed, 60, width=3, longest=5)
        salts = [draw.choice(["", "", "a", "b"][: 1 + seed % 4]) for _ in requests]
        paths = workload(requests, salts=salts)
        shared = {"num_blocks": num_blocks, "block_size": paths.block_tokens, "seed": 0}
        try:
            policy = build_component("eviction", name, shared)
        except FrameworkError as error:
            pytest.skip(str(error))
        slow = expected(paths, policy, num_blocks, leaf_first, requests, salts)
        account = account_of(paths, name, num_blocks, leaf_first)
        counted = [[sum(cause == at for cause, _ in row) for at in range(len(OUTCOMES))] for row in slow]
        assert account.blocks.tolist() == counted, (name, seed, num_blocks)
        assert (account.tokens.sum(axis=1) == paths.input_tokens).all()
        blamed = [
            (request, depth, by)
            for request, row in enumerate(slow)
            for depth, (cause, by) in enumerate(row)
            if cause == EVICTED
        ]
        lost = account.evictions
        found_rows = [
            (request, depth + step, by)
            for request, depth, count, by in zip(
                lost.request.tolist(), lost.depth.tolist(), lost.blocks.tolist(), lost.evicted_for.tolist(), strict=True
            )
            for step in range(count)
        ]
        assert found_rows == blamed, (name, seed, num_blocks)
        totals += account.blocks.sum(axis=0)
    assert totals[ELSEWHERE], totals.tolist()


def test_a_partial_last_block_that_is_left_out_is_the_end_of_its_prompt_and_never_evicted() -> None:
    requests = [
        WorkloadRequest(arrival_s=0.0, input_tokens=10, output_tokens=1, block_ids=np.array(ids), block_tokens=4)
        for ids in ([1, 2, 3], [4, 5, 6], [1, 2, 3])
    ]
    account = explain_lru(build_paths(requests, full_blocks_only=True), 2)
    assert account.tokens[:, END].tolist() == [2, 2, 2]
    assert (account.tokens[2, EVICTED], account.blocks[2].sum()) == (8, 2), account.tokens[2]
    whole = explain_lru(build_paths(requests), 3)
    assert (whole.tokens[2, EVICTED], whole.tokens[2, END], whole.blocks[2, EVICTED]) == (10, 0, 3)


def explain_lru(paths: RequestPaths, num_blocks: int) -> Account:
    return account_of(paths, "lru", num_blocks)


def test_an_eviction_says_for_whom_how_long_ago_and_who_would_have_kept_it() -> None:
    rows = explain_lru(workload([[1, 2], [3], [4, 5], [6], [1, 2]]), 4).evictions.rows("lru")
    shared = {
        "request": 4,
        "admission": 4,
        "blocks": 1,
        "tokens": 4,
        "lru_tokens": 0,
        "optimum_tokens": 4,
        "turn": 0,
        "tenant": None,
    }
    shared |= {"category": None, "evicted_by": "lru"}
    assert rows == [
        {**shared, "depth": 0, "evicted_for": 3, "requests_ago": 1, "references_ago": 1},
        {**shared, "depth": 1, "evicted_for": 2, "requests_ago": 2, "references_ago": 3},
    ]
    assert Evictions.of_rows(rows).rows("lru") == rows


def test_lru_would_have_kept_nothing_of_what_lru_evicted() -> None:
    paths, free = workload(random_requests(3, 200, width=3, longest=5)), 0
    for num_blocks in (3, 8, 20):
        own, fifo = account_of(paths, "lru", num_blocks).evictions, account_of(paths, "fifo", num_blocks).evictions
        assert len(own)
        assert own.lru_tokens is not None
        assert own.lru_tokens.sum() == 0
        hits = replay(paths, Lru(), num_blocks).request_hits
        kept = np.clip(hits[fifo.request] - fifo.depth, 0, fifo.blocks)
        assert (fifo.lru_tokens == 4 * kept).all(), (fifo, hits)
        best = optimum_hits(paths, num_blocks, pinned=True)
        assert (fifo.optimum_tokens == 4 * np.clip(best[fifo.request] - fifo.depth, 0, fifo.blocks)).all(), num_blocks
        free += optimum_hits(paths, num_blocks, pinned=False).sum() - best.sum()
    assert free > 0, "pinned or not is one here"


def test_what_was_kept_of_a_partial_block_is_its_tokens_and_a_turn_that_the_trace_tells_is_believed() -> None:
    account = explain_lru(
        build_paths(
            WorkloadRequest(
                arrival_s=float(at), input_tokens=4 * len(ids) - 2, output_tokens=1, block_ids=np.array(ids),
                block_tokens=4, turn=9 - at, tenant="t", category="c",
            )
            for at, ids in enumerate([[1, 2, 3], [4], [5], [6], [1, 2, 3]])
        ),
        4,
    )  # fmt: skip
    columns = ("depth", "evicted_for", "tokens", "optimum_tokens", "turn", "tenant", "category")
    assert [tuple(row[name] for name in columns) for row in account.evictions.rows("lru")] == [
        (1, 3, 4, 4, 5, "t", "c"), (2, 2, 2, 2, 5, "t", "c"),
    ]  # fmt: skip


def test_what_lay_below_and_was_dropped_there_is_the_tiers() -> None:
    paths, log = workload([[1, 2], [3, 4], [5, 6], [7, 8], [1, 2], [5, 6]]), LossLog()
    below = CountedTiers(paths, [(2, Lru())], OnEviction())
    counts = replay(paths, Lru(), 2, below=below, losses=log)
    account = explain(paths, counts.request_hits, log, num_blocks=4, policy="lru")
    assert account.blocks[4].tolist()[TIER] == 2, account.blocks
    assert (account.blocks.sum(axis=1) == 2).all()


def test_the_latest_eight_namespaces_are_asked_what_they_hold() -> None:
    for others, held in ((7, 2), (8, 1)):
        requests = [[1, 2], *[[1]] * others, [1, 2, 3]]
        account = explain_lru(workload(requests, salts=[str(at) for at in range(len(requests))]), 20)
        assert account.blocks[-1, [ELSEWHERE, NEW]].tolist() == [held, 3 - held]


@pytest.mark.skipif(TRACES is None, reason="KVLAB_TRACES names no folder of traces")
def test_the_conversation_trace_under_lru_has_the_published_anatomy() -> None:
    paths = build_paths(open_trace(Path(str(TRACES)) / "mooncake_conversation_trace.jsonl.gz"))
    blocks = explain_lru(paths, 10_000).totals("blocks")
    assert sum(blocks.values()) == 288_500
    assert {outcome: count for outcome, count in blocks.items() if count} == {
        "hit": 61_046, "new": 182_790, "evicted": 44_664,
    }  # fmt: skip
