"""Captured decode steps: the tokens are those of eager steps, and nothing was touched that a graph would not touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_engines import make_llm
from static_backend import StaticBackend

from framework.engine.graphs import bucket_sizes, choose
from framework.errors import ConfigError, InvariantViolation
from framework.llm import LLM, EngineOptions
from framework.sampling import Sampling
from framework_testing.attention_runs import ReplayRecorder
from framework_torch.backend import TorchBackend

GREEDY = Sampling(max_tokens=12, ignore_eos=True)
FILTERED = Sampling(max_tokens=11, temperature=1.1, top_k=40, top_p=0.9, seed=3, ignore_eos=True)
WARM = Sampling(max_tokens=7, temperature=0.8, seed=5, ignore_eos=True)
BEAMS = Sampling(max_tokens=8, beam_width=3, ignore_eos=True)
FORKED = Sampling(max_tokens=9, n=3, temperature=1.0, seed=1, ignore_eos=True)
SCORED = Sampling(max_tokens=6, logprobs=4, ignore_eos=True)

WORKLOADS: dict[str, list[Sampling]] = {
    "greedy": [GREEDY] * 5,
    "samples": [WARM, FILTERED, GREEDY, FILTERED],
    "forks": [FORKED, FORKED, GREEDY],
    "beams": [BEAMS, GREEDY, BEAMS],
    "all": [GREEDY, FORKED, BEAMS, FILTERED, SCORED, WARM],
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "at ease": {"num_blocks": 200},
    "preempted": {"num_blocks": 200, "preempt_every": 3},
    "short of blocks": {"num_blocks": 40},
    "one token a chunk": {"num_blocks": 200, "chunk_size": 1},
    "few sizes": {"num_blocks": 200, "sizes": (2, 5)},
}


def make(sizes: tuple[int, ...] | None = None, *, backend: Any = None, **options: Any) -> LLM:
    engine = {"max_batch_requests": 9, "max_batch_tokens": 24, "max_model_len": 48, "prepack": False}
    options = {"block_size": 4, "device": "cpu", "poison": True, **engine, **options}
    llm = make_llm("tiny", backend=backend or StaticBackend(), **options)
    if sizes is not None:
        llm.executor.capture(ReplayRecorder(), sizes)
    return llm


def serve(llm: LLM, samplings: list[Sampling]) -> list[Any]:
    prompts = [[11 + i % 2, *range(20, 27 + 3 * i)] for i in range(len(samplings))]
    requests = llm.generate(prompts, samplings)
    llm.engine.check()
    failed = [request.reason for request in requests if request.status.value != "finished"]
    assert not failed, failed
    return [[(c.tokens, c.finish_reason) for c in request.completions] for request in requests]


@pytest.mark.parametrize(
    ("workload", "schedule"),
    [
        *(("all", schedule) for schedule in SCHEDULES),
        *((workload, "preempted") for workload in WORKLOADS if workload != "all"),
    ],
)
def test_replayed_steps_give_the_tokens_of_eager_ones(workload: str, schedule: str) -> None:
    options = dict(SCHEDULES[schedule])
    sizes = options.pop("sizes", (1, 2, 4, 8, 9))
    eager, replayed = make(**options), make(sizes, **options)
    assert serve(replayed, WORKLOADS[workload]) == serve(eager, WORKLOADS[workload])
    found, steps = replayed.executor.summary(), replayed.engine.metrics.num_steps
    assert found["graph_steps"] + found["eager_steps"] == steps, found
    assert found["graph_steps"] > 0.25 * steps, found
    assert (eager.executor.summary()["graph_steps"], eager.executor.summary()["eager_steps"]) == (0, steps)


def test_triton_kernels_on_persistent_inputs_give_the_tokens_of_eager_steps() -> None:
    triton = pytest.importorskip("framework_triton.backend")
    samplings = [Sampling(max_tokens=n, ignore_eos=True) for n in (2, 2, 4)]
    wanted = serve(make(num_blocks=60), samplings)
    llm = make(backend=triton.TritonBackend(), num_blocks=60)
    llm.executor.capture(ReplayRecorder(check=False), (1, 4))
    assert serve(llm, samplings) == wanted
    # One step computes all three prompts, the third from what the first shares; four decode.
    assert llm.executor.summary()["graph_steps"] == 4, llm.executor.summary()


def test_rows_that_leave_and_arrive_change_the_size_and_padding_is_counted() -> None:
    llm = make((1, 2, 4, 8), num_blocks=200)
    serve(llm, [Sampling(max_tokens=n, ignore_eos=True) for n in (1, 4, 4, 6)])
    graphs = llm.executor.graphs
    assert graphs is not None
    # Three prompts end in the first steps; then 3 rows decode at size 4, and the last one alone at size 1.
    assert graphs.num_padded_rows >= 2, graphs.num_padded_rows
    assert graphs.num_replays + llm.executor.num_eager_steps == llm.engine.metrics.num_steps


def test_capturing_touches_no_block() -> None:
    llm = make(num_blocks=30)
    before = [(layer.k.clone(), layer.v.clone()) for layer in llm.pool.layers]
    llm.executor.capture(ReplayRecorder(), (1, 4, 9))
    for (k, v), layer in zip(before, llm.pool.layers, strict=True):
        assert torch.equal(k.view(torch.int32), layer.k.view(torch.int32))
        assert torch.equal(v.view(torch.int32), layer.v.view(torch.int32))


def test_padded_rows_write_only_what_the_step_writes() -> None:
    eager, replayed = make(num_blocks=30), make((8,), num_blocks=30)
    for llm in (eager, replayed):
        serve(llm, [GREEDY, GREEDY, GREEDY])
    for one, other in zip(eager.pool.layers, replayed.pool.layers, strict=True):
        assert torch.equal(one.k.isnan(), other.k.isnan()), "a slot was written, or not, by padding"
        assert not other.k[0].any(), "the null block was written"
        assert not other.v[0].any(), "the null block was written"


class _LooksAtTables(StaticBackend):
    def plan(self, batch: Any) -> None:
        super().plan(batch)
        padding = batch.context_lens == 0
        self.padded = getattr(self, "padded", 0) + int(padding.sum())
        assert not batch.block_tables[padding].any(), batch.block_tables
        if padding.any():
            assert (batch.slot_mapping[padding] == -1).all(), batch.slot_mapping


def test_padded_rows_are_given_a_table_of_null_blocks() -> None:
    backend = _LooksAtTables()
    llm = make(backend=backend, num_blocks=60)
    llm.executor.capture(ReplayRecorder(check=False), (8,))
    serve(llm, [GREEDY, GREEDY, GREEDY])
    assert backend.padded > 16, "no row was padded beyond those of the capture"


def test_a_flood_of_table_changes_goes_ahead_of_the_step() -> None:
    eager, replayed = make(num_blocks=200), make((4, 9), num_blocks=200)
    assert replayed.executor.graphs is not None
    replayed.executor.graphs._room = 0
    assert serve(replayed, WORKLOADS["all"]) == serve(eager, WORKLOADS["all"])


# The recorder finds what a graph could not have done


class _BringsFreshMemory:
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def __call__(self, batch: Any) -> None:
        self.kept.append(torch.from_numpy(batch.host_context_lens.copy()))
        self.kept[-1].add_(1)


class _Wrong(StaticBackend):
    """Also does what a graph could not, as it plans a batch."""

    def __init__(self, spoil: Callable[[Any], object]) -> None:
        super().__init__()
        self.spoil = spoil

    def plan(self, batch: Any) -> None:
        super().plan(batch)
        self.spoil(batch)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: int(batch.context_lens.max()),
        lambda batch: torch.nonzero(batch.context_lens),
        lambda batch: torch.zeros(1).add_(float(batch.host_context_lens.sum())),
        lambda batch: torch.zeros(int(batch.host_context_lens.max())),
        _BringsFreshMemory(),
    ],
    ids=["reads a length", "counts rows", "bakes a length", "is shaped by a length", "brings fresh memory"],
)
def test_a_backend_that_only_claims_to_be_graph_safe_is_caught(spoil: Callable[[Any], object]) -> None:
    with pytest.raises(InvariantViolation, match=r"of a replay is|waits for the device|PluginError"):
        serve(make((1, 4), backend=_Wrong(spoil), num_blocks=60), [GREEDY, GREEDY])


# Which sizes, and why none


def test_sizes_are_powers_of_two_and_the_most_rows() -> None:
    assert [bucket_sizes(rows) for rows in (1, 6, 16)] == [(1,), (1, 2, 4, 6), (1, 2, 4, 8, 16)]


def test_graphs_asked_for_where_they_cannot_be_are_an_error_and_auto_says_why_not() -> None:
    four = EngineOptions(max_batch_requests=4)
    assert choose(four, StaticBackend(), "cuda:1") == ((1, 2, 4), "")
    assert choose(four.changed(cuda_graphs=False), StaticBackend(), "cuda") == ((), "engine.cuda_graphs=false")
    sizes, why = choose(four, TorchBackend(), "cpu")
    assert sizes == ()
    assert "device cpu has no CUDA graphs" in why
    assert "TorchBackend does not declare graph_safe" in why
    with pytest.raises(ConfigError, match="ranks"):
        choose(EngineOptions(cuda_graphs=True, tensor_parallel_size=2), StaticBackend(), "cuda")
    with pytest.raises(ConfigError, match="device cpu has no CUDA graphs"):
        LLM("no/such/model", backend=StaticBackend(), device="cpu", engine=EngineOptions(cuda_graphs=True))


def test_a_run_without_graphs_says_why_in_its_result() -> None:
    found = make(num_blocks=20).executor.summary()
    assert found["cuda_graphs"] is False
    assert found["cuda_graphs_off"] == "device cpu has no CUDA graphs"
    assert found["graph_batch_sizes"] == []
