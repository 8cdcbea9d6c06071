"""Layers with and without a sliding window, and sinks, served over paged K and V."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from dense_greedy import greedy
from fake_engines import make_llm

from framework.errors import BackendUnavailable, Unsupported
from framework.llm import LLM, CacheOptions
from framework.model.config import ModelConfig
from framework.model.loading import LoadedModel, random_model
from framework.modes.dense_check import measure_loss
from framework.sampling import Sampling
from framework_torch.backend import TorchBackend

MIXED = ModelConfig(
    family="mixed", vocab_size=263, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=48, sliding_window=9, sliding_layers=(True, False, True), local_rope_theta=100.0, sinks=True,
    norms_plus_one=True, embedding_scale=32**0.5, soft_cap=20.0,
)  # fmt: skip


class Rotating(TorchBackend):
    """Says that it rotates in one pass with the write, so that the engine hands it the angles."""

    capabilities = replace(TorchBackend.capabilities, features=TorchBackend.capabilities.features | {"rope"})


class Uncopied(TorchBackend):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("holds a device handle")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    loaded = random_model(MIXED)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in loaded.decoder.named_parameters():
        gain = 0.2 if name.endswith("norm") else 2.0 * parameter.shape[-1] ** -0.5
        parameter.copy_(gain * torch.randn(parameter.shape, generator=generator))
    return loaded


@pytest.mark.parametrize("backend", ["torch", "gather", Rotating])
def test_layers_of_both_kinds_give_the_dense_tokens(model: LoadedModel, backend: Any) -> None:
    prompts = [list(range(5)), list(range(40, 90))]
    wanted = [greedy(model.decoder, prompt, 25).tokens for prompt in prompts]
    assert len(set(wanted[1])) > 3, wanted
    llm = make_llm(model, backend=backend, block_size=4, num_blocks=80, chunk_size=8, poison=True)
    assert [r.completions[0].tokens for r in llm.generate(prompts, Sampling(max_tokens=25, ignore_eos=True))] == wanted
    assert [own.spec.sliding_window for own in llm.backends] == [9, None, 9]
    assert llm.backends[0] is llm.backends[2] is llm.backend


def test_the_loss_of_a_narrow_pool_is_measured_layer_by_layer(model: LoadedModel) -> None:
    found = []
    for kv_dtype in (None, "int8"):
        llm = LLM(model, backend="torch", cache=CacheOptions(num_blocks=40, kv_dtype=kv_dtype))
        requests = llm.generate([list(range(40, 90))], Sampling(max_tokens=8, ignore_eos=True))
        found += measure_loss(llm, requests, 1)
    exact, rounded = found
    assert exact.attention_error < 1e-5 < rounded.attention_error < 0.1, found
    assert exact.differs_at is None


def test_a_backend_that_lacks_a_feature_is_refused_by_name(model: LoadedModel) -> None:
    class Plain(TorchBackend):
        capabilities = replace(TorchBackend.capabilities, features=frozenset({"soft_cap"}))

    with pytest.raises(BackendUnavailable, match="sliding_window is not supported; sinks is not supported"):
        LLM(model, backend=Plain, cache=CacheOptions(num_blocks=40))


def test_a_backend_that_cannot_be_copied_is_refused(model: LoadedModel) -> None:
    with pytest.raises(Unsupported, match=r"cannot be copied .holds a device handle.*give the backend by name"):
        LLM(model, backend=Uncopied(), cache=CacheOptions(num_blocks=40))
