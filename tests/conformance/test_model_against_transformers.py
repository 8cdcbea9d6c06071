"""The decoder, the loader and the tokenizer against transformers' own, on checkpoints that transformers wrote."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from fake_engines import make_llm
from safetensors.torch import load_file, save_file

from framework import registry
from framework.model.dense import dense_logits, greedy
from framework.model.loading import load_model
from framework.sampling import Sampling
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
QWEN_STATES = {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
               "linear_key_head_dim": 8, "linear_value_head_dim": 12}  # fmt: skip
QWEN_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                "shared_expert_intermediate_size": 24}  # fmt: skip
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
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
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
    "phi3 GQA": ("phi3", {"pad_token_id": 0}),
    "mixtral window": ("mixtral", EXPERTS | {"sliding_window": 20}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"moe_intermediate_size": 40}),
    "qwen3_moe renormalised, biases": (
        "qwen3_moe",
        EXPERTS | {"moe_intermediate_size": 40, "norm_topk_prob": True, "attention_bias": True},
    ),
    "gemma2": ("gemma2", {"sliding_window": 20, "query_pre_attn_scalar": 24}),
    "gemma2 small caps": (
        "gemma2",
        {
            "sliding_window": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma2 without caps": (
        "gemma2",
        {"sliding_window": 20, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_text": ("gemma3_text", {"sliding_window": 20, "num_hidden_layers": 7, "query_pre_attn_scalar": 24}),
    "gemma3_text linear rope, 2 of 3 sliding": (
        "gemma3_text",
        {
            "sliding_window": 20,
            "tie_word_embeddings": False,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gpt_oss": ("gpt_oss", EXPERTS | {"sliding_window": 20}),
    "qwen3_5_text": ("qwen3_5_text", QWEN_STATES),
    "qwen3_next": ("qwen3_next", QWEN_STATES | QWEN_EXPERTS),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", QWEN_STATES | QWEN_EXPERTS),
    "qwen3_5_text, half of a head rotated, tied": (
        "qwen3_5_text",
        {
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_conv_kernel_dim": 3,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 16,
            "tie_word_embeddings": True,
            "linear_value_head_dim": 8,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5},
        },
    ),
}

LATENT = {"num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
          "kv_lora_rank": 32, "q_lora_rank": 24}  # fmt: skip
DEEPSEEK = LATENT | {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
                     "moe_intermediate_size": 40, "first_k_dense_replace": 1}  # fmt: skip
CASES |= {
    "deepseek_v3": ("deepseek_v3", DEEPSEEK),
    "deepseek_v3 yarn rope in halves, biases, plain queries": (
        "deepseek_v3",
        DEEPSEEK
        | {
            "q_lora_rank": None,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "attention_bias": True,
            "rope_interleave": False,
            "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4},
        },
    ),
    "deepseek_v32, 12 tokens selected": (
        "deepseek_v32",
        DEEPSEEK | {"index_topk": 12, "index_head_dim": 16, "index_n_heads": 16},
    ),
    "glm4_moe_lite, groups of one": ("glm4_moe_lite", DEEPSEEK | {"n_group": 1, "topk_group": 1}),
    "minicpm3 untied": ("minicpm3", LATENT | {"tie_word_embeddings": False, "dim_model_base": 32}),
    "minicpm3 no scales": (
        "minicpm3",
        LATENT | {"v_head_dim": None, "scale_depth": None, "dim_model_base": None, "tie_word_embeddings": False},
    ),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def pair(request, tmp_path_factory):
    """Our model and theirs, in float32, from one folder."""
    family, overrides = request.param
    folder = make_checkpoint(tmp_path_factory.mktemp(family), family, **overrides)
    # Theirs applies soft caps and sinks in its plain attention alone.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return load_model(folder), theirs.eval()


def prompt_of(model, length, seed=0):
    return torch.randint(4, model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_logits_agree_to_1e_4(pair):
    ours, theirs = pair
    # A recurrence in float32: each of the two is up to 1.4e-3 from float64.
    allowed = 1e-4 if ours.config.recurrent is None else 3e-3
    for length in (1, 2, 33, 160):
        prompt = prompt_of(ours, length, seed=length)
        difference = (dense_logits(ours.decoder, prompt) - theirs(prompt[None]).logits[0]).abs().max()
        assert difference <= allowed, f"length {length}: {difference}"


def test_greedy_tokens_agree_over_160_steps(pair):
    ours, theirs = pair
    prompt = prompt_of(ours, 21)
    expected = theirs.generate(prompt[None], do_sample=False, max_new_tokens=160, eos_token_id=None)[0, 21:].tolist()
    found = greedy(ours.decoder, prompt, 160)
    assert len(expected) == 160
    assert found.tokens == expected
    assert len(set(found.tokens)) > 8, f"a degenerate text proves little: {found.tokens}"


@pytest.fixture(scope="module")
def continued(pair):
    """Three prompts, and the 30 tokens that the dense model appends to each."""
    ours, _ = pair
    prompts = [prompt_of(ours, length, seed=length).tolist() for length in (3, 41, 60)]
    return prompts, [greedy(ours.decoder, prompt, 30).tokens for prompt in prompts]


TIERS = pytest.param(
    "torch", True, marks=pytest.mark.skipif("tiers" not in registry.names("below"), reason="needs tiers below the pool")
)


@pytest.mark.parametrize(("backend", "tiers"), [("torch", False), ("gather", False), TIERS])
def test_served_tokens_are_those_of_the_dense_model(pair, continued, backend, tiers):
    """Twice over; the second time, with tiers, from below a pool that has no room for it all."""
    (ours, _), (prompts, wanted) = pair, continued
    below = {"name": "tiers", "tiers": [{"store": "host", "num_blocks": 400}]}
    pool = {"below": below, "num_blocks": 25} if tiers else {"num_blocks": 120}
    engine = {"chunk_size": 16, "max_batch_requests": 2, "max_batch_tokens": 64}
    llm = make_llm(ours, backend=backend, block_size=4, poison=True, **engine, **pool)
    sampling = Sampling(max_tokens=30, ignore_eos=True)
    for _ in range(2):
        assert [request.completions[0].tokens for request in llm.generate(prompts, sampling)] == wanted
    assert (llm.stats().get("num_loads", 0) > 0) == tiers
    llm.close()


def test_the_text_of_a_model_that_also_sees_is_the_same_model(tmp_path):
    """Qwen3.5 as it is published: a config within a config, longer names, and weights that text has no use for."""
    whole = load_model(make_checkpoint(tmp_path / "text", "qwen3_5_text", **CASES["qwen3_5_text"][1]))
    folder = tmp_path / "both"
    shutil.copytree(tmp_path / "text", folder)
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    found = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model."): weight for name, weight in found.items()}
    extra = {name: torch.zeros(2) for name in ("model.visual.patch_embed.proj.bias", "mtp.norm.weight")}
    save_file(renamed | extra, folder / "model.safetensors")
    seen = load_model(folder).decoder.state_dict()
    for name, weight in whole.decoder.state_dict().items():
        assert torch.equal(weight, seen[name]), name


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
    for seed in range(3):
        row = torch.randn(1, 24, generator=torch.Generator().manual_seed(seed))
        left = warpers(torch.zeros(1, 1, dtype=torch.int64), row.clone())[0].softmax(-1)
        constant = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seeds": seed, "streams": 0}
        tokens, _ = sample(
            row.expand(draws, -1), positions=range(draws), **{name: [value] * draws for name, value in constant.items()}
        )
        frequency = torch.bincount(tokens, minlength=24) / draws
        assert set(frequency.nonzero()[:, 0].tolist()) == set(left.nonzero()[:, 0].tolist())
        assert (frequency - left).abs().max() < 5 * 0.5 * draws**-0.5
