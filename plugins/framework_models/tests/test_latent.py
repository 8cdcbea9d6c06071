"""Models with latent caches, served: every way to share, move and give back blocks leaves transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engines import finished, make_llm

from framework.config.sections import FaultOptions
from framework.engine.pool import block_bytes
from framework.interfaces.backend import AttentionSpec
from framework.model.loading import LoadedModel, load_model
from framework.modes.dense_check import measure_loss
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

transformers = pytest.importorskip("transformers")

LATENT = {"num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
          "kv_lora_rank": 32, "q_lora_rank": 24}  # fmt: skip
DEEPSEEK = LATENT | {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
                     "moe_intermediate_size": 40, "first_k_dense_replace": 1}  # fmt: skip
TOP_K = 16
CASES: dict[str, dict[str, Any]] = {
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK | {"index_topk": TOP_K, "index_head_dim": 16, "index_n_heads": 16},
    "minicpm3": LATENT | {"tie_word_embeddings": False, "dim_model_base": 32},
}
SHARED = [(7 * i) % 250 + 4 for i in range(48)]
PROMPTS = [[*SHARED, 100 + i, 9, 4 + i] for i in range(3)] + [SHARED[:30], [5, 6, 7]]
COUNT, SIZE = 20, 4
GREEDY = Sampling(max_tokens=COUNT, ignore_eos=True)


@pytest.fixture(scope="module", params=CASES)
def served(request: Any, tmp_path_factory: Any) -> tuple[LoadedModel, list[list[list[int]]]]:
    """A model, and what transformers says to PROMPTS, one completion each."""
    folder: Path = make_checkpoint(tmp_path_factory.mktemp(request.param), request.param, **CASES[request.param])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    wanted = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = theirs.generate(ids, max_new_tokens=COUNT, do_sample=False, eos_token_id=None, pad_token_id=0)
        wanted.append([out[0, len(prompt) :].tolist()])
    assert len({token for (tokens,) in wanted for token in tokens}) > 12, "a degenerate text proves little"
    return load_model(folder), wanted


def llm_of(model: LoadedModel, **options: Any) -> Any:
    sizes = {"block_size": SIZE, "num_blocks": 160, "chunk_size": 16, "max_batch_requests": 8, "max_batch_tokens": 64}
    return make_llm(model, **{**sizes, "backend": "torch", "faults": FaultOptions(poison=True), **options})


WAYS: dict[str, dict[str, Any]] = {
    "prefix, HND": {"allocator": "prefix", "backend": "gather", "layout": "HND"},
    "radix": {"allocator": "radix"},
    "no sharing": {"allocator": "naive", "block_size": 7},
    "preemption": {"num_blocks": 45, "faults": FaultOptions(poison=True, preempt_every=7)},
    "small chunks": {"chunk_size": 5, "max_batch_tokens": 11, "max_batch_requests": 3},
    "blocks of 1": {"block_size": 1, "num_blocks": 500},
    "triton": {"backend": "triton", "block_size": 16},
    "tiers": {"num_blocks": 22, "below": {"name": "tiers", "tiers": [{"store": "host", "num_blocks": 400}]}},
}


V3, V32, MINICPM = CASES
MEET = {
    "prefix, HND": [MINICPM], "radix": [V3], "no sharing": [MINICPM], "preemption": [V3, V32], "small chunks": [V32],
    "blocks of 1": [V3], "triton": [V32], "tiers": [V32],
}  # fmt: skip
"""The models that go each way; the others do so among the slow tests."""


@pytest.mark.parametrize(
    ("served", "way"),
    [pytest.param(model, way, marks=[] if model in MEET[way] else pytest.mark.slow) for model in CASES for way in WAYS],
    indirect=["served"],
    scope="module",
)
def test_tokens_are_those_of_transformers(served: Any, way: str) -> None:
    (model, wanted), options = served, WAYS[way]
    if way == "tiers":
        pytest.importorskip("framework_tiers")
    llm = llm_of(model, **options)
    for _ in range(2):
        requests = llm.generate(PROMPTS, GREEDY)
        assert finished(requests) == wanted
    llm.engine.check()
    stats = llm.stats()
    if options.get("allocator") != "naive":
        assert sum(request.num_cached_tokens for request in requests) > 40
    if way == "preemption":
        assert stats["num_preemptions"] > 0
    if way == "tiers":
        assert stats["num_loads"] > 0
    llm.close()


@pytest.mark.parametrize(
    ("served", "allocator", "size"), [(V3, "prefix_cow", 4), (V32, "cow", 7)], indirect=["served"], scope="module"
)
def test_forks_and_beams_give_what_no_sharing_gives(served: Any, allocator: str, size: int) -> None:
    """Blocks are copied on a fork's first write: rows, and an indexer's keys."""
    for sampling in (
        Sampling(max_tokens=14, n=3, temperature=1.0, seed=3, ignore_eos=True),
        Sampling(max_tokens=14, beam_width=3, ignore_eos=True),
    ):
        options = {"block_size": size, "num_blocks": 400}
        llm, apart = (llm_of(served[0], allocator=name, **options) for name in (allocator, "naive"))
        assert finished(llm.generate(PROMPTS, sampling)) == finished(apart.generate(PROMPTS, sampling))
        llm.engine.check()
        assert llm.stats()["num_forks"] > 0


@pytest.mark.parametrize(
    ("served", "kv_dtype", "allowed"),
    [(V3, "float8_e4m3fn", 0.1), (V32, "int8", 0.03)],
    indirect=["served"],
    scope="module",
)
def test_rows_of_fewer_bits_lose_little(served: Any, kv_dtype: str, allowed: float) -> None:
    llm = llm_of(served[0], kv_dtype=kv_dtype)
    requests = llm.generate(PROMPTS, GREEDY)
    verdicts = measure_loss(llm, requests, 2)
    error = max(verdict.attention_error for verdict in verdicts)
    assert 0 < error < allowed, f"attention over rows in {kv_dtype} is off by {error} of the largest value"


def test_a_pool_holds_the_planes_of_the_model_alone(served: Any) -> None:
    model, _ = served
    llm = llm_of(model, num_blocks=9)
    token = model.config.head_dim + (model.config.index_dim or 0)
    assert llm.pool.bytes == 10 * SIZE * model.config.num_layers * token * 4
    assert sum(stored.nbytes for stored in llm.pool.tensors_of(0)) == llm.pool.bytes


def test_a_selection_reads_less_of_the_pool(served: Any) -> None:
    """Counted: of each query the keys of its context, and rows of no more than are selected."""
    model, _ = served
    llm = llm_of(model)
    llm.generate([PROMPTS[0]], Sampling(max_tokens=9, ignore_eos=True))
    facts = llm.executor.summary()
    if model.config.index_dim is None:
        assert "kv_bytes_read" not in facts
        return
    row, key, layers, length = 40 * 4, 16 * 4, model.config.num_layers, len(PROMPTS[0])
    seen = range(1, length + 8 + 1)  # the last token is not fed back
    first = range(1, 16 + 1)  # a chunk that no selection shortens
    read = sum(seen) * key - sum(first) * key + sum(min(count, TOP_K) for count in seen) * row
    assert facts["kv_bytes_dense"] == layers * sum(seen) * row
    assert facts["kv_bytes_read"] == layers * read < facts["kv_bytes_dense"]


def test_deepseek_v3_takes_70272_bytes_a_token() -> None:
    spec = AttentionSpec(num_heads=128, num_kv_heads=1, head_dim=576, latent_dim=512, dtype="bfloat16", block_size=1)
    assert spec.planes == {"latent": 512, "rope": 64}
    assert block_bytes(spec, 61) == 70_272


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in inductor
def test_a_compiled_model_gives_the_same_tokens(served: Any) -> None:
    model, wanted = served
    if model.config.index_dim is not None:
        pytest.skip("an indexer is not compiled")
    assert finished(llm_of(model, compile=True).generate(PROMPTS, GREEDY)) == wanted
