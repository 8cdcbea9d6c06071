"""K and V are stored in the dtype that was asked, or the run is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_engines import make_llm

from framework.errors import BackendUnavailable
from framework.llm import LLM, CacheOptions
from framework.sampling import Sampling


def texts(**options: Any) -> tuple[LLM, list[str]]:
    llm = make_llm("tiny", num_blocks=40, **options)
    return llm, [r.completions[0].text for r in llm.generate(["Hello world", "abc"], Sampling(max_tokens=12))]


@pytest.mark.parametrize("name", ["float64", "bfloat16", "float16", "float8_e4m3fn", "int8"])
def test_the_pool_has_the_dtype_that_was_asked_and_the_model_keeps_its_own(name: str) -> None:
    (plain, wanted), (llm, found) = texts(), texts(kv_dtype=name)
    assert llm.pool.layers[0].k.dtype == getattr(torch, name)
    assert (llm.kv_dtype, llm.model.decoder.dtype) == (name, torch.float32)
    held = [t for layer in llm.pool.layers for t in (layer.k, layer.v)]
    if name == "int8":
        held += [scale for layer in llm.pool.layers for scale in (layer.k_scale, layer.v_scale)]
    assert llm.pool.bytes == sum(t.numel() * t.itemsize for t in held)
    assert llm.namespace != plain.namespace, "what was rounded is not shared with what was not"
    if name == "float64":
        assert found == wanted


def test_the_model_s_own_dtype_may_be_named() -> None:
    (plain, wanted), (llm, found) = texts(), texts(kv_dtype="float32")
    assert (llm.kv_dtype, llm.namespace, found) == ("float32", plain.namespace, wanted)


def test_a_backend_that_cannot_store_it_is_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(BackendUnavailable, match="KV dtype bfloat16 is not supported; supported: float32"):
        LLM("tiny", backend="gather", cache=CacheOptions(num_blocks=None, kv_dtype="bfloat16"))
