"""The C++ backend passes the kit, refuses what it cannot do, and computes the same on any number of threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionSpec
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.config import ModelConfig
from framework.model.dense import dense_logits
from framework.model.loading import load_model, random_model
from framework.sampling import Sampling
from framework_native.backend import NativeBackend
from framework_testing import backend_checks
from framework_testing.attention_cases import Case, build_problem, single_row
from framework_testing.attention_runs import judge, run_attention, wrong_lse
from framework_testing.checkpoints import make_checkpoint


def spec(**changes) -> AttentionSpec:
    given = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "float32", "block_size": 16}
    return AttentionSpec(**{**given, **changes})


def ready(asked: AttentionSpec, threads: int | None = None) -> NativeBackend:
    backend = NativeBackend(threads)
    backend.setup(asked, "cpu")
    return backend


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_the_native_backend_keeps_its_contract(check):
    check(NativeBackend)


LONG = Case(spec(), (1700, 513, 512, 1), (1, 1, 1, 1))
MIXED = Case(spec(head_dim=80), (700, 300, 65, 40), (1, 100, 65, 3))
LATENT = {"num_heads": 20, "num_kv_heads": 1, "head_dim": 80, "latent_dim": 64}


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("case", [LONG, MIXED, replace(MIXED, spec=spec(**LATENT))], ids=["decode", "mixed", "latent"])
def test_the_number_of_threads_changes_no_bit(case, layout):
    problem = build_problem(replace(case, spec=replace(case.spec, layout=layout)), "cpu")
    outs = [run_attention(ready(problem.spec, threads), problem, lse=True) for threads in (1, 2, 3, 7)]
    assert judge(outs[0][0], problem).ok, str(judge(outs[0][0], problem))
    for out, sums in outs[1:]:
        assert torch.equal(out, outs[0][0])
        assert torch.equal(sums, outs[0][1])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 70},
        {"attention_chunk": 70},
        {"sinks": True},
        {"sinks": True, "sliding_window": 300},
        {"sinks": True, "attention_chunk": 300},
        {"soft_cap": 2.0},
        LATENT,
        LATENT | {"head_dim": 27, "latent_dim": 20, "sinks": True, "soft_cap": 2.0},
        LATENT | {"head_dim": 150, "latent_dim": 132, "sliding_window": 70},
        LATENT | {"num_heads": 1, "latent_dim": 80, "block_size": 1},
    ],
    ids=lambda changes: "+".join(changes) or "plain",
)  # fmt: skip
def test_long_and_short_chunks_are_right(changes, dtype, layout):
    asked = spec(dtype=dtype, layout=layout, **changes)
    case = Case(asked, (90, 560, 300, 77, 0), (90, 280, 16, 15, 0))
    problem = build_problem(case, "cpu")
    out, sums = run_attention(ready(asked), problem, lse=True)
    verdict = judge(out, problem)
    assert verdict.ok, str(verdict)
    assert not wrong_lse(sums, problem, verdict)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "changes", [{}, {"sinks": True, "sliding_window": 300}, {"soft_cap": 2.0}, {"head_dim": 80}, LATENT]
)
def test_narrow_pools_are_read_as_what_they_stand_for(changes, kv_dtype, dtype, layout):
    """Split and whole decode rows, chunks for the C++ loops and for torch's kernel, an empty row."""
    asked = spec(dtype=dtype, kv_dtype=kv_dtype, layout=layout, **changes)
    problem = build_problem(Case(asked, (1100, 40, 560, 90, 77, 0), (1, 1, 280, 90, 15, 0)), "cpu")
    out, sums = run_attention(ready(asked), problem, lse=True)
    verdict = judge(out, problem)
    assert verdict.ok, str(verdict)
    assert not wrong_lse(sums, problem, verdict)
    again, _ = run_attention(ready(asked, 3), problem, lse=True)
    assert torch.equal(out, again), "the number of threads changes bits"


def test_every_fp8_code_is_read_as_torch_reads_it():
    """One key, so that the output is its value times the scale."""
    for head_dim, first in ((128, 0), (128, 128), (4, 0x7C)):
        asked = spec(num_heads=1, num_kv_heads=1, head_dim=head_dim, kv_dtype="float8_e4m3fn")
        problem = build_problem(Case(asked, (1,), (1,)), "cpu")
        codes = torch.arange(first, first + head_dim).to(torch.uint8).view(torch.float8_e4m3fn)
        problem.pool.v[problem.batch.block_tables[0, 0], 0, 0] = codes
        problem.pool.v_scale.fill_(0.5)
        out, _ = run_attention(ready(asked), problem)
        assert torch.equal(out[0, 0].nan_to_num(-1.0), (codes.float() * 0.5).nan_to_num(-1.0))


