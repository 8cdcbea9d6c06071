"""A config.json of these families with any value in any place is read, or refused in one sentence and at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ModelError
from framework.model.families import read_hf_config

WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([10**9, 2**63, 10**400, -1, 0]), st.floats(),
    st.text(max_size=5), st.lists(st.integers(), max_size=2), st.just({}), st.just({"a": None}),
)  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v32", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 8, "n_shared_experts": 1, "first_k_dense_replace": 0, "mlp_layer_types": None,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid", "index_topk": 4,
    "index_n_heads": 2, "index_head_dim": 8, "rope_interleave": True, "scale_emb": 12, "scale_depth": 1.4,
    "dim_model_base": 16,
}  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(sorted(DEEPSEEK)),
    value=WRONG,
    family=st.sampled_from(["deepseek_v32", "minicpm3", "kimi_linear"]),
)
def test_any_value_of_latent_attention_is_read_or_refused(key, value, family):
    message = ""
    try:
        read_hf_config(DEEPSEEK | {"model_type": family} | {key: value})
    except ModelError as error:
        message = str(error)
    assert "\n" not in message, message
    assert len(message) < 500, message  # the longest one lists every family


def test_deepseek_v3_as_it_is_published_is_read():
    """huggingface.co/deepseek-ai/DeepSeek-V3 config.json, without its quantisation."""
    config = read_hf_config(
        {
            "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "qk_nope_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "n_group": 8,
            "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "max_position_embeddings": 163840, "rope_theta": 10000,
            "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                             "original_max_position_embeddings": 4096, "type": "yarn"},
        }
    )  # fmt: skip
    assert (config.latent_dim, config.rotary_dim, config.head_dim, config.nope_dim) == (512, 64, 576, 128)
    assert (config.experts.shared_size, config.experts.first_layer, config.intermediate_size) == (2048, 3, 18432)
    assert config.rope_scaling.attention_factor == 1.0
    growth = 0.1 * math.log(40) + 1
    assert config.attention_scale == pytest.approx(192**-0.5 * growth**2)


def test_kimi_linear_and_nemotron_3_nano_as_they_are_published_are_read():
    """huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct and nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16."""
    full = [4, 8, 12, 16, 20, 24, 27]
    kimi = read_hf_config(
        {
            "model_type": "kimi_linear", "vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 27,
            "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 9216, "head_dim": 72,
            "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "mla_use_nope": True, "num_experts": 256, "num_experts_per_token": 8,
            "num_shared_experts": 1, "moe_intermediate_size": 1024, "moe_renormalize": True, "num_expert_group": 1,
            "topk_group": 1, "routed_scaling_factor": 2.446, "moe_router_activation_func": "sigmoid",
            "first_k_dense_replace": 1, "model_max_length": 1048576,
            "linear_attn_config": {
                "full_attn_layers": full, "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
                "kda_layers": [layer for layer in range(1, 28) if layer not in full],
            },
        }
    )  # fmt: skip
    assert kimi.attention_layers == tuple(layer - 1 for layer in full)
    assert (kimi.latent_dim, kimi.head_dim, kimi.experts.count, kimi.experts.first_layer) == (512, 576, 256, 1)
    assert kimi.state_bytes(2) == 4 * 32 * 128 * 128 + 2 * 3 * 3 * 32 * 128
    nano = read_hf_config(
        {
            "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688, "num_attention_heads": 32,
            "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
            "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "intermediate_size": 1856, "n_routed_experts": 128,
            "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
            "routed_scaling_factor": 2.5, "mlp_hidden_act": "relu2", "use_bias": False, "use_conv_bias": True,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        }
    )  # fmt: skip
    assert (nano.num_layers, len(nano.state_layers), nano.attention_layers) == (52, 23, (5, 12, 19, 26, 33, 42))
    assert nano.state_bytes(2) == 4 * 64 * 64 * 128 + 2 * 3 * (64 * 64 + 2 * 8 * 128)


MINIMAL: dict[str, Any] = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
MINIMAL |= {"intermediate_size": 8}
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2", "num_hidden_layers": 10**9}, "num_layers must be at most 4,096"),
        (EXPERTS | {"mlp_only_layers": [0]}, "layers with and without routed experts"),
        (EXPERTS | {"num_experts_per_tok": 5}, "5 of 4 experts"),
        (EXPERTS | {"model_type": "gpt_oss", "swiglu_limit": 3.0}, "swiglu_limit 3.0"),
        ({"model_type": "deepseek_v3", "scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"model_type": "deepseek_v3", "n_group": 3}, "4 of 3 groups of 256 experts"),
        ({"model_type": "deepseek_v32", "q_lora_rank": None}, "q_lora_rank is missing"),
        (
            {"model_type": "deepseek_v3", "mlp_layer_types": ["sparse", "dense"]},
            "'mlp_layer_types' must be a list of 1",
        ),
        ({"model_type": "gemma2", "hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*", "use_bias": True}, "use_bias True"),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", 1]}, "'layers_block_type' must be a list of"),
        ({"model_type": "kimi_linear", "mla_use_nope": False}, "mla_use_nope False"),
        ({"model_type": "kimi_linear", "layer_types": ["mamba"]}, "'layer_types' must be a list of 1"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_hf_config(MINIMAL | change)


def test_experts_are_read() -> None:
    assert read_hf_config(MINIMAL | EXPERTS).experts.count == 4
