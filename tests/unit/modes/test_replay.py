"""Whole replays of small traces by configuration: their clocks, their counts, and what stops them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.errors import ConfigError, WorkloadError
from framework_builtin.allocator.prefix import PrefixAllocator

REQUIRED = ("hit_blocks", "prompt_blocks", "hit_tokens", "prompt_tokens", "num_evictions", "num_requests")


def mooncake(count: int = 8, **changes: Any) -> list[dict[str, Any]]:
    rows = [
        {"timestamp": 1000 * i, "input_length": 1024 + 40, "output_length": 5, "hash_ids": [i % 2, 10 + i % 2, 20 + i]}
        for i in range(count)
    ]
    rows[2].update(changes)
    return rows


def written(folder: Path, rows: list[Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def replayed(folder: Path, path: Path, executor: str = "none", **sections: Any) -> dict[str, Any]:
    config = {
        "mode": "replay",
        "executor": executor,
        "allocator": {"name": "prefix"},
        "eviction": {"name": "lru"},
        "hash": {"name": "sha256"},
        "cache": {"num_blocks": 50, "block_size": 512},
        "workload": {"name": "trace", "path": str(path), **sections.pop("workload", {})},
        "run": {"dir": str(folder / "out"), "progress": False},
        **sections,
    }
    result = run(config)
    assert json.loads((folder / "out" / "result.json").read_text())["hit_blocks"] == result["hit_blocks"]
    return result


@pytest.mark.parametrize("executor", ["none", "roofline"])
def test_every_executor_writes_the_same_integers(tmp_path: Path, executor: str) -> None:
    result = replayed(tmp_path, written(tmp_path, mooncake()), executor)
    assert {name: type(result[name]) for name in REQUIRED} == dict.fromkeys(REQUIRED, int), result
    assert (result["num_requests"], result["prompt_blocks"], result["hit_blocks"]) == (8, 24, 12), result
    assert (result["prompt_tokens"], result["hit_tokens"], result["num_evictions"]) == (8 * 1064, 12 * 512, 0), result


def test_each_step_s_line_has_the_hits_and_evictions_so_far(tmp_path: Path) -> None:
    rows = mooncake(24)
    for at, row in enumerate(rows):
        talk = at if at % 3 == 0 else at % 2
        row["hash_ids"] = [talk, 100 + talk, 200 + at]
    result = replayed(tmp_path, written(tmp_path, rows), cache={"num_blocks": 9, "block_size": 512})
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    for key in ("prompt_tokens", "hit_tokens", "evictions"):
        column = [line[key] for line in lines]
        assert column == sorted(column), f"{key} only grows"
        assert column[-1] == result[f"num_{key}" if key == "evictions" else key] > 0, (key, column[-1])
        assert len({*column}) > 5, f"{key} as it was at each step"
    assert lines[-1]["hit_rate"] == result["hit_rate"]


def test_a_trace_of_lengths_is_replayed_and_shares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    rows = [f"2023-11-16 18:15:{i:02d}.6805900,{100 + 50 * i},{3 + i}" for i in range(6)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    result = replayed(tmp_path, path, cache={"num_blocks": 100, "block_size": 16})
    assert (result["num_finished"], result["hit_tokens"]) == (6, 0), result
    assert result["prompt_tokens"] == sum(100 + 50 * i for i in range(6))
    assert result["output_tokens"] == sum(3 + i for i in range(6))


def test_fitted_costs_time_each_step_by_its_work_and_each_line_of_metrics_says_what_it_was(tmp_path: Path) -> None:
    costs = {"step_s": 0.5, "row_s": 0.25, "token_s": 0.001, "context_s": 0.0001, "pair_s": 0.00001}
    (tmp_path / "costs.json").write_text(json.dumps({"costs": costs}))
    path = written(tmp_path, mooncake()[:1])
    result = replayed(tmp_path, path, replay={"costs": str(tmp_path / "costs.json")})
    length = 1024 + 40
    assert result["clock"] == f"costs of {tmp_path / 'costs.json'}"
    assert result["ttft_s_p50"] == pytest.approx(0.75 + 0.001 * length + 0.00001 * length * (length + 1) / 2)
    first, second, *_ = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    assert first["step_s"] == pytest.approx(result["ttft_s_p50"])
    work = [second[name] for name in ("rows", "new_tokens", "context_tokens", "pairs")]
    assert work == [1, 1, length, length + 1]
    assert second["step_s"] == pytest.approx(0.75 + 0.001 + 0.0001 * length + 0.00001 * (length + 1))
    with pytest.raises(ConfigError, match=r"framework calibrate STEPS --out FILE"):
        replayed(tmp_path, path, replay={"costs": str(tmp_path / "none.json")})


def test_speed_brings_arrivals_closer(tmp_path: Path) -> None:
    path = written(tmp_path, mooncake(20))
    slow, fast = (replayed(tmp_path, path, workload={"speed": speed}) for speed in (1.0, 100.0))
    assert slow["wall_s"] > 19 > 2 > fast["wall_s"], (slow["wall_s"], fast["wall_s"])
    assert fast["peak_running"] > slow["peak_running"] == 1
    with pytest.raises(ConfigError, match=r"workload\.speed .*must be above 0"):
        replayed(tmp_path, path, workload={"speed": 0.0})


@pytest.mark.parametrize(
    ("change", "said"), [({"input_length": -5}, "expected 1 to"), ({"timestamp": 500}, "sort the file by time")]
)
def test_a_broken_line_is_named_or_skipped_and_counted(tmp_path: Path, change: dict[str, int], said: str) -> None:
    path = written(tmp_path, mooncake(**change))
    with pytest.raises(WorkloadError, match=said) as caught:
        replayed(tmp_path, path)
    assert f"{path}:3" in str(caught.value), caught.value
    result = replayed(tmp_path, path, workload={"on_error": "skip"})
    assert (result["num_requests"], result["num_skipped_lines"]) == (7, 1), result


def test_a_request_that_never_fits_is_rejected_and_counted(tmp_path: Path) -> None:
    rows = mooncake(input_length=512 * 60, hash_ids=list(range(60)))
    result = replayed(tmp_path, written(tmp_path, rows))
    assert (result["num_rejected"], result["num_finished"], result["num_requests"]) == (1, 7, 8), result


def test_the_pool_may_be_given_in_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, mooncake())
    found = {
        (executor, text): replayed(tmp_path, path, executor, replay={"capacity": text})["num_blocks"]
        for executor, text in (("none", "1GiB"), ("roofline", "640MiB"))
    }
    assert list(found.values()) == [16, 10], f"a block of 512 tokens is 64 MiB: {found}"
    with pytest.raises(ConfigError, match="50% is a share of the trace's distinct blocks"):
        replayed(tmp_path, path, replay={"capacity": "50%"})
    with pytest.raises(ConfigError, match=r"cache\.num_blocks or replay\.capacity"):
        replayed(tmp_path, path, cache={"num_blocks": None, "block_size": 512})


def test_goodput_counts_those_that_met_both_objectives(tmp_path: Path) -> None:
    path = written(tmp_path, mooncake(10))
    met, late, slow = (
        replayed(tmp_path, path, replay={"step_s": 0.1, "slo_ttft_s": ttft, "slo_tpot_s": tpot})
        for ttft, tpot in ((0.25, 0.1001), (0.05, 0.1001), (0.25, 0.09))
    )
    assert met["goodput_requests_per_s"] == pytest.approx(10 / met["wall_s"])
    assert (late["goodput_requests_per_s"], slow["goodput_requests_per_s"]) == (0.0, 0.0)


def test_a_reference_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path, monkeypatch) -> None:
    def no_work(*args: Any, **options: Any) -> Any:
        raise AssertionError("work was done first")

    monkeypatch.setattr("framework.modes.replay.feed", no_work)
    monkeypatch.setattr(PrefixAllocator, "takes_future", False)
    with pytest.raises(ConfigError, match="does not take the future"):
        replayed(tmp_path, written(tmp_path, mooncake()), replay={"optimum": True})


def test_a_full_replay_reports_its_gap_to_offline_next_use_when_asked(tmp_path: Path) -> None:
    draw, rows = random.Random(0), []
    for at in range(150):
        name = draw.randrange(6)
        rows.append({"timestamp": at * 1000, "input_length": 512 * 4 + 10, "output_length": 1,
                     "hash_ids": [name * 10 + depth for depth in range(4)] + [10_000 + at]})  # fmt: skip
    path, cache = written(tmp_path, rows), {"num_blocks": 12, "block_size": 512}
    parts: dict[str, Any] = {"eviction": {"name": "mru"}, "cache": cache, "engine": {"max_batch_requests": 1}}
    plain, asked = (replayed(tmp_path, path, **parts, replay=options) for options in ({}, {"optimum": True}))
    assert "offline_next_use_hit_rate" not in plain
    assert asked["hit_rate"] == plain["hit_rate"], "the run itself is the same"
    best = asked["offline_next_use_hit_rate"]
    assert best > asked["hit_rate"]
    assert asked["gap_to_offline_next_use"] == pytest.approx((best - asked["hit_rate"]) / (1 - best))


def test_a_trace_in_steps_meets_in_flight_what_met_there_whatever_a_step_takes(tmp_path: Path) -> None:
    small = {"cache": {"num_blocks": 36, "block_size": 4}, "engine": {"max_batch_requests": 3, "max_batch_tokens": 32}}
    workload = {"name": "conversations", "num_sessions": 12, "rate_per_s": 20.0, "system_tokens": 8, "user_tokens": 6}
    served = {**small, "workload": {**workload, "output_tokens": 6}}
    run({"mode": "serve", "run": {"dir": str(tmp_path / "served"), "record": True, "progress": False}, **served})
    live = _hits(tmp_path / "served")
    for step_s in (0.01, 0.5):
        parts = {**small, "replay": {"step_s": step_s}, "workload": {"path": str(tmp_path / "served/recording.jsonl")}}
        result = replayed(tmp_path, Path("unused"), allocator={"name": "prefix_cow"}, **parts)
        assert _hits(tmp_path / "out") == live, f"at {step_s} s a step"
        assert "wall_steps" in result, sorted(result)
    for name in ("trace", "recording"):
        workload = {"name": name, "path": str(tmp_path / "served/recording.jsonl")}
        with pytest.raises(ConfigError, match="arrivals in steps"):
            replayed(tmp_path, Path("unused"), "roofline", **small, workload=workload)


def _hits(folder: Path) -> list[int]:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    return [row["cached_tokens"] for row in sorted(rows, key=lambda row: int(row["request"]))]
