"""What layers keep, by the configurations of the families that there are."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.config.sections import CacheOptions
from framework.engine.executors.checks import attention_spec
from framework.errors import ModelError
from framework.groups.serving import groups_of_model, tokens_that_hold_a_state
from framework.model.families import read_hf_config
from framework_builtin.memory.one_pool import OnePool
from framework_hybrid.layers import Layers, layers_of
from framework_hybrid.shapes import SHAPES, groups_of
from framework_testing.checkpoints import make_checkpoint

LATENT, KDA = {"latent": 1024, "rope": 128}, {"memory": 32 * 128 * 128 * 4, "conv": 3 * 3 * 32 * 128 * 2}
FAMILIES: dict[str, list[Any]] = {
    "LlamaConfig": [("full", 32, {"k": 8192, "v": 8192}, 0, 1)],
    "Qwen2Config": [("full", 32, {"k": 8192, "v": 8192}, 0, 1)],
    "MistralConfig": [("window", 32, {"k": 2048, "v": 2048}, 4096, 1)],
    "Gemma2Config": [("full", 13, {"k": 2048, "v": 2048}, 0, 1), ("window", 13, {"k": 2048, "v": 2048}, 4096, 1)],
    "Gemma3TextConfig": [("full", 4, {"k": 2048, "v": 2048}, 0, 1), ("window", 22, {"k": 2048, "v": 2048}, 4096, 1)],
    "Gemma3nTextConfig": [("full", 4, {"k": 1024, "v": 1024}, 0, 1), ("window", 16, {"k": 1024, "v": 1024}, 512, 1)],
    "GptOssConfig": [("full", 18, {"k": 1024, "v": 1024}, 0, 1), ("window", 18, {"k": 1024, "v": 1024}, 128, 1)],
    "MiMoV2FlashConfig": [("full", 9, {"k": 1536, "v": 1024}, 0, 1), ("window", 39, {"k": 1536, "v": 1024}, 129, 1)],
    "Llama4TextConfig": [("full", 12, {"k": 2048, "v": 2048}, 0, 1), ("chunk", 36, {"k": 2048, "v": 2048}, 8192, 1)],
    "Qwen3NextConfig": [
        ("full", 12, {"k": 1024, "v": 1024}, 0, 1), ("state", 36, {"memory": 2_097_152, "conv": 49_152}, 0, 1),
    ],
    "Qwen3_5TextConfig": [
        ("full", 8, {"k": 2048, "v": 2048}, 0, 1), ("state", 24, {"memory": 2_097_152, "conv": 49_152}, 0, 1),
    ],
    "KimiLinearConfig": [("full", 6, LATENT, 0, 1), ("state", 21, KDA, 0, 1)],
    "BailingHybridConfig": [("full", 7, LATENT, 0, 1), ("state", 35, KDA, 0, 1)],
    "JambaConfig": [
        ("full", 4, {"k": 2048, "v": 2048}, 0, 1), ("state", 28, {"memory": 8192 * 16 * 4, "conv": 8192 * 3 * 2}, 0, 1),
    ],
    "DeepseekV2Config": [("full", 32, LATENT, 0, 1)],
    "DeepseekV3Config": [("full", 61, LATENT, 0, 1)],
    "DeepseekV32Config": [("full", 61, LATENT | {"index": 256}, 0, 1)],
    "GlmMoeDsaConfig": [("full", 78, LATENT | {"index": 256}, 0, 1)],
    "MiniCPM3Config": [("full", 62, {"latent": 512, "rope": 64}, 0, 1)],
    "LongcatFlashConfig": [("full", 56, LATENT, 0, 1)],
    "DeepseekV4Config": [
        ("full", 23, {"latent": 1024}, 0, 128), ("full", 20, {"latent": 1024, "index": 256}, 0, 4),
        ("window", 43, {"latent": 1024}, 128, 1),
    ],
}  # fmt: skip
"""transformers' configuration, whose defaults are those of a published model in most -> kind, layers, planes, length,
tokens an entry."""


def plain(config: dict[str, Any]) -> list[Any]:
    return [(one.kind, one.count, {plane.name: plane.num_bytes for plane in one.planes}, one.length, one.entry_tokens)
            for one in layers_of(config)]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_keep_what_their_family_says(family: str) -> None:
    import transformers

    assert plain(getattr(transformers, family)().to_dict()) == FAMILIES[family]


NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip
"""Nemotron 3 Nano."""


def test_nemotron_s_layers_are_named_by_letters_and_an_attention_block_has_the_tokens_that_vllm_logs() -> None:
    """2,096 and 1,920 tokens: vllm#53749."""
    state = {"memory": 64 * 64 * 128 * 4, "conv": (64 * 64 + 2 * 8 * 128) * 3 * 2}
    assert plain(NANO) == [("full", 6, {"k": 512, "v": 512}, 0, 1), ("state", 23, state, 0, 1)]
    assert groups_of(NANO, layout="one_page")[0].block_tokens == 2096
    import transformers

    ling = transformers.BailingHybridConfig().to_dict()
    assert groups_of(ling, block_tokens=64, layout="one_page")[0].block_tokens == 1920