def test_scales_of_another_shape_are_refused():
    problem = build_problem(Case(spec(kv_dtype="int8"), (40,), (1,)), "cpu")
    problem.pool.k_scale = problem.pool.k_scale[0, 0]
    with pytest.raises(InvalidArgument, match="the scales of a int8 pool are"):
        run_attention(ready(problem.spec), problem)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("seen", "queries", "first"),
    [({"sliding_window": 40}, 100, 361), ({"attention_chunk": 64}, 100, 384), ({"attention_chunk": 64}, 1, 448)],
)
def test_a_chunk_reads_no_slot_outside_its_context_and_what_its_first_query_sees(dtype, seen, queries, first):
    asked = spec(dtype=dtype, **seen)
    problem = build_problem(Case(asked, (500,), (queries,)), "cpu")
    want, _ = run_attention(ready(asked), problem)
    for cache in (problem.pool.k, problem.pool.v):
        for token in (*range(first), *range(500, 512)):
            block = problem.batch.block_tables[0, token // 16]
            cache[block, token % 16] = float("nan")
    got, _ = run_attention(ready(asked), problem)
    assert torch.equal(got, want)


def test_windows_and_chunks_are_served_over_groups_with_the_tokens_of_the_dense_model():
    config = ModelConfig(
        family="spans", vocab_size=263, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8,
        intermediate_size=48, sliding_window=20, sliding_layers=(True, False, False, False), attention_chunk=24,
        chunked_layers=(1, 2),
    )  # fmt: skip
    model = random_model(config)
    cache, engine = CacheOptions(num_blocks=60, block_size=8), EngineOptions(chunk_size=16)
    llm = LLM(model, backend="native", cache=cache, engine=engine)
    assert [group.kind for group in llm.groups] == ["full", "window", "chunk"]
    prompts = [[*range(5, 70), tail] for tail in (1, 2)]
    for prompt in (*prompts, prompts[0]):
        [request] = llm.generate(prompt, Sampling(max_tokens=30, ignore_eos=True))
        tokens = request.completions[0].tokens
        logits = dense_logits(model.decoder, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert [*tokens] == logits.argmax(-1).tolist()
    assert request.num_cached_tokens == 64


MLA = {
    "num_key_value_heads": 4, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "kv_lora_rank": 32,
    "q_lora_rank": 24,
}  # fmt: skip
EXPERTS = MLA | {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1, "head_dim": 8,
}  # fmt: skip
SERVED = {
    "minicpm3": MLA | {"head_dim": 8, "tie_word_embeddings": False, "dim_model_base": 32},
    "deepseek_v3": EXPERTS,
    "deepseek_v32": EXPERTS | {"index_topk": 16, "index_head_dim": 16, "index_n_heads": 16},
}


@pytest.mark.parametrize("family", SERVED)
def test_models_with_latent_caches_say_what_they_say_with_the_torch_backend(family, tmp_path):
    """Prompts in chunks, a prefix that is hit, decode rows side by side; of V3.2 also attention to selected tokens."""
    pytest.importorskip("transformers")
    model = load_model(make_checkpoint(tmp_path, family, **SERVED[family]))
    shared = [(7 * i) % 250 + 4 for i in range(48)]
    prompts, said = [[*shared, 100 + i, 9, 4 + i] for i in range(3)] + [[5, 6, 7]], {}
    for backend in ("torch", "native"):
        llm = LLM(
            model,
            backend=backend,
            cache=CacheOptions(num_blocks=160, block_size=4),
            engine=EngineOptions(chunk_size=16),
        )
        requests = [llm.generate(prompts, Sampling(max_tokens=20, ignore_eos=True)) for _ in range(2)][1]
        assert [request.num_cached_tokens for request in requests[:3]] == [48] * 3
        said[backend] = [[*request.completions[0].tokens] for request in requests]
    assert len({token for tokens in said["torch"] for token in tokens}) > 12, "a degenerate text proves little"
    assert said["native"] == said["torch"]


def test_latent_rows_that_share_blocks_are_read_together_with_the_bits_of_each_alone():
    asked = spec(**LATENT)
    problem = build_problem(Case(asked, (1100, 1030, 520), (1, 1, 1)), "cpu")
    tables = problem.batch.block_tables
    tables[1, :64], tables[2, :20] = tables[0, :64].clone(), tables[0, :20].clone()
    backend = ready(asked, 2)
    out, sums = run_attention(backend, problem, lse=True)
    verdict = judge(out, problem)
    assert verdict.ok, str(verdict)
    for row in range(3):
        alone, sum_alone = run_attention(backend, single_row(problem, row), lse=True)
        assert torch.equal(out[row], alone[0])
        assert torch.equal(sums[row], sum_alone[0])


def test_a_pool_of_k_and_v_is_refused_where_a_latent_was_set_up():
    problem = build_problem(Case(spec(**LATENT), (40,), (1,)), "cpu")
    problem.pool.v, problem.pool.is_latent = problem.pool.v.clone(), False
    with pytest.raises(InvalidArgument, match="latent_dim=64, and the pool is_latent=False"):
        run_attention(ready(problem.spec), problem)


def test_an_allocator_in_cpp_serves_windows_from_one_table_and_says_why():
    config = ModelConfig(
        family="spans", vocab_size=263, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
        intermediate_size=48, sliding_window=20, sliding_layers=(True, False),
    )  # fmt: skip
    llm = LLM(random_model(config), allocator="native_cow", cache=CacheOptions(num_blocks=9))
    assert llm.groups == ()
    assert llm.kv_groups_off.startswith("NativeCowAllocator has one table a request and one index for it")


def test_several_threads_may_use_one_backend():
    problems = [build_problem(Case(spec(), contexts, queries, seed), "cpu") for seed, (contexts, queries) in enumerate(
        [((1700, 900), (1, 1)), ((600, 40), (1, 12)), ((1100, 1030, 700), (1, 1, 1)), ((400, 90), (100, 1))]
    )]  # fmt: skip
    backend = ready(spec(), 2)
    want = [run_attention(backend, problem)[0] for problem in problems]
    start = threading.Barrier(len(problems))

    def repeat(problem):
        start.wait()
        return [run_attention(backend, problem)[0] for _ in range(60)]

    with ThreadPoolExecutor(len(problems)) as pool:
        found = list(pool.map(repeat, problems))
    for at, outs in enumerate(found):
        assert all(torch.equal(out, want[at]) for out in outs), f"problem {at} differs when others run beside it"


@pytest.mark.parametrize("queries", [1, 30], ids=["decode", "chunk"])
def test_a_refused_batch_has_written_nothing(queries):
    """An empty row comes first, whose output would be zeros."""
    problem = build_problem(Case(spec(), (0, 40), (1, queries)), "cpu")
    problem.batch.block_tables[1, 1] = problem.pool.num_blocks
    out, lse = torch.full_like(problem.q, 7.0), torch.full(problem.q.shape[:2], 7.0)
    with pytest.raises(InvalidArgument, match="outside the pool"):
        ready(spec()).attend(problem.q, problem.pool, problem.batch, out, lse=lse)
    assert bool((out == 7.0).all())
    assert bool((lse == 7.0).all())


def test_float16_is_read_and_rounded_as_torch_does():
    """One key, so that the output is its value: subnormals, the largest number and infinity among them."""
    asked = spec(dtype="float16", num_heads=1, num_kv_heads=1, head_dim=64)
    problem = build_problem(Case(asked, (1,), (1,)), "cpu")
    bits = torch.tensor([0x0001, 0x03FF, 0x0400, 0x3C01, 0x7BFF, 0x7C00, 0x8001, 0xFBFF, 0x8000, 0x1234] * 7)[:64]
    value = bits.to(torch.uint16).view(torch.float16)
    problem.pool.v[problem.batch.block_tables[0, 0], 0, 0] = value
    out, _ = run_attention(ready(asked), problem)
    assert torch.equal(out[0, 0], value)


def test_many_kv_heads_and_a_wide_group_are_right():
    for heads, kv_heads in ((80, 80), (96, 1), (71, 71)):
        problem = build_problem(Case(spec(num_heads=heads, num_kv_heads=kv_heads), (600, 40), (1, 5)), "cpu")
        out, _ = run_attention(ready(problem.spec), problem)
        assert judge(out, problem).ok, f"{heads} heads on {kv_heads}: {judge(out, problem)}"


def test_a_row_longer_than_its_table_is_refused_whatever_the_bound_says():
    problem = build_problem(Case(spec(), (40,), (1,), 0), "cpu")
    problem.batch.context_lens.fill_(16 * problem.batch.block_tables.shape[1] + 1)
    with pytest.raises(InvalidArgument, match="widen it"):
        run_attention(ready(problem.spec), problem)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float64"}, "dtype float64"),
        ({"kv_dtype": "float8_e5m2"}, "KV dtype"),
        ({"num_heads": 5}, "5 query"),
    ],
)
def test_what_it_cannot_do_has_a_reason(change, reason):
    (found,) = NativeBackend().check(spec(**change), "cpu")
    assert reason in found


def test_pools_of_other_dtype_are_refused():
    problem = build_problem(Case(spec(), (40,), (1,)), "cpu")
    problem.pool.k = problem.pool.k.double()
    with pytest.raises(Unsupported, match="float64"):
        run_attention(ready(problem.spec), problem)


def test_the_instruction_set_in_use_is_a_fact_for_the_results():
    backend = NativeBackend()
    backend.setup(AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, dtype="float32", block_size=8), "cpu")
    assert backend.facts() == {"instructions": backend.instructions}
    assert backend.instructions in {"avx512", "avx2", "plain"}, backend.instructions


def test_threads_below_one_are_refused():
    with pytest.raises(InvalidArgument, match="threads must be at least 1"):
        NativeBackend(0)


def test_a_forked_process_starts_its_own_threads():
    problem = build_problem(LONG, "cpu")
    backend = ready(problem.spec, 3)
    want, _ = run_attention(backend, problem)
    child = os.fork()
    if child == 0:
        got, _ = run_attention(backend, problem)
        os._exit(0 if torch.equal(got, want) else 1)
    assert os.waitpid(child, 0)[1] == 0
