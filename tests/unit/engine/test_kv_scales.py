"""Scales of fp8 pools: calibrated, given, refused; narrow pools under forks, preemption, sharing and several ranks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engines import finished, make_llm

from framework.engine.kv_scales import scales_name
from framework.engine.pool import KVPool
from framework.errors import ConfigError
from framework.interfaces.attention import AttentionSpec
from framework.interfaces.backend import LayerKV
from framework.llm import LLM, CacheOptions
from framework.model.dense import DenseCache
from framework.model.loading import load_model
from framework.sampling import Sampling
from framework_torch.gather import GatherBackend

PROMPTS = ["Hello world, a prompt of some length", "Hello world, a prompt of another", "abc"]


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
        (json.dumps({"k": [[1.0, 1.0]] * 2, "v": [[1.0, float("inf")]] * 2}), "'v' of .* not finite and above 0"),
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


@pytest.mark.parametrize(("kv_dtype", "layout"), [("float8_e4m3fn", "NHD"), ("int8", "HND")])
def test_sharing_forks_and_preemption_change_no_token_of_a_narrow_pool(kv_dtype: str, layout: str) -> None:
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "layout": layout, "block_size": 4}
    alone = make_llm("tiny", num_blocks=400, allocator="naive", max_batch_requests=3, poison=True, **options)
    often = make_llm("tiny", num_blocks=400, chunk_size=5, poison=True, preempt_every=3, **options)
    assert tokens(often) == tokens(alone)
    assert often.stats()["num_preemptions"] > 0
    assert tokens(often, n=2, temperature=0.8, seed=3) == tokens(alone, n=2, temperature=0.8, seed=3)
    assert tokens(often, beam_width=3) == tokens(alone, beam_width=3)


@pytest.mark.parametrize(
    ("kv_dtype", "given"),
    [("float8_e4m3fn", True), ("int8", False), pytest.param("float8_e4m3fn", False, marks=pytest.mark.slow)],
    ids=str,
)
def test_two_ranks_with_a_narrow_pool_give_the_tokens_of_one(kv_dtype: str, given: bool, tmp_path: Path) -> None:
    file = tmp_path / "scales.json"
    file.write_text(json.dumps({"k": [[0.01, 1e-4]] * 2, "v": [[0.01, 1e-4]] * 2}))  # one head is cut off, one is not
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "kv_scales": str(file) if given else None}
    alone = tokens(LLM("tiny", cache=CacheOptions(num_blocks=60, **options)))
    with make_llm("tiny", num_blocks=60, tensor_parallel_size=2, **options) as spread:
        assert tokens(spread) == alone


def test_calibrated_scales_are_those_of_each_layer_and_head_and_1_of_a_silent_one() -> None:
    """Twice the largest magnitudes of a dense pass are still in range."""
    model = load_model("tiny", dtype="float32", device="cpu")
    decoder, length = model.decoder, model.config.max_position_embeddings
    decoder.mixer(1).qkv.data[-model.config.head_dim :] = 0.0  # type: ignore[union-attr, operator, index]
    pool = make_llm(model, num_blocks=20, kv_dtype="float8_e4m3fn").pool
    drawn = torch.randint(model.config.vocab_size, (512,), generator=torch.Generator().manual_seed(0))[:length]
    dense = DenseCache(decoder)
    with torch.inference_mode():
        decoder(drawn, torch.arange(len(drawn)), dense.attend)
    for number, layer in enumerate(pool.layers):
        expected = [part.abs().amax((0, 2)) / 224 for part in dense.kv[number]]
        if number == 1:
            assert expected[1][-1] == 0, "V of its last head"
            expected[1][-1] = 1.0
        assert layer.k_scale is not None
        assert layer.v_scale is not None
        torch.testing.assert_close([layer.k_scale, layer.v_scale], expected)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_an_int8_value_without_an_end_is_read_as_one(layout: str) -> None:
    """Or logits would be finite and wrong."""
    shape = (3, 4, 2, 8) if layout == "NHD" else (3, 2, 4, 8)
    stored = [torch.zeros(shape, dtype=torch.int8) for _ in range(2)]
    pool = LayerKV(stored[0], stored[1], layout, torch.ones(shape[:-1]), torch.ones(shape[:-1]))
    values = torch.ones(1, 2, 8)
    values[0, 1, 3] = math.inf
    GatherBackend().write(pool, values, values, torch.tensor([5]))
    at = (1, 1) if layout == "NHD" else (1, slice(None), 1)
    for scale in (pool.k_scale, pool.v_scale):
        assert scale is not None
        assert scale[at].isfinite().tolist() == [True, False]


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


def test_pools_of_other_scales_have_other_names() -> None:
    spec = AttentionSpec(
        num_heads=2, num_kv_heads=2, head_dim=8, dtype="float32", block_size=4, kv_dtype="float8_e4m3fn"
    )
    pool, named = KVPool(spec, 2, 8), set()
    for layer in pool.layers:
        for scale in (layer.k_scale, layer.v_scale):
            assert scale is not None
            scale[1] = 3.0
            named.add(scales_name(pool))
    assert len(named) == 4, named
    assert scales_name(KVPool(replace(spec, kv_dtype=None), 2, 8)) == ""
