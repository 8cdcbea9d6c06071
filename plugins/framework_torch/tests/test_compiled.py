"""The decode that inductor compiles: right, one graph for batches of any size, and its use is said."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, build_problem
from framework_testing.attention_runs import judge, run_attention
from framework_testing.backend import backend_checks
from framework_torch import compiled
from framework_torch.backend import TorchBackend

COMPILED = partial(TorchBackend, compile=True)
needs_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="no C++ compiler for torch.compile")


def spec_of(**changes):
    base = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": "float32", "block_size": 8}
    return AttentionSpec(**(base | changes))


def ready(make, spec):
    backend = make()
    backend.setup(spec, "cpu")
    return backend


def num_graphs():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


@needs_compiler
def test_one_compilation_serves_batches_contexts_and_pools_of_any_size(capfd):
    spec = spec_of()
    backend, graphs = ready(COMPILED, spec), num_graphs()
    sizes = [(1,), (1, 1), (5, 64, 65, 130), (1000,), (200,) * 33, (0, 7), (63, 0, 0)]
    for contexts in sizes:
        problem = build_problem(Case(spec, contexts, (1,) * len(contexts)))
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():
                out, _ = run_attention(backend, problem)
            assert judge(out, problem).ok, judge(out, problem)
    assert num_graphs() == graphs, f"{num_graphs() - graphs} recompilations over {sizes}"
    again = ready(COMPILED, spec)
    assert again.facts() == {"decode": "none", "compile_s": 0.0}, "the same shape of heads was compiled twice"
    assert backend.facts()["decode"] == "compiled"
    assert capfd.readouterr().err.count("compiled the decode") <= 1


@needs_compiler
@pytest.mark.parametrize("layout", [pytest.param("NHD", marks=pytest.mark.slow), "HND"])
def test_everything_a_model_may_ask_of_decode_is_compiled(layout):
    spec = spec_of(layout=layout, sliding_window=70, soft_cap=3.0, sinks=True, alibi=True)
    problem = build_problem(Case(spec, (200, 3, 71, 0, 65, 40), (1, 1, 1, 1, 1, 9)))
    backend = ready(COMPILED, spec)
    out, lse = run_attention(backend, problem, lse=True)
    _, want_lse = run_attention(ready(partial(TorchBackend, compile=False), spec), problem, lse=True)
    assert judge(out, problem).ok, judge(out, problem)
    torch.testing.assert_close(lse, want_lse)
    assert [chunks.places.shape[0] for chunks in backend._attention._chunks] == [7], "70 of 200, 3, 70 of 71, 65"


@needs_compiler
def test_rows_are_taken_a_bounded_number_of_chunks_at_a_time(monkeypatch):
    monkeypatch.setattr(compiled, "_CHUNKS_AT_ONCE", 4)
    spec = spec_of()
    problem = build_problem(Case(spec, (100, 64, 1, 400, 5), (1,) * 5))
    backend = ready(COMPILED, spec)
    out, _ = run_attention(backend, problem)
    assert judge(out, problem).ok, judge(out, problem)
    assert [chunks.tokens.tolist() for chunks in backend._attention._chunks] == [[0, 1, 2], [3], [4]]


def test_small_steps_stay_eager_and_big_ones_are_compiled(monkeypatch):
    made = itertools.count()

    class Made:
        compile_s = 1.5

        def __init__(self, spec):
            next(made)

    monkeypatch.setattr(compiled, "CompiledDecode", Made)
    monkeypatch.setattr(compiled, "compiler", lambda: "/usr/bin/g++")
    spec = spec_of()  # 256 bytes a token: 16 MiB are 65,536 tokens
    backend = ready(TorchBackend, spec)
    backend.plan(build_problem(Case(spec, (1000, 9), (1, 1))).batch)
    assert (backend.facts(), next(made)) == ({"decode": "eager"}, 0)
    batch = build_problem(Case(spec, (16_384,) * 4, (1,) * 4)).batch
    backend.plan(batch)
    backend.plan(batch)
    assert (backend.facts(), next(made)) == ({"decode": "eager and compiled", "compile_s": 1.5}, 2)
    backend = ready(partial(TorchBackend, compile=False), spec)
    backend.plan(batch)
    assert (backend.facts(), next(made)) == ({"decode": "eager", "not_compiled": "compile=false"}, 3)


def test_a_compiler_that_fails_is_said_and_the_step_is_eager(monkeypatch, capfd):
    def fail(key):
        raise RuntimeError("cc1plus: out of memory")

    fail.cache_info = compiled._compiled.cache_info
    monkeypatch.setattr(compiled, "_compiled", fail)
    monkeypatch.setattr(compiled, "compiler", lambda: "/usr/bin/g++")
    monkeypatch.setattr("framework_torch.attention._COMPILE_BYTES", 1)
    spec = spec_of()
    backend, problem = ready(TorchBackend, spec), build_problem(Case(spec, (30, 9), (1, 1)))
    out, _ = run_attention(backend, problem)
    assert judge(out, problem).ok, judge(out, problem)
    assert "cc1plus: out of memory" in str(backend.facts()["not_compiled"])
    assert capfd.readouterr().err.count("decode stays eager") == 1
    with pytest.raises(Unsupported, match=r"cc1plus.*use backend.compile=false"):
        ready(COMPILED, spec)


def test_without_a_compiler_auto_is_eager_and_true_is_refused(monkeypatch):
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    spec = spec_of()
    assert COMPILED().check(spec, "cpu") == [
        "torch.compile needs a C++ compiler and finds none: install g++, set CXX, or use compile=false"
    ]
    assert "the device is cuda" in COMPILED().check(spec, "cuda")[0]
    assert TorchBackend().check(spec, "cpu") == []
    assert "finds none" in str(ready(TorchBackend, spec).facts()["not_compiled"])


@needs_compiler
def test_fp8_pools_are_read_by_the_eager_path():
    fp8 = ready(COMPILED, spec_of(kv_dtype="float8_e4m3fn"))
    assert "eager" in str(fp8.facts()["not_compiled"])


@needs_compiler
@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_a_block_that_the_pool_does_not_have_is_refused_not_read(wrong):
    problem = build_problem(Case(spec_of(), (100, 30), (1, 1)))
    problem.batch.block_tables[1, 2] = wrong
    with pytest.raises(InvalidArgument, match=f"names block {wrong}, the pool has blocks 0 to"):
        run_attention(ready(COMPILED, spec_of()), problem)


def test_compile_is_true_false_or_auto():
    with pytest.raises(InvalidArgument, match="true, false or auto, found 'yes'"):
        TorchBackend(compile="yes")


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_contract_holds_when_all_decode_is_compiled(check):
    import unittest

    try:
        check(COMPILED, "cpu", "small")
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))
