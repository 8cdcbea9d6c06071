"""What only a GPU can show of the Triton backend: compiled numerics, races, graph replay, no hidden synchronisation."""

from __future__ import annotations

import functools
import unittest
from dataclasses import replace
from typing import Any

import pytest
import torch

from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, Problem, build_problem
from framework_testing.attention_runs import judge, run_attention
from framework_testing.backend import backend_checks

TritonBackend = pytest.importorskip("framework_triton.backend").TritonBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch finds none"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

MAKES = {
    "by work": TritonBackend,
    "split at 256": functools.partial(TritonBackend, split_tokens=256),
}


def make_spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "block_size": 16}
    return AttentionSpec(**(base | changes))


def ready(spec: AttentionSpec, contexts: tuple[int, ...], queries: tuple[int, ...]) -> tuple[TritonBackend, Problem]:
    """A backend that is set up, and a problem on the device."""
    backend = TritonBackend()
    backend.setup(spec, "cuda")
    return backend, build_problem(Case(spec, contexts, queries), "cuda")


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_the_compiled_kernels_keep_the_backends_contract(check: Any, make: Any) -> None:
    try:
        check(make, "cuda", "full")
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_long_rows_split_over_the_device_match_fp64(dtype: str, head_dim: int) -> None:
    backend, problem = ready(
        make_spec(dtype=dtype, head_dim=head_dim, num_heads=8, num_kv_heads=2), (3000, 1, 777, 0), (1, 1, 1, 1)
    )
    out, _ = run_attention(backend, problem)
    verdict = judge(out, problem)
    assert verdict.ok, str(verdict)


def test_fp32_products_are_not_rounded_to_tf32() -> None:
    backend, problem = ready(make_spec(dtype="float32", num_heads=4, num_kv_heads=4), (700, 300), (1, 200))
    out, _ = run_attention(backend, problem)
    verdict = judge(out, problem)
    assert verdict.error <= 1e-5, f"tf32 errs by about 3e-4: {verdict}"


def test_a_thousand_runs_give_the_same_bits() -> None:
    backend, problem = ready(make_spec(), (900, 130, 17, 600), (1, 1, 1, 200))
    want, _ = run_attention(backend, problem)
    for run in range(1000):
        got, _ = run_attention(backend, problem)
        assert torch.equal(got, want), f"run {run} differs: a race"


def test_a_captured_graph_serves_other_lengths() -> None:
    backend, captured = ready(make_spec(num_heads=8, num_kv_heads=2), (1500, 1500, 1500), (1, 1, 1))
    out = torch.zeros_like(captured.q)

    def step() -> None:
        backend.plan(captured.batch)
        backend.attend(captured.q, captured.pool, captured.batch, out)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ((1500, 1500, 1500), (1, 700, 1499), (0, 16, 33)):
        captured.batch.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        verdict = judge(out, _shortened(captured, lengths))
        assert verdict.ok, f"lengths {lengths}: {verdict}"


def _shortened(problem: Problem, lengths: tuple[int, ...]) -> Problem:
    return replace(problem, case=Case(problem.spec, lengths, problem.case.queries))


def test_a_step_never_waits_for_the_device() -> None:
    backend, problem = ready(make_spec(), (900, 130, 17, 600), (1, 1, 1, 200))
    run_attention(backend, problem)  # compiles
    k = torch.randn(203, 8, 128, device="cuda", dtype=torch.bfloat16)
    backend.write(problem.pool, k, k, problem.batch.slot_mapping)
    out = torch.empty_like(problem.q)
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.plan(problem.batch)
        backend.write(problem.pool, k, k, problem.batch.slot_mapping)
        backend.attend(problem.q, problem.pool, problem.batch, out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
