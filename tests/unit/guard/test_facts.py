"""What plugins report of themselves reaches the result of every mode; what they may not report is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework import api, registry
from framework.errors import PluginError
from framework.guard.allocator import GuardedAllocator
from framework.guard.boundary import Guard
from framework.guard.facts import checked_facts, reported
from framework.guard.policy import GuardedPolicy
from framework.paged.pool import BlockPool
from framework.results.catalogue import find
from framework.results.reading import read_result

SERVE = {
    "mode": "serve",
    "model": "tiny",
    "workload": {"name": "shared_prefix", "num_requests": 3, "new_tokens": 2, "prefix_tokens": 32},
    "cache": {"num_blocks": 32, "block_size": 16},
}
REPLAY = {
    "mode": "replay",
    "executor": "none",
    "workload": {"name": "conversations"},
    "cache": {"num_blocks": 64, "block_size": 16},
}
MODES = {"serve": SERVE, "replay": REPLAY}


class Arc(registry.load("eviction", "arc")):  # type: ignore[misc]
    """Fails to report."""

    def facts(self) -> Any:
        raise RuntimeError("no facts today")


def result_of(mode: str, tmp_path: Path, eviction: str) -> dict[str, Any]:
    return api.run({**MODES[mode], "eviction": eviction, "run": {"dir": str(tmp_path), "progress": False}})


@pytest.mark.parametrize("mode", MODES)
def test_the_facts_of_policy_and_allocator_are_in_the_result(mode: str, tmp_path: Path) -> None:
    result = result_of(mode, tmp_path, "s3fifo")
    queues = {key: value for key, value in result.items() if key.startswith("eviction_")}
    assert {"eviction_small_blocks", "eviction_main_blocks", "eviction_ghosts"} <= set(queues), result
    assert queues["eviction_small_blocks"] + queues["eviction_main_blocks"] > 0, queues
    assert "allocator_cached_blocks" in result, sorted(result)
    metrics = [find(key) for key in (*queues, "allocator_cached_blocks")]
    assert all(metric is not None and metric.section == "plugins" for metric in metrics), metrics


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_fails_to_report_fails_the_run_and_costs_no_measurement(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.load("eviction", "arc"), "facts", Arc.facts)
    with pytest.raises(RuntimeError, match=r"eviction policy Arc\.facts: raised RuntimeError\('no facts today'\)"):
        result_of(mode, tmp_path, "arc")
    result = read_result(tmp_path)
    assert result["status"] == "failed", result
    assert "eviction policy Arc.facts: raised RuntimeError('no facts today')" in result["reasons"][0], result
    assert result["hit_rate"] is not None, result


@pytest.mark.parametrize(
    "found", [None, [("a", 1)], {"a": float("nan")}, {"a": [1]}, {1: 2}, {"": 1}, {"two words": 1}, {"a": None}]
)
def test_what_is_no_fact_is_refused_by_name(found: Any) -> None:
    with pytest.raises(PluginError, match=r"eviction policy Arc\.facts: must return a dict of names"):
        checked_facts(Guard("eviction policy", Arc), found)


def test_a_policy_that_was_never_attached_has_nothing_to_report() -> None:
    policy = Arc()
    assert GuardedPolicy(policy).facts() == {}
    policy.attach(BlockPool(4, 2).view())
    with pytest.raises(RuntimeError, match="no facts today"):
        GuardedPolicy(policy).facts()


def test_each_kind_has_its_prefix() -> None:
    prefix: Any = registry.load("allocator", "prefix")
    built = prefix(num_blocks=4, block_size=2, hash=registry.build("hash", "sha256"), eviction=Arc())
    assert reported({"allocator": GuardedAllocator(built)}) == {"allocator_cached_blocks": 0}
