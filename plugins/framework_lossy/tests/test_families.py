"""Compressions over caches of other kinds than K and V of each head."""

from __future__ import annotations

from typing import Any

import pytest

from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import LoadedModel, load_model
from framework.registry.components import build_component
from framework.sampling import Sampling
from framework_recall.model import CHECKPOINT
from framework_testing.checkpoints import make_checkpoint
from framework_testing.compression import differences, recorded

from .reference import GREEDY, prompts_of, recall_model

pytest.importorskip("transformers")

LATENT = {
    "num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "kv_lora_rank": 32, "q_lora_rank": 24,
}  # fmt: skip
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 40}
MODELS: dict[str, dict[str, Any]] = {
    "minicpm3": LATENT | {"tie_word_embeddings": False, "dim_model_base": 32},
    "deepseek_v32": LATENT | EXPERTS | {"first_k_dense_replace": 1, "index_topk": 16, "index_head_dim": 16,
                                        "index_n_heads": 16},
}  # fmt: skip
PROMPTS = [[(7 * i + 3 * n) % 250 + 4 for i in range(50 + 7 * n)] for n in range(3)]


@pytest.fixture(scope="module", params=["minicpm3", "deepseek_v32"])
def model(request: Any, tmp_path_factory: Any) -> LoadedModel:
    return load_model(make_checkpoint(tmp_path_factory.mktemp(request.param), request.param, **MODELS[request.param]))


@pytest.fixture(scope="module")
def spread() -> Any:
    models = [load_model(str(CHECKPOINT), device="cpu", tensor_parallel_size=size) for size in (2, 4)]
    yield models
    for model in models:
        model.close()


def served(model: LoadedModel, compression: Any, sampling: Sampling = GREEDY, **options: Any) -> tuple[LLM, list[Any]]:
    llm = LLM(model, compression=compression, device="cpu", engine=EngineOptions(max_batch_requests=8),
              cache=CacheOptions(num_blocks=200, block_size=4, **options))  # fmt: skip
    requests = llm.generate(PROMPTS, sampling)
    llm.engine.check()
    return llm, requests


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("name", ["streaming", "keydiff", "snapkv", "expected_attention", "paged_eviction", "openvino"])
def test_rows_of_a_latent_cache_are_chosen_and_moved(model: LoadedModel, name: str, layout: str) -> None:
    """With their rotated keys, and with those of an indexer that selects among what is left."""
    own = {"window": 8} if name == "snapkv" else {"start_tokens": 4, "recent_tokens": 4} if name == "openvino" else {}
    compression = build_component("compression", {"name": name, "ratio": 0.5, "every": 8, **own}, {})
    kept = recorded(compression)
    llm, requests = served(model, compression, layout=layout)
    stats = llm.stats()
    assert stats["num_compressions"] > 3, stats
    assert stats["returned_blocks"] > 20, stats
    assert 0 < stats["kept_attention_mass"] < 1 or name == "streaming", stats
    assert differences(model.decoder, requests, kept) == []


GROUPS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 20, "num_hidden_layers": 7, "query_pre_attn_scalar": 24},
    "llama4_text": {"attention_chunk_size": 16, "num_hidden_layers": 4, "intermediate_size": 40, "num_local_experts": 4,
                    "intermediate_size_mlp": 96},
    "qwen3_5_text": {"num_hidden_layers": 5, "full_attention_interval": 3, "linear_num_key_heads": 2,
                     "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
}  # fmt: skip


@pytest.fixture(scope="module", params=GROUPS)
def grouped(request: Any, tmp_path_factory: Any) -> LoadedModel:
    return load_model(make_checkpoint(tmp_path_factory.mktemp(request.param), request.param, **GROUPS[request.param]))


@pytest.mark.parametrize("name", [
    "snapkv", "paged_eviction", pytest.param("streaming", marks=pytest.mark.slow),
    pytest.param("knorm", marks=pytest.mark.slow),
])  # fmt: skip
def test_tokens_are_dropped_of_full_attention_beside_windows_chunks_and_states(grouped: LoadedModel, name: str) -> None:
    """Greedy, and with samples that share what is left, of prompts that share their first blocks."""
    own = {"window": 8} if name == "snapkv" else {}
    compression = build_component("compression", {"name": name, "ratio": 0.5, "every": 7, **own}, {})
    kept = recorded(compression)
    engine = EngineOptions(max_batch_requests=8, max_batch_tokens=64, chunk_size=24)
    cache = CacheOptions(num_blocks=200, block_size=4)
    llm = LLM(grouped, compression=compression, device="cpu", engine=engine, cache=cache)
    assert len(llm.groups) == 2
    samples = Sampling(max_tokens=12, n=3, temperature=1.0, seed=2, ignore_eos=True, logprobs=0)
    for head, sampling in ((0, GREEDY), (32, samples), (32, GREEDY)):
        requests = llm.generate([[*range(100, 100 + head), *prompt] for prompt in PROMPTS], sampling)
        llm.engine.check()
        assert differences(grouped.decoder, requests, kept) == []
    stats = llm.stats()
    assert stats["num_compressions"] > 6, stats
    assert stats["returned_blocks"] > 5, stats
    assert stats["used_blocks"] == 0, stats
    assert stats["hit_tokens"] > 0 or name != "paged_eviction", stats  # what is moved is found no more


@pytest.mark.parametrize("name", ["streaming", "knorm", "snapkv", "expected_attention", "paged_eviction"])
def test_heads_of_several_ranks_keep_what_those_of_one_would(spread: Any, name: str) -> None:
    """Two KV heads over two ranks, and over four, of which two hold the same one."""
    own = {"window": 8} if name == "snapkv" else {}
    kept = []
    for model in (recall_model(), *spread):
        compression = build_component("compression", {"name": name, "ratio": 0.5, "every": 8, **own}, {})
        kept.append(recorded(compression))
        size = 1 if model.ranks is None else model.ranks.size
        llm = LLM(model, compression=compression, device="cpu", cache=CacheOptions(num_blocks=120, block_size=4),
                  engine=EngineOptions(max_batch_requests=8, tensor_parallel_size=size))  # fmt: skip
        requests = llm.generate(prompts_of(3, 60), GREEDY)
        llm.engine.check()
        assert differences(recall_model().decoder, requests, kept[-1]) == []
    assert repr(kept[0]) == repr(kept[1]) == repr(kept[2])
