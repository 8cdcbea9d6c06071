"""What fewer bits buy: the hit rate of the same requests in as many bytes of the model's dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_workloads import mooncake

from framework import api
from framework.modes.replay_input import equal_bytes
from framework.replay.roofline import Roofline
from framework.results.layout import RECORDING

TALK = {"name": "conversations", "num_sessions": 12, "turns": 3, "output_tokens": 8}


def serve(folder: Path, **cache: Any) -> dict[str, Any]:
    return api.run(
        {
            "workload": TALK,
            "model": {"name": "tiny"},
            "cache": cache,
            "engine": {"max_batch_requests": 4},
            "run": {"dir": str(folder), "progress": False, "check_requests": 0},
        }
    )


def replay(folder: Path, cache: dict[str, Any], **options: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [[i % 5, 10 + i % 5, 20 + i] for i in range(40)]
    trace = mooncake(folder / "trace.jsonl", prompts, input_length=1060, output_length=2)
    return api.run(
        {
            "mode": "replay",
            "workload": {"name": "trace", "path": str(trace)},
            "cache": {"block_size": 512, "num_blocks": 16, **cache},
            "replay": options,
            "run": {"dir": str(folder / "run"), "progress": False},
        }
    )


def test_the_blocks_are_those_that_the_bytes_hold_and_none_has_no_hit_rate() -> None:
    assert equal_bytes(10, 100, 200, lambda blocks: blocks / 10) == {
        "equal_bytes_num_blocks": 5,
        "equal_bytes_hit_rate": 0.5,
    }
    assert equal_bytes(1, 100, 200, lambda blocks: 1.0) == {"equal_bytes_num_blocks": 0, "equal_bytes_hit_rate": None}


@pytest.mark.parametrize(
    ("kv_dtype", "blocks"),
    [
        ("int8", 37),
        pytest.param("bfloat16", 60, marks=pytest.mark.slow),
        pytest.param("float8_e4m3fn", 30, marks=pytest.mark.slow),
    ],
)
def test_a_serve_run_says_what_float32_would_have_hit_and_a_run_of_float32_hits_it(
    tmp_path: Path, kv_dtype: str, blocks: int
) -> None:
    """int8: 16 bytes and a scale of 4 for each token and head of 16, where float32 takes 64."""
    narrow = serve(tmp_path / "narrow", kv_dtype=kv_dtype, num_blocks=120)
    assert narrow["equal_bytes_num_blocks"] == blocks
    assert not (tmp_path / "narrow" / RECORDING).exists(), "run.record was not asked for"
    plain = serve(tmp_path / "plain", num_blocks=blocks)
    assert "equal_bytes_hit_rate" not in plain
    assert narrow["hit_rate"] > narrow["equal_bytes_hit_rate"], narrow
    assert narrow["equal_bytes_hit_rate"] == plain["hit_rate"], "prompts here do not depend on answers"


def test_a_replay_says_what_the_dtype_of_the_weights_would_have_hit(tmp_path: Path) -> None:
    narrow = replay(tmp_path / "narrow", {"kv_dtype": "float8_e4m3fn"})
    plain = replay(tmp_path / "plain", {"num_blocks": 8})
    assert (narrow["kv_dtype"], narrow["equal_bytes_num_blocks"]) == ("float8_e4m3fn", 8)
    assert narrow["equal_bytes_hit_rate"] == plain["hit_rate"] < narrow["hit_rate"], (narrow, plain)
    same = replay(tmp_path / "same", {"kv_dtype": "bfloat16"})
    assert (same["kv_dtype"], "equal_bytes_hit_rate" in same) == ("bfloat16", False)


def test_a_capacity_in_bytes_counts_the_dtype_of_k_and_v_and_the_scales_of_int8(tmp_path: Path) -> None:
    found = {
        dtype: replay(tmp_path / str(dtype), {"kv_dtype": dtype}, capacity="1GiB")["num_blocks"]
        for dtype in (None, "bfloat16", "float32", "int8")
    }
    assert found == {None: 16, "bfloat16": 16, "float32": 8, "int8": 31}, found


def test_a_roofline_moves_k_and_v_in_their_own_dtype() -> None:
    own, narrow, int8 = (Roofline(kv_dtype=dtype).kv_bytes_per_token for dtype in (None, "float8_e4m3fn", "int8"))
    assert (own, narrow, int8) == (131_072, 65_536, 65_536 + 32 * 2 * 8 * 4)
    assert Roofline(kv_dtype="int8").prefill_s(10_000, 10_001) < Roofline().prefill_s(10_000, 10_001)


def test_where_no_request_fits_into_the_other_pool_there_is_no_hit_rate(tmp_path: Path) -> None:
    narrow = replay(tmp_path, {"num_blocks": 3, "kv_dtype": "float8_e4m3fn"}, optimum=True)
    assert (narrow["equal_bytes_num_blocks"], narrow["equal_bytes_hit_rate"]) == (1, None), narrow
    alone = replay(tmp_path / "alone", {"num_blocks": 1}, optimum=True)
    assert (alone["num_rejected"], alone["hit_rate"], alone["gap_to_offline_next_use"]) == (40, None, None), alone
