"""The decoder, the loader and the tokenizer against transformers' own, on checkpoints that transformers wrote."""

from __future__ import annotations

import pytest
import torch
from model_pairs import SERVED, check_greedy, check_logits, check_served, make_pair, prompt_of

from framework.model.dense import dense_logits
from framework.model.loading import load_model
from framework_testing.checkpoints import make_checkpoint

transformers = pytest.importorskip("transformers")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama GQA untied": ("llama", {}),
    "llama MHA tied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama MQA, all biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama llama3 rope": ("llama", {"rope_parameters": LLAMA3, "head_dim": 32}),
    "llama linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "qwen3 GQA tied": ("qwen3", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen3 biases, head dim unlike hidden / heads": ("qwen3", {"attention_bias": True, "head_dim": 24}),
    "qwen2 GQA untied": ("qwen2", {}),
    "mistral window": ("mistral", {"sliding_window": 20}),
}

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
CASES |= {
    "llama yarn rope": ("llama", {"rope_parameters": YARN, "head_dim": 32}),
    "qwen3 yarn rope, its factor given": ("qwen3", {"rope_parameters": YARN | {"attention_factor": 1.3}}),
    "llama yarn rope, mscale, not truncated": (
        "llama",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False, "beta_fast": 16.0}},
    ),
    "qwen3 window in some layers": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def pair(request, tmp_path_factory):
    return make_pair(tmp_path_factory.mktemp("model"), *request.param)


def test_logits_agree_to_1e_4(pair):
    check_logits(pair, 1e-4)


@pytest.mark.slow
def test_greedy_tokens_agree_over_160_steps(pair):
    check_greedy(pair)


@pytest.mark.parametrize(("backend", "tiers"), SERVED)
def test_served_tokens_are_those_of_the_dense_model(pair, backend, tiers):
    check_served(pair, backend, tiers)


def test_a_sharded_checkpoint_is_the_same_model(tmp_path):
    whole = load_model(make_checkpoint(tmp_path / "whole"))
    folder = make_checkpoint(tmp_path / "sharded", max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    sharded = load_model(folder).decoder.state_dict()
    for name, weight in whole.decoder.state_dict().items():
        assert torch.equal(weight, sharded[name]), name


def test_bfloat16_weights_load_as_saved_and_convert_on_request(tmp_path):
    folder = make_checkpoint(tmp_path, tokenizer=True)
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    loaded = load_model(folder)
    assert loaded.decoder.dtype == torch.bfloat16
    assert loaded.config.dtype == "bfloat16"
    prompt = prompt_of(loaded, 40)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        exact = theirs(prompt[None]).logits[0]
    ours = load_model(folder, dtype="float32")
    assert ours.decoder.dtype == torch.float32
    assert (dense_logits(ours.decoder, prompt) - exact).abs().max() <= 1e-4
    with torch.no_grad():
        theirs_low = theirs.to(torch.bfloat16)(prompt[None]).logits[0].float()
    error, allowed = (dense_logits(loaded.decoder, prompt) - exact).norm(), (theirs_low - exact).norm()
    assert error <= 1.5 * allowed, f"bfloat16 error {error}, transformers' own {allowed}"


TEXTS = (
    "",
    "Hello, world.",
    "  leading and trailing  \n\n",
    "def f(x):\n\treturn x",
    "naïve 数据 🙂 \x00",
    "<|start|>user",
    "a" * 500,
)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = make_checkpoint(tmp_path_factory.mktemp("tokenizer"))
    return load_model(folder).tokenizer, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_text_becomes_the_same_tokens_and_the_same_text_again(tokenizers, text):
    ours, theirs = tokenizers
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_conversation_becomes_the_same_tokens(tokenizers):
    ours, theirs = tokenizers
    messages = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Was ist ein Block? 数"},
        {"role": "assistant", "content": "A run of tokens."},
        {"role": "user", "content": ""},
    ]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.apply_chat(messages) == expected
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"), [(0, 1.0, 1.7), (7, 1.0, 1.0), (0, 0.6, 0.7), (12, 0.8, 1.3), (3, 0.99, 2)]
)
def test_what_can_be_drawn_is_what_transformers_warpers_leave(top_k, top_p, temperature):
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    from framework.model.sampler import sample

    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    draws = 20_000
    row = torch.randn(1, 24, generator=torch.Generator().manual_seed(0))
    left = warpers(torch.zeros(1, 1, dtype=torch.int64), row.clone())[0].softmax(-1)
    constant = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seeds": 0, "streams": 0}
    tokens, _ = sample(
        row.expand(draws, -1), positions=range(draws), **{name: [value] * draws for name, value in constant.items()}
    )
    frequency = torch.bincount(tokens, minlength=24) / draws
    assert set(frequency.nonzero()[:, 0].tolist()) == set(left.nonzero()[:, 0].tolist())
    assert (frequency - left).abs().max() < 5 * 0.5 * draws**-0.5
