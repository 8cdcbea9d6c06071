"""Precision of K and V at equal bytes: what the blocks that fewer bits make room for buy, and what they cost."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.shared import columns, finish, panels, parse, save
from framework.api import run
from framework.config.sections import CacheOptions
from framework.engine.executors.checks import attention_spec
from framework.engine.pool import block_bytes
from framework.model.loading import TINY_CONFIG

DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int8")
FLOAT32_BLOCKS = (48, 96, 192)
"""Pools, by the usable blocks that their bytes hold in float32; the null block is paid for in each."""
BLOCK_SIZE = 16
CHECKED = 8
WORKLOAD = {"name": "conversations", "num_sessions": 16, "turns": 3.0, "system_tokens": 128, "output_tokens": 16}


def main(arguments: Sequence[str] | None = None) -> int:
    """Every dtype in every pool, one run after the other."""
    options = parse(__doc__, "precision", arguments)
    pools = FLOAT32_BLOCKS[:1] if options.quick else FLOAT32_BLOCKS
    workload = {**WORKLOAD, "num_sessions": 4} if options.quick else WORKLOAD
    rows = [measured(dtype, blocks, workload) for blocks in pools for dtype in DTYPES]
    facts = {"workload": workload, "model": "tiny", "block_size": BLOCK_SIZE, "seed": 0}
    finish(options, {"precision": rows}, {"precision": _table(rows)}, **facts)
    shown = ("hit_rate", 1, "hit rate"), ("agreement", 1, "agrees with dense")
    save(panels(rows, "kv_dtype", ("kv_bytes", 1024, "pool, KiB"), *shown), options, "precision")
    return 0


def num_blocks(dtype: str, float32_blocks: int) -> int:
    """Usable blocks of this dtype in the bytes of a float32 pool."""
    return (float32_blocks + 1) * _bytes("float32") // _bytes(dtype) - 1


def _bytes(dtype: str) -> int:
    spec = attention_spec(TINY_CONFIG, "float32", CacheOptions(block_size=BLOCK_SIZE, kv_dtype=dtype))
    return block_bytes(spec, TINY_CONFIG.num_layers)


def measured(dtype: str, float32_blocks: int, workload: dict[str, Any]) -> dict[str, Any]:
    """One serve run: its capacity, its hits, and how it compares with the dense model."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            {
                "mode": "serve", "model": {"name": "tiny"}, "workload": workload, "allocator": "prefix_cow",
                "eviction": "lru", "hash": "sha256", "backend": "torch", "tracker": "none", "seed": 0,
                "cache": {"num_blocks": num_blocks(dtype, float32_blocks), "block_size": BLOCK_SIZE, "kv_dtype": dtype},
                "engine": {"max_batch_requests": 4},
                "run": {"dir": str(Path(folder) / "run"), "progress": False, "check_requests": CHECKED},
            }
        )  # fmt: skip
    assert result["num_finished"] == result["num_requests"], result
    return {
        "kv_bytes": (float32_blocks + 1) * _bytes("float32"),
        "kv_dtype": result["kv_dtype"],
        "blocks": result["num_blocks"],
        "requests": result["num_requests"],
        "hit_rate": result["hit_rate"],
        "hit_tokens": result["hit_tokens"],
        "evictions": result["num_evictions"],
        "checked": result["dense_checked"],
        "agreement": _agreement(result),
        "logit_error": result.get("dense_logit_error") or 0.0,
        "kl_divergence": result.get("dense_kl_divergence") or 0.0,
        "attention_error": result.get("attention_error") or 0.0,
    }


def _agreement(result: dict[str, Any]) -> float:
    """float32 is judged by equality, request by request; the others by their share of equal tokens."""
    if result.get("dense_agreement") is not None:
        return float(result["dense_agreement"])
    assert result["dense_mismatches"] == 0, result
    return 1.0


# What a reader sees


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return columns(rows, {
        "pool, KiB": lambda row: f"{row['kv_bytes'] / 1024:.0f}", "K and V": "{kv_dtype}", "blocks": "{blocks}",
        "hit rate": lambda row: f"{100 * row['hit_rate']:.1f} %", "evictions": "{evictions:,}",
        "agreement": lambda row: f"{100 * row['agreement']:.1f} %", "logit error": "{logit_error:.3f}",
        "KL": "{kl_divergence:.1e}", "attention": "{attention_error:.4f}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