def test_layers_may_share_an_index_or_what_an_earlier_one_keeps_and_have_heads_of_their_own() -> None:
    import transformers

    glm = transformers.GlmMoeDsaConfig().to_dict()
    for given in ({"indexer_types": ["full", "shared"] * 39}, {"indexer_types": None, "index_topk_pattern": "FS" * 39}):
        assert [(count, len(planes)) for _, count, planes, *_ in plain(glm | given)] == [(39, 3), (39, 2)]
    own = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
           "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}  # fmt: skip
    assert plain(own | {"global_head_dim": 32, "num_global_key_value_heads": 1})[0][2] == {"k": 64, "v": 64}
    assert plain(own | {"swa_num_key_value_heads": 2})[1][2] == {"k": 64, "v": 64}
    assert [count for _, count, *_ in plain(own | {"num_kv_shared_layers": 1})] == [1, 2]
    short = {**own, "layer_types": None, "full_attn_idxs": [1], "conv_L_cache": 3, "hidden_size": 128}
    assert plain(short)[1] == ("state", 3, {"conv": 2 * 2 * 128}, 0, 1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("Zamba2Config", "'layer_types' must be a list of 54"),
        ("FalconH1Config", "'mamba_d_ssm', and says in no way known here which layers keep a state"),
        ("RwkvConfig", "no 'num_attention_heads', which 'rwkv' needs"),
        ("T5Config", "'is_encoder_decoder' says what layers are in a way that is not read here"),
        ({"model_type": "x", "num_hidden_layers": 2, "layer_types": ["full_attention", "retention"]}, "retention"),
        (NANO | {"hybrid_override_pattern": "MX"}, r"in 'hybrid_override_pattern' M \* - E, found 'MX'"),
        (NANO | {"hybrid_override_pattern": "EE"}, "has a layer of attention"),
    ],
)
def test_layers_of_an_unknown_type_are_refused_in_a_sentence(config: Any, says: str) -> None:
    import transformers

    if isinstance(config, str):
        config = getattr(transformers, config)().to_dict()
    with pytest.raises(ModelError, match=says):
        layers_of(config)


SERVED: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 24},
    "gemma3_text": {"sliding_window": 20, "num_hidden_layers": 7, "query_pre_attn_scalar": 24},
    "gpt_oss": {"sliding_window": 20, "num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen3_5_text": {
        "num_hidden_layers": 5, "full_attention_interval": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    },
    "llama4_text": {"attention_chunk_size": 32, "num_hidden_layers": 4, "intermediate_size_mlp": 96},
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"], "ssm_state_size": 8,
                   "mamba_num_heads": 4, "mamba_head_dim": 12, "n_groups": 2, "num_hidden_layers": 4},
    "kimi_linear": {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "linear_head_dim": 8, "linear_num_heads": 3,
                    "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
}  # fmt: skip


