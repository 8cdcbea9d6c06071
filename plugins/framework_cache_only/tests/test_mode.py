"""mode=cache_only by configuration: its counts, who takes part in it, and what stops it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_workloads import mooncake

from framework.api import run
from framework.config.check import parse, without_effect
from framework.errors import ConfigError, FrameworkError, PluginError, WorkloadError
from framework.interfaces.below import Below
from framework.interfaces.observer import Observer
from framework.sweep.identity import components, uses_seed
from framework_cache_only.parts import CacheOnlyObserver, Counted, Losses
from framework_cache_only.replay_core import ReplayCore

PROMPTS = [[i % 2, 10 + i % 2, 20 + i] for i in range(8)]


def counted(folder: Path, prompts: Sequence[Sequence[int]] = PROMPTS, /, **sections: Any) -> dict[str, Any]:
    trace = mooncake(folder / "trace.jsonl", prompts, input_length=1064, output_length=5)
    return run({
        "mode": {"name": "cache_only", **sections.pop("mode", {})},
        "cache": {"num_blocks": 50, "block_size": 512, **sections.pop("cache", {})},
        "workload": {"name": "trace", "path": str(trace), **sections.pop("workload", {})},
        "run": {"dir": str(folder / "run"), "progress": False}, **sections,
    })  # fmt: skip


class Gone(Losses):
    def __init__(self, fail: bool) -> None:
        self.evictions, self.fail = 0, fail

    def evicted(self, request: int, nodes: Sequence[int]) -> None:
        self.evictions += len(nodes)
        if self.fail:
            raise ValueError("by design")


class Counts(CacheOnlyObserver):
    """How many blocks the policy gave up."""

    def __init__(self, *, fail: bool = False, wrong: bool = False) -> None:
        self.gone: Any = 5 if wrong else Gone(fail)

    def losses(self) -> Losses:
        return self.gone  # type: ignore[no-any-return]

    def counted(self, replay: Counted) -> None:
        assert len(replay.hits) == replay.paths.num_requests

    def results(self) -> dict[str, int]:
        return {"mine": self.gone.evictions}


class OfEngines(Observer):
    """One that listens to engines alone."""


class BelowEngines(Below):
    """Something that engines have below their pools."""


class Declines(ReplayCore):
    """Knows no policy."""

    def count(
        self, paths: Any, policy: Any, num_blocks: int, *, leaf_first: bool = False, bypass: bool = False
    ) -> None:
        return None


def test_it_counts_what_the_engine_counts_where_requests_do_not_overlap(tmp_path: Path) -> None:
    result = counted(tmp_path)
    assert (result["num_requests"], result["prompt_blocks"], result["hit_blocks"]) == (8, 24, 12), result
    assert (result["prompt_tokens"], result["hit_tokens"], result["num_evictions"]) == (8 * 1064, 12 * 512, 0), result
    rows = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert sum(row["cached_tokens"] for row in rows) == result["hit_tokens"]
    assert {key for key in result if key.startswith("allocator_")} == set()
    assert counted(tmp_path, workload={"limit": 3})["hit_blocks"] == 2


def test_the_gap_to_the_optimum_can_be_left_out(tmp_path: Path) -> None:
    small: dict[str, Any] = {"cache": {"num_blocks": 3}}
    result, best = counted(tmp_path, **small), counted(tmp_path, eviction="optimum", **small)
    assert result["optimum_hit_blocks"] == best["hit_blocks"] > result["hit_blocks"], (result, best)
    misses, least = result["prompt_blocks"] - result["hit_blocks"], best["prompt_blocks"] - best["hit_blocks"]
    assert result["gap_to_optimum"] == pytest.approx((misses - least) / least)
    assert best["gap_to_optimum"] == 0
    assert "gap_to_optimum" not in counted(tmp_path, mode={"optimum": False}, **small)


def test_options_change_what_is_counted(tmp_path: Path) -> None:
    small: dict[str, Any] = {"cache": {"num_blocks": 4}, "eviction": "mru"}
    found = [counted(tmp_path, mode=mode, **small)["prompt_blocks"] for mode in ({}, {"full_blocks_only": True})]
    assert found == [24, 16], "1,064 tokens are two blocks of 512 and a part"
    twice = [[1, 2, 3], [4, 5], [1, 2, 3], [6, 7], [1, 2, 3]]
    small["eviction"] = "fifo"
    hits = [counted(tmp_path, twice, mode={"leaf_first": flag}, **small)["hit_blocks"] for flag in (False, True)]
    assert hits[0] < hits[1], f"a root that goes before its leaf cuts it off: {hits}"


@pytest.mark.parametrize(("capacity", "blocks"), [("1GiB", 16), ("50%", 6)])
def test_the_pool_may_be_given_in_bytes_or_as_a_share(tmp_path: Path, capacity: str, blocks: int) -> None:
    found = counted(tmp_path, replay={"capacity": capacity})["num_blocks"]
    assert found == blocks, "a block of 512 tokens is 64 MiB, 12 blocks are distinct"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cache": {"num_blocks": None}}, r"cache\.num_blocks or replay\.capacity"),
        ({"cache": {"block_size": 7}}, r"and 7 is no multiple of that"),
        ({"replay": {"capacity": "0%"}}, "less than one block"),
        ({"executor": "roofline"}, "executor=roofline cannot be in mode=cache_only"),
        ({"observers": [f"{__file__}:OfEngines"]}, "observer .*OfEngines has no part in mode=cache_only"),
        ({"below": f"{__file__}:BelowEngines"}, "below .*BelowEngines has no part in mode=cache_only"),
        ({"scheduling": "longest_prefix"}, "scheduling longest_prefix has no part in mode=cache_only"),
        ({"mode": {"replay_core": "nativ"}}, "no replay_core named 'nativ'"),
    ],
)
def test_what_cannot_be_counted_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(FrameworkError, match=said):
        counted(tmp_path, **changed)


def test_a_trace_of_lengths_is_refused_and_a_broken_line_named(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,3\n")
    with pytest.raises(ConfigError, match="lengths only"):
        counted(tmp_path, workload={"path": str(path)})
    path = tmp_path / "broken.jsonl"
    path.write_text((tmp_path / "trace.jsonl").read_text() + "{}\n")
    with pytest.raises(WorkloadError, match=rf"{path}:9"):
        counted(tmp_path, workload={"path": str(path)})
    assert counted(tmp_path, workload={"path": str(path), "on_error": "skip"})["num_skipped_lines"] == 1


def test_an_observer_learns_what_is_given_up_and_what_it_raises_or_answers_names_it(tmp_path: Path) -> None:
    small: dict[str, Any] = {"cache": {"num_blocks": 4}}
    result = counted(tmp_path, observers=[f"{__file__}:Counts"], **small)
    assert result["mine"] == result["num_evictions"] > 0
    for option, said in (("fail", r"Gone\.evicted: raised ValueError"), ("wrong", r"Counts\.losses: must return Loss")):
        with pytest.raises((PluginError, ValueError), match=said):
            counted(tmp_path, observers=[{"name": f"{__file__}:Counts", option: True}], **small)


def test_a_replay_says_what_the_dtype_of_the_weights_would_have_hit(tmp_path: Path) -> None:
    prompts = [[i % 5, 10 + i % 5, 20 + i] for i in range(40)]
    narrow = counted(tmp_path, prompts, cache={"num_blocks": 16, "kv_dtype": "float8_e4m3fn"})
    plain = counted(tmp_path, prompts, cache={"num_blocks": 8})
    assert narrow["equal_bytes_num_blocks"] == 8
    assert narrow["equal_bytes_hit_rate"] == plain["hit_rate"] < narrow["hit_rate"], (narrow, plain)


def test_its_core_is_a_plugin_of_the_run_and_the_policy_alone_may_draw() -> None:
    here = {"run": {"dir": "x"}, "workload": {"name": "trace", "path": "t"}}
    config = parse(
        {**here, "mode": {"name": "cache_only", "replay_core": f"{__file__}:Declines"}, "allocator": "radix"}
    )
    assert dict(components(config.plain()))["mode.replay_core"] == f"{__file__}:Declines"
    assert not uses_seed(config.plain())
    assert uses_seed(parse({**here, "mode": "cache_only", "eviction": "random"}).plain())
    (said,) = without_effect(parse({**here, "mode": "cache_only", "engine": {"chunk_size": 8}}))
    assert said == "no effect in mode=cache_only: engine.chunk_size=8"
