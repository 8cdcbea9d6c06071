"""transformers models with our backends for attention: the logits and tokens of sdpa."""

import sys

import pytest
import torch

from framework.errors import ConfigError, InvalidArgument, UnknownPlugin, Unsupported
from framework_engines import register_transformers

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
}


def config(family):
    if family == "windowed":
        return transformers.MistralConfig(**SIZES, sliding_window=5)
    return {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family](**SIZES)


def pair(family, name):
    """The same weights with sdpa and with ours."""
    found = []
    for implementation in ("sdpa", name):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config(family), attn_implementation=implementation)
        found.append(model.eval())
    assert found[1].config._attn_implementation == name
    return found


def prompts():
    torch.manual_seed(1)
    return torch.randint(3, 97, (3, 21))


@pytest.mark.parametrize("family", ["llama", "qwen3", "windowed"])
@pytest.mark.parametrize("backend", ["torch", "gather"])
@torch.no_grad()
def test_logits_and_greedy_tokens_equal_sdpas(family, backend):
    register_transformers(backend, f"kvlab_{backend}", block_size=8)
    theirs, ours = pair(family, f"kvlab_{backend}")
    ids = prompts()
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=2e-4, rtol=1e-4)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options["attention_mask"] = torch.ones_like(ids)
    assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "windowed"])
@torch.no_grad()
def test_padded_rows_give_sdpas_logits_at_every_token_that_is_none(family, side):
    register_transformers("torch", "kvlab_torch")
    theirs, ours = pair(family, "kvlab_torch")
    ids, mask = prompts(), torch.ones(3, 21, dtype=torch.long)
    for row, pad in ((0, 4), (2, 17)):
        mask[row, :pad] = 0
    if side == "right":
        mask = mask.flip(1)
    real = mask.bool()
    expected, found = (model(ids, attention_mask=mask).logits[real] for model in (theirs, ours))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_left_padded_prompts_generate_sdpas_tokens():
    register_transformers("torch", "kvlab_torch")
    theirs, ours = pair("llama", "kvlab_torch")
    ids, mask = prompts(), torch.ones(3, 21, dtype=torch.long)
    mask[0, :4], mask[2, :17] = 0, 0
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": mask}
    assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options))


def test_what_a_backend_cannot_do_is_refused_with_a_reason():
    register_transformers("torch", "kvlab_torch")
    _, ours = pair("llama", "kvlab_torch")
    ids = prompts()
    with pytest.raises(Unsupported, match="gradients; call it under"):
        ours(ids)
    with torch.no_grad():
        packed = torch.arange(21) % 7
        with pytest.raises(Unsupported, match="not causal over one run of keys"):
            ours(ids[:1], position_ids=packed[None], use_cache=False)
        both_ways = torch.ones(1, 1, 21, 21, dtype=torch.bool)
        with pytest.raises(Unsupported, match="not causal over one run of keys"):
            ours(ids[:1], attention_mask=both_ways)


def test_a_wrong_registration_is_refused_before_anything_is_registered():
    with pytest.raises(UnknownPlugin):
        register_transformers("torhc", "kvlab_wrong")
    with pytest.raises(InvalidArgument, match="block_size must be at least 1"):
        register_transformers("torch", "kvlab_wrong", block_size=0)
    with pytest.raises(ConfigError, match="backend must be a name"):
        register_transformers(object(), "kvlab_wrong")
    assert "kvlab_wrong" not in transformers.AttentionInterface._global_mapping


def test_without_transformers_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Unsupported, match="no attention interface to use"):
        register_transformers("torch", "kvlab_none")
