"""A replay over several kinds of KV from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from processes import Command
from synthetic_workloads import mooncake


def test_a_hybrid_model_is_replayed_by_name(command: Command, tmp_path: Path) -> None:
    prompts = ([1, 2, 3, 4 + at, 9 + at, 20] for at in range(4))
    mooncake(tmp_path / "trace.jsonl", prompts, every_ms=1, input_length=2600)
    words = ("mode=replay", "executor=cache_only", "workload=trace", f"workload.path={tmp_path}/trace.jsonl",
             "cache.block_size=512", "replay.capacity=1GiB", "run.progress=false")  # fmt: skip
    command.ok(
        *words, f"run.dir={tmp_path}/run",
        "replay.groups={model: qwen3-next-80b, sharing: pool_per_group, rule: every, interval: 512, order: marconi}",
    )  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["hit_tokens"], result["state_lost_tokens"], result["prompt_tokens"]) == (3 * 1536, 0, 4 * 2600), (
        result
    )
    assert result["bound_hit_tokens"] >= result["hit_tokens"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert [line["cached_tokens"] for line in lines] == [0, 1536, 1536, 1536]
    status, _, errors = command(*words, "replay.groups={model: qwen3-next-80b, sharing: two_levels, order: quota}",
                                f"run.dir={tmp_path}/refused")  # fmt: skip
    assert (status, "order=quota leads one_pool" in errors) == (2, True), errors