@pytest.mark.parametrize("family", SERVED)
def test_a_served_model_has_the_groups_that_its_configuration_says(family: str, tmp_path: Path) -> None:
    config = json.loads((Path(make_checkpoint(tmp_path, family, **SERVED[family])) / "config.json").read_text())
    model = read_hf_config(config)
    spec = attention_spec(model, "bfloat16", CacheOptions(num_blocks=8, block_size=16))
    served = tuple(one.group for one in groups_of_model(model, spec))
    assert served == groups_of(config)
    assert len(served) == 2
    if model.state_layers:
        spec = replace(spec, block_size=tokens_that_hold_a_state(model, spec))
    assert tuple(one.group for one in groups_of_model(model, spec, OnePool())) == groups_of(config, layout="one_page")


def test_a_model_of_four_kinds_has_the_groups_of_a_replay_of_it(tmp_path: Path) -> None:
    names = ["full_attention", "linear_attention", "sliding_attention", "chunked_attention", "linear_attention"]
    folder = make_checkpoint(tmp_path, "qwen3_5_text", **SERVED["qwen3_5_text"] | {"full_attention_interval": 1} | {
        "layer_types": [name if name == "linear_attention" else "full_attention" for name in names]
    })  # fmt: skip
    config = json.loads((Path(folder) / "config.json").read_text())
    model = replace(read_hf_config(config), sliding_window=32, sliding_layers=(False, False, True, False, False),
                    attention_chunk=64, chunked_layers=(3,))  # fmt: skip
    spec = attention_spec(model, "bfloat16", CacheOptions(num_blocks=8, block_size=16))
    served = tuple(one.group for one in groups_of_model(model, spec))
    assert served == groups_of(config | {"layer_types": names, "sliding_window": 32, "attention_chunk_size": 64})
    assert [group.kind for group in served] == ["full", "window", "chunk", "state"]


def test_vllm_s_planner_makes_the_same_groups_and_pages() -> None:
    specs = pytest.importorskip("vllm.v1.kv_cache_interface")
    import torch

    try:
        planner = importlib.import_module("vllm.v1.core.kv_cache_planning")
    except ImportError:  # before 0.33
        planner = importlib.import_module("vllm.v1.core.kv_cache_utils")

    def spec_of(layers: Layers, block_size: int, **head: Any) -> Any:
        head |= {"block_size": block_size, "dtype": torch.bfloat16}
        if layers.kind == "state":
            return specs.MambaSpec(block_size=block_size, dtypes=(torch.uint8,), shapes=((layers.num_bytes,),))
        if layers.kind == "window":
            return specs.SlidingWindowSpec(**head, sliding_window=layers.length)
        if layers.kind == "chunk":
            return specs.ChunkedLocalAttentionSpec(**head, attention_chunk_size=layers.length)
        return specs.FullAttentionSpec(**head)

    for name in ("gemma-3-27b", "gpt-oss-120b", "llama-4-scout", "qwen3-next-80b", "qwen3.5-4b", "qwen3.8-27b"):
        config, groups = SHAPES[name], groups_of(name, layout="one_page")
        heads = {"num_kv_heads": config["num_key_value_heads"], "head_size": config["head_dim"]}
        layers = {f"{one.kind}.{number}": spec_of(one, groups[0].block_tokens, **heads)
                  for one in layers_of(config) for number in range(one.count)}  # fmt: skip
        found = planner._get_kv_cache_groups_uniform_page_size(planner.unify_kv_cache_spec_page_size(layers))
        widest = max(len(group.layer_names) for group in found)
        pages = sorted((one.kv_cache_spec.block_size, widest * one.kv_cache_spec.page_size_bytes) for one in found)
        assert pages == sorted((group.block_tokens, group.block_bytes) for group in groups), name
    for name, widths in (("deepseek-v3", (576,)), ("deepseek-v3.2", (576, 128))):
        planes = [specs.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=width, dtype=torch.bfloat16)
                  for width in widths]  # fmt: skip
        (group,) = groups_of(name, block_tokens=64)
        assert 61 * sum(plane.page_size_bytes for plane in planes) == group.block_bytes, name
