"""Where W-TinyLFU, GDSF and LHD hit otherwise than libcachesim's: models of its sources say why, access by access."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import libcachesim_models as models

from framework.replay.paths import RequestPaths, build_paths, flat_paths
from framework.replay.reference import replay
from framework.types import BlockHash
from framework.workload.traces import TraceRequest, open_trace
from framework_builtin.eviction import w_tinylfu
from framework_builtin.eviction.gdsf import Gdsf
from framework_builtin.eviction.lhd import Lhd

libcachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed")

Model = Callable[[list[int], int], models.Hits]
MODELS: dict[str, Model] = {"WTinyLFU": models.w_tinylfu, "GDSF": models.gdsf, "LHD": models.lhd}


def stream(seed: int, count: int = 8_000) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(number) for number in np.minimum(rng.zipf(1.2, count), 3_000)]


def paths_of(ids: list[int]) -> RequestPaths:
    return build_paths(
        TraceRequest(arrival_s=0.0, input_tokens=1, output_tokens=1, block_ids=np.array([i]), block_tokens=1)
        for i in ids
    )


def theirs(name: str, ids: list[int], capacity: int) -> models.Hits:
    """In a thread of its own, since their random numbers begin anew in each."""
    found: list[bool] = []

    def run() -> None:
        cache = getattr(libcachesim, name)(capacity, hashpower=16)
        found.extend(cache.get(libcachesim.Request(obj_id=i, obj_size=1)) for i in ids)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return np.array(found)


def ours(policy: Any, paths: RequestPaths, capacity: int) -> models.Hits:
    hits: models.Hits = replay(paths, policy, capacity).request_hits.astype(bool)
    return hits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("capacity", [200, 307])
def test_the_model_of_their_source_hits_in_every_access_where_they_do(name: str, capacity: int) -> None:
    for seed in (0, 1):
        ids = stream(seed)
        assert (MODELS[name](ids, capacity) == theirs(name, ids, capacity)).all(), (name, seed)


def test_gdsf_differs_only_in_that_the_newcomer_cannot_be_the_victim() -> None:
    differences = 0
    for seed in (0, 1, 2):
        ids = stream(seed)
        found = ours(Gdsf(crossover_tokens=0), paths_of(ids), 20)
        assert (found == models.gdsf(ids, 20, newcomer_may_go=False)).all(), seed
        differences += int((found != models.gdsf(ids, 20)).sum())
    assert differences > 0, "the rule makes a difference here"


class ExactSketch:
    """Counts every name; like FrequencySketch without collisions."""

    def __init__(self, num_blocks: int, counters: int) -> None:
        self._counts, self._left, self._period = models.ExactCounts(num_blocks), 10 * num_blocks, 10 * num_blocks

    def add(self, key: BlockHash | None) -> None:
        self._counts.add(key)  # type: ignore[arg-type]
        self._left -= 1
        if self._left <= 0:
            self._counts.halve()
            self._left = self._period

    def estimate(self, key: BlockHash | None) -> int:
        return self._counts.estimate(key)  # type: ignore[arg-type]


def test_w_tinylfu_differs_only_in_what_is_counted_and_in_the_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w_tinylfu, "FrequencySketch", ExactSketch)
    for seed in (0, 1, 2):
        ids = stream(seed)
        found = ours(w_tinylfu.WTinyLfu(), paths_of(ids), 200)
        assert (found == models.w_tinylfu(ids, 200, sketch=models.ExactCounts, as_published=True)).all(), seed


def test_a_sketch_of_more_counters_counts_fewer_accesses_too_many() -> None:
    keys = [BlockHash(str(number).encode()) for number in range(400)]
    too_many = []
    for counters in (4, 16, 64):
        sketch = w_tinylfu.FrequencySketch(100, counters)
        for key in keys:
            sketch.add(key)
        too_many.append(sum(sketch.estimate(key) - 1 for key in keys))
    assert too_many == sorted(too_many, reverse=True), too_many
    assert too_many[0] > 100 > too_many[2], too_many


def test_lhd_before_its_first_model_differs_in_first_ranks_ages_and_draws_only() -> None:
    ids = stream(5, count=40_000)
    found = ours(Lhd(interval=2**20, samples=8), paths_of(ids), 200).mean()
    model = models.lhd(ids, 200, first_class=1, age_shift=0).mean()
    assert abs(found - model) < 0.003, (found, model)


@pytest.mark.slow
def test_the_numbers_at_the_policies_notes_are_those_of_the_conversation_trace(traces: Path) -> None:
    paths = flat_paths(build_paths(open_trace(traces / "mooncake_conversation_trace.jsonl.gz")))
    ids = [int(node) + 1 for node in paths.nodes]
    for name, hits in (("WTinyLFU", 24_983), ("GDSF", 20_458), ("LHD", 20_373)):
        assert theirs(name, ids, 3_000).sum() == MODELS[name](ids, 3_000).sum() == hits, name
    assert ours(Gdsf(crossover_tokens=0), paths, 3_000).sum() == 20_340
    assert models.gdsf(ids, 3_000, newcomer_may_go=False).sum() == 20_340
    assert ours(w_tinylfu.WTinyLfu(), paths, 3_000).sum() == 27_286
    assert ours(w_tinylfu.WTinyLfu(counters=16), paths, 3_000).sum() == 32_096
    assert models.w_tinylfu(ids, 3_000, sketch=models.ExactCounts, as_published=True).sum() == 33_565
    assert models.lhd(ids, 3_000, first_class=1).sum() == 23_587
    assert models.lhd(ids, 3_000, first_class=1, age_shift=4).sum() == 22_477
