"""Scales of fp8 pools: calibrated, given, refused; narrow pools under forks, preemption, sharing and several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engines import finished, make_llm

from framework.errors import ConfigError
from framework.interfaces.backend import LayerKV
from framework.llm import LLM, CacheOptions
from framework.sampling import Sampling
from framework_builtin.backend.gather import GatherBackend

PROMPTS = ["Hello world, a prompt of some length", "Hello world, a prompt of another", "abc"]
NARROW = ("float8_e4m3fn", "int8")


def tokens(llm: LLM, **sampling: Any) -> list[list[list[int]]]:
    found = finished(llm.generate(PROMPTS, Sampling(max_tokens=16, **sampling)))
    llm.engine.check()
    return found


def test_calibrated_scales_hold_twice_what_a_pass_over_the_model_shows() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=20, kv_dtype="float8_e4m3fn"))
    for layer in llm.pool.layers:
        assert layer.k_scale is not None
        assert layer.k_scale.shape == (2,)
        assert bool((layer.k_scale > 0).all())
        assert not torch.equal(layer.k_scale, torch.ones(2)), "calibrated"
    llm.generate(PROMPTS, Sampling(max_tokens=16))
    largest = max(float(layer.k.float().abs().max()) for layer in llm.pool.layers)
    assert 32 < largest < 448, "the range is used and not passed"


def test_scales_of_a_file_are_those_of_the_pool_and_give_the_same_tokens(tmp_path: Path) -> None:
    file = tmp_path / "scales.json"
    calibrated = LLM("tiny", cache=CacheOptions(num_blocks=40, kv_dtype="float8_e4m3fn"))
    names = {"k": "k_scale", "v": "v_scale"}
    rows = {key: [getattr(layer, name).tolist() for layer in calibrated.pool.layers] for key, name in names.items()}
    file.write_text(json.dumps(rows))
    given = LLM("tiny", cache=CacheOptions(num_blocks=40, kv_dtype="float8_e4m3fn", kv_scales=str(file)))
    for one, other in zip(calibrated.pool.layers, given.pool.layers, strict=True):
        assert one.k_scale is not None
        assert other.k_scale is not None
        assert torch.equal(one.k_scale, other.k_scale)
    assert tokens(calibrated) == tokens(given)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("no json", "cannot be read"),
        (json.dumps({"k": [[1.0, 1.0]] * 2}), "cannot be read"),
        (json.dumps({"k": [[1.0]] * 2, "v": [[1.0]] * 2}), r"shape \(2, 1\), the model has 2 layers of 2 kv heads"),
        (json.dumps({"k": [[1.0, 0.0]] * 2, "v": [[1.0, 1.0]] * 2}), "not finite and above 0"),
    ],
)
def test_scales_that_do_not_fit_are_refused(tmp_path: Path, content: str, match: str) -> None:
    file = tmp_path / "scales.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=match):
        LLM("tiny", cache=CacheOptions(num_blocks=20, kv_dtype="float8_e4m3fn", kv_scales=str(file)))


def test_scales_for_a_pool_that_has_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kv_scales is for cache\.kv_dtype=float8_e4m3fn, found kv_dtype=int8"):
        LLM("tiny", cache=CacheOptions(num_blocks=20, kv_dtype="int8", kv_scales="scales.json"))


@pytest.mark.parametrize("kv_dtype", NARROW)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_sharing_forks_and_preemption_change_no_token_of_a_narrow_pool(kv_dtype: str, layout: str) -> None:
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "layout": layout, "block_size": 4}
    alone = make_llm("tiny", num_blocks=400, allocator="naive", max_batch_requests=3, poison=True, **options)
    often = make_llm("tiny", num_blocks=400, chunk_size=5, poison=True, preempt_every=3, **options)
    assert tokens(often) == tokens(alone)
    assert often.stats()["num_preemptions"] > 0
    assert tokens(often, n=2, temperature=0.8, seed=3) == tokens(alone, n=2, temperature=0.8, seed=3)
    assert tokens(often, beam_width=3) == tokens(alone, beam_width=3)


@pytest.mark.parametrize("kv_dtype", NARROW)
def test_two_ranks_with_a_narrow_pool_give_the_tokens_of_one(kv_dtype: str) -> None:
    alone = tokens(LLM("tiny", cache=CacheOptions(num_blocks=60, kv_dtype=kv_dtype)))
    with make_llm("tiny", num_blocks=60, kv_dtype=kv_dtype, tensor_parallel_size=2) as spread:
        assert tokens(spread) == alone


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_fp8_writes_beyond_the_range_stay_finite(layout: str) -> None:
    shape = (3, 4, 2, 8) if layout == "NHD" else (3, 2, 4, 8)
    stored = [torch.zeros(shape, dtype=torch.float8_e4m3fn) for _ in range(2)]
    pool = LayerKV(stored[0], stored[1], layout, torch.ones(2), torch.ones(2))
    values = torch.full((1, 2, 8), 1e6)
    GatherBackend().write(pool, values, -values, torch.tensor([5]))
    at = (1, 1) if layout == "NHD" else (1, slice(None), 1)
    assert pool.k.float()[at].eq(448).all()
    assert pool.v.float()[at].eq(-448).all()
