"""A run of a served model over groups: its observers, its recording, and the replay of that over the same groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework import api
from framework_testing.checkpoints import make_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 20, "num_hidden_layers": 7, "query_pre_attn_scalar": 24},
    "qwen3_5_text": {"num_hidden_layers": 5, "full_attention_interval": 3, "linear_num_key_heads": 2,
                     "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
    "llama4_text": {"attention_chunk_size": 16, "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1],
                    "intermediate_size": 40, "intermediate_size_mlp": 96, "num_local_experts": 4,
                    "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "floor_scale": 20, "attn_scale": 0.3},
    "kimi_linear": {"num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
                    "v_head_dim": 12, "linear_head_dim": 8, "linear_num_heads": 4, "num_local_experts": 8, "n_group": 4,
                    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "topk_group": 2,
                    "moe_intermediate_size": 40, "num_experts_per_tok": 3},
}  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("family", "memory"),
    [
        ("gemma3_text", "one_pool"),
        ("qwen3_5_text", "pool_per_group"),
        *(
            pytest.param(family, "pool_per_group", marks=pytest.mark.slow)
            for family in ("gemma3_text", "llama4_text", "kimi_linear")
        ),
    ],
)
def test_its_recording_hits_the_same_and_each_missed_token_has_a_cause(
    family: str, memory: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, **FAMILIES[family])
    common: dict[str, Any] = {
        "cache": {"num_blocks": 900, "block_size": 4, "memory": memory},
        "engine": {"max_batch_requests": 40, "max_batch_tokens": 64, "chunk_size": 16},
    }
    served = api.run({
        "model": {"name": "checkpoint", "path": str(folder)}, **common,
        "observers": ["explain", {"name": "kv_events", "report_hits": True}],
        "workload": {"name": "shared_prefix", "num_requests": 12, "prefix_tokens": 45, "unique_tokens": 7,
                     "new_tokens": 9},
        "run": {"dir": str(tmp_path / "served"), "record": True, "check_requests": 2},
    })  # fmt: skip
    further = {"gemma3_text": "window", "llama4_text": "chunk"}.get(family, "state")
    assert served["hit_tokens"] > 300
    assert served[f"{further}_lost_tokens"] <= served["missed_unreachable_tokens"]
    missed = sum(served[key] for key in served if key.startswith("missed_") and key.endswith("_tokens"))
    assert served["hit_tokens"] + missed - served["missed_preempted_tokens"] == served["prompt_tokens"]
    events = [event for batch in lines(tmp_path / "served" / "kv_events.jsonl")[1:] for event in batch["events"]]
    assert {event.get("group_idx") for event in events} == set(range(7 if memory == "one_pool" else 2))
    api.run({
        "mode": {"name": "hybrid", "model": str(folder), "rule": "turns"}, **common,
        "workload": {"name": "recording", "path": str(tmp_path / "served" / "recording.jsonl")},
        "run": {"dir": str(tmp_path / "replayed")},
    })  # fmt: skip
    hits = [
        {row["request"]: row["cached_tokens"] for row in lines(tmp_path / name / "requests.jsonl")}
        for name in ("served", "replayed")
    ]
    assert hits[0] == hits[1]
