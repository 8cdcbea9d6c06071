"""These families against transformers' own, on checkpoints that transformers wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from model_pairs import Pair, check_greedy, check_logits, check_served, make_pair
from safetensors.torch import load_file, save_file
from thread_ranks import check_parts

from framework.model.loading import load_model
from framework_testing.checkpoints import make_checkpoint

QWEN_STATES = {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
               "linear_key_head_dim": 8, "linear_value_head_dim": 12}  # fmt: skip
QWEN_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
                "shared_expert_intermediate_size": 24}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
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
    "llama4_text": (
        "llama4_text",
        {
            "attention_chunk_size": 16,
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 0, 1, 1],
            "floor_scale": 20,
            "attn_scale": 0.3,
            "intermediate_size": 40,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
        },
    ),
    "llama4_text as Maverick, without norms": (
        "llama4_text",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 40,
            "num_local_experts": 4,
            "intermediate_size_mlp": 96,
            "moe_layers": [1],
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_chunk_size": 50,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention", "moe"],
            "num_hidden_layers": 6,
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 12,
            "n_groups": 2,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 24,
            "routed_scaling_factor": 2.5,
        },
    ),
    "kimi_linear": (
        "kimi_linear",
        {key: value for key, value in LATENT.items() if key != "q_lora_rank"}
        | {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 40,
        },
    ),
    "minicpm3 untied": ("minicpm3", LATENT | {"tie_word_embeddings": False, "dim_model_base": 32}),
    "minicpm3 no scales": (
        "minicpm3",
        LATENT | {"v_head_dim": None, "scale_depth": None, "dim_model_base": None, "tie_word_embeddings": False},
    ),
}


FIRST = {case[0]: name for name, case in reversed(CASES.items())}
every_case = pytest.mark.parametrize("pair", CASES, indirect=True, scope="module")
SERVED = {
    "gemma2": False, "llama4_text": False, "nemotron_h": False, "kimi_linear": False,
    "gemma3_text": True, "gpt_oss": True, "qwen3_next": True, "deepseek_v3": True,
}  # fmt: skip
"""Families of each kind of layer, and whether they are served with tiers below; other pairs are slow tests."""


@pytest.fixture(scope="module")
def pair(request: Any, tmp_path_factory: Any) -> Pair:
    return make_pair(tmp_path_factory.mktemp("model"), *CASES[request.param])


@every_case
def test_logits_agree(pair: Pair) -> None:
    # A recurrence in float32: each of the two is up to 1.4e-3 from float64.
    check_logits(pair, 3e-3 if pair[0].config.state_layers else 1e-4)


@every_case
@pytest.mark.slow
def test_greedy_tokens_agree_over_160_steps(pair: Pair) -> None:
    check_greedy(pair)


@pytest.mark.parametrize(
    ("pair", "backend", "tiers"),
    [
        pytest.param(name, backend, tiers, marks=[] if SERVED.get(family) is tiers else pytest.mark.slow)
        for family, name in FIRST.items()
        for backend, tiers in (("torch", False), ("gather", True))
    ],
    indirect=["pair"],
    scope="module",
)
def test_served_tokens_are_those_of_the_dense_model(pair: Pair, backend: str, tiers: bool) -> None:
    if tiers:
        pytest.importorskip("framework_tiers")
    check_served(pair, backend, tiers)


@every_case
def test_parts_compute_the_logits_of_the_whole(pair: Pair) -> None:
    config = pair[0].config
    for size in [size for size in (2, 4) if not config.undivided(size)]:
        check_parts(config, size, [(7 * at) % config.vocab_size for at in range(37)])


def test_the_text_of_a_model_that_also_sees_is_the_same_model(tmp_path: Path) -> None:
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
