"""Tiers below the pool in every mode by the same words, and stores that hang or raise."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Command
from synthetic_workloads import mooncake

from framework.results.catalogue import find

TIERS = (
    "+below=tiers", "below.tiering=on_eviction", "below.tiers=[{store: host, num_blocks: 20000, eviction: lru}]",
)  # fmt: skip
KEYS = {"tier0_hit_blocks", "tier1_hit_blocks", "tier1_bytes_in", "tier1_bytes_out"}
TRACE = ("mode=replay", "workload=trace", "workload.path=trace.jsonl", "cache.num_blocks=3", "cache.block_size=512")
MODES = {
    "serve": ("workload=chat", "workload.num_requests=12", "cache.num_blocks=40"),
    "none": (*TRACE, "executor=none"),
    "roofline": (*TRACE, "executor=roofline"),
    "cache_only": ("mode=cache_only", *TRACE[1:]),
}


@pytest.fixture
def result(elsewhere: Path, command: Command) -> Callable[..., dict[str, Any]]:
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 10], [4, 5, 11], [7, 8, 12]]
    mooncake(elsewhere / "trace.jsonl", prompts, every_ms=60_000, input_length=1200, output_length=1)

    def run(*words: str) -> dict[str, Any]:
        command.ok(*words, "run.dir=run", "run.progress=false")
        return json.loads((elsewhere / "run" / "result.json").read_text())

    return run


@pytest.mark.parametrize("mode", MODES)
def test_the_same_words_work_in_every_mode(mode: str, result: Callable[..., dict[str, Any]], elsewhere: Path) -> None:
    found = result(*MODES[mode], *TIERS)
    assert found.keys() >= KEYS
    assert not [key for key in found if find(key) is None], "a key that is not declared"
    assert found["tiering"] == "on_eviction"
    assert found["tier1_hit_blocks"] > 0
    assert found["tier1_bytes_in"] >= found["tier1_bytes_out"] > 0
    assert found["tier0_hit_blocks"] + found["tier1_hit_blocks"] >= found["hit_blocks"] > 0
    if mode != "serve":
        block = 512 * 2 * 32 * 8 * 128 * 2  # K and V of llama-3.1-8b in bfloat16
        assert found["tier1_bytes_out"] == found["tier1_hit_blocks"] * block == 6 * block
    rows = [json.loads(line) for line in (elsewhere / "run" / "requests.jsonl").read_text().splitlines()]
    if mode == "cache_only":
        assert [row["tier1_blocks"] for row in rows] == [0, 0, 0, 2, 2, 2]
    elif mode != "serve":
        assert [row["tier1_tokens"] for row in rows] == [0, 0, 0, 1024, 1024, 1024]
        assert all(row["load_s"] > 0 for row in rows[3:])


def test_the_optimum_over_tiers_stands_beside_what_was_hit(result: Callable[..., dict[str, Any]]) -> None:
    found = result(*MODES["cache_only"], *TIERS)
    best = [found[f"tier{number}_optimum_hit_blocks"] for number in (0, 1)]
    pinned = [found[f"tier{number}_pinned_optimum_hit_blocks"] for number in (0, 1)]
    assert sum(best) == found["optimum_hit_blocks"] == 6
    assert sum(pinned) == found["pinned_optimum_hit_blocks"] == 6
    assert (best, pinned) == ([3, 3], [0, 6]), "a pool of three blocks is all the request at hand has"
    assert (found["tier0_hit_blocks"], found["tier1_hit_blocks"]) == (0, 6)
    assert (found["tier_value_share_min"], found["tier_value_share_max"]) == (1.0, 1.0)
    assert "over tiers" in found["optimum_rules"]


def test_a_slow_link_makes_first_tokens_late_and_a_rule_may_recompute_instead(
    result: Callable[..., dict[str, Any]], elsewhere: Path
) -> None:
    def ttft(rule: str, rate: str) -> float:
        tiers = f"below.tiers=[{{store: host, num_blocks: 20000, bytes_per_s: {rate}}}]"
        result(*MODES["roofline"], "+below=tiers", f"below.tiering={rule}", tiers)
        last = json.loads((elsewhere / "run" / "requests.jsonl").read_text().splitlines()[-1])
        return float(last["first_token_s"] - last["arrival_s"])

    alone = ttft("never", "1e9")
    assert ttft("on_eviction", "1e8") > 2 * alone
    assert ttft("load_or_recompute", "1e8") == pytest.approx(alone, rel=0.05)


HANGS = """
import time
from framework_tiers.stores.host import Host

class Hangs(Host):
    def read(self, key, *rest):
        time.sleep(10**6)
"""


def test_a_store_that_hangs_is_named_and_the_run_ends(elsewhere: Path, command: Command) -> None:
    (elsewhere / "hangs.py").write_text(HANGS)
    start = time.monotonic()
    status, out, err = command(
        "workload=chat", "workload.num_requests=16", "cache.num_blocks=40", "run.progress=false", "run.dir=run",
        "run.stall_timeout_s=1", "+below=tiers", "below.tiers=[{store: 'hangs.py:Hangs', num_blocks: 500}]",
    )  # fmt: skip
    assert status == 1, out + err
    assert time.monotonic() - start < 60
    result = json.loads((elsewhere / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "store Hangs.read (hangs.py:7): has not returned for 1 seconds" in result["reasons"][0]


RAISES = """
from framework_tiers.stores.host import Host

class Raises(Host):
    def {method}(self, *given):
        raise {error}
"""


@pytest.mark.parametrize(("method", "error"), [("write", "SystemExit"), ("close", "ValueError(1)")])
def test_a_store_that_raises_ends_the_run_by_its_name_and_what_was_measured_is_kept(
    method: str, error: str, elsewhere: Path, command: Command
) -> None:
    (elsewhere / f"raises_in_{method}.py").write_text(RAISES.format(method=method, error=error))
    status, _, err = command(
        "workload=chat", "workload.num_requests=16", "cache.num_blocks=40", "run.progress=false", "run.dir=run",
        "run.check_requests=0", "+below=tiers",
        f"below.tiers=[{{store: 'raises_in_{method}.py:Raises', num_blocks: 8}}]",
    )  # fmt: skip
    assert status == 1
    result = json.loads((elsewhere / "run" / "result.json").read_text())
    assert (result["status"], result["num_failed"]) == ("failed", 0), result
    assert f": store Raises.{method}: raised {error}" in result["reasons"][0], result["reasons"]
    assert result["reasons"][0] in err, err
