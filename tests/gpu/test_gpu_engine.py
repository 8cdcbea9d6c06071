"""What only a GPU can show of the engine: captured decode steps, and steps that wait for the device once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_engines import make_llm

from framework import registry
from framework.engine.graphs import CudaRecorder, choose
from framework.engine.staging import Staging
from framework.errors import BackendUnavailable
from framework.llm import LLM, EngineOptions
from framework.model import sampler
from framework.model.loading import TINY_CONFIG, LoadedModel, random_model
from framework.modes.dense_check import compare
from framework.sampling import Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch finds none"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

GREEDY = Sampling(max_tokens=40, ignore_eos=True)
FILTERED = Sampling(max_tokens=31, temperature=1.1, top_k=40, top_p=0.9, seed=3, ignore_eos=True)
WARM = Sampling(max_tokens=27, temperature=0.8, seed=5, ignore_eos=True)
BEAMS = Sampling(max_tokens=18, beam_width=3, ignore_eos=True)
FORKED = Sampling(max_tokens=22, n=3, temperature=1.0, seed=1, ignore_eos=True)
ALL = [GREEDY, FORKED, BEAMS, FILTERED, WARM, GREEDY, GREEDY]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """fp32 products in fp32: padding a batch may otherwise round another way."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def make(**options: Any) -> LLM:
    engine = {"max_batch_requests": 16, "max_batch_tokens": 64, "max_model_len": 256}
    return make_llm(**{"device": "cuda", "num_blocks": 300, "block_size": 16, "poison": True, **engine, **options})


def wide_model(dtype: str) -> LoadedModel:
    """Heads of 64, which every backend takes; the tiny model's are 16 wide."""
    return random_model(replace(TINY_CONFIG, hidden_size=256, head_dim=64, dtype=dtype), device="cuda")


def serve(llm: LLM, samplings: list[Sampling]) -> tuple[list[Any], list[Any]]:
    prompts = [[11 + i % 2, *range(20, 30 + 9 * i)] for i in range(len(samplings))]
    requests = llm.generate(prompts, samplings)
    llm.engine.check()
    assert all(request.status.value == "finished" for request in requests), [r.reason for r in requests]
    return requests, [[c.tokens for c in request.completions] for request in requests]


@pytest.mark.parametrize(
    "schedule",
    [{}, {"preempt_every": 3, "chunk_size": 9}, {"num_blocks": 30}],
    ids=["at ease", "preempted", "short of blocks"],
)
def test_captured_steps_give_the_tokens_of_eager_ones(schedule: dict[str, Any]) -> None:
    _, wanted = serve(make(cuda_graphs=False, **schedule), ALL)
    llm = make(cuda_graphs=True, **schedule)
    requests, found = serve(llm, ALL)
    assert found == wanted
    summary = llm.executor.summary()
    assert summary["cuda_graphs"] is True
    assert summary["graph_steps"] > 10, summary
    verdict = compare(llm, requests, 8)[1]
    assert verdict["dense_mismatches"] == 0, verdict


@pytest.mark.parametrize("name", registry.names("backend"))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_backend_that_declares_graph_safe_can_be_captured(name: str, dtype: str) -> None:
    backend = registry.build("backend", name, {}, {})
    _, why = choose(EngineOptions(), backend, "cuda")
    if why:
        pytest.skip(why)
    size = max(16, backend.capabilities.block_size_multiple_of)
    try:
        llm = make(model=wide_model(dtype), backend=backend, cuda_graphs=True, block_size=size, poison=False)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    serve(llm, ALL)
    assert llm.executor.summary()["graph_steps"] > 0


def test_a_larger_eager_batch_between_replays_does_not_take_a_graphs_workspace_away() -> None:
    """The backend's workspaces grow in the mixed steps of more rows than were captured."""
    llm, eager = make(cuda_graphs=False), make(cuda_graphs=False)
    llm.executor.capture(CudaRecorder("cuda"), (1, 2))
    for samplings in ([GREEDY], ALL + ALL[:2], [GREEDY, WARM], [GREEDY]):
        _, found = serve(llm, samplings)
        junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
        _, wanted = serve(eager, samplings)
        assert found == wanted
        del junk


def test_sizes_share_one_memory_pool() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    one = make(cuda_graphs=False)
    one.executor.capture(CudaRecorder("cuda"), (16,))
    alone = torch.cuda.memory_reserved() - before
    before = torch.cuda.memory_reserved()
    many = make(cuda_graphs=True)
    together = torch.cuda.memory_reserved() - before
    assert together < 2 * alone, (alone, together)
    assert one.executor.graphs is not None
    assert many.executor.graphs is not None


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_a_step_waits_for_its_tokens_and_for_nothing_else(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make(cuda_graphs=graphs, poison=False)
    serve(llm, ALL)  # compiles
    fetch = Staging.fetch

    def allowed(self: Staging, tensor: torch.Tensor) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return fetch(self, tensor)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(Staging, "fetch", allowed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        serve(llm, ALL)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_device_draws_the_tokens_that_the_cpu_draws() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 5000, generator=generator).mul_(3).round_().div_(1.5)
    settings: dict[str, Any] = {
        "temperature": np.resize([0.0, 0.5, 1.0, 3.0], 60),
        "top_k": np.resize([0, 1, 5, 30, 0], 60),
        "top_p": np.resize([1.0, 0.9, 0.2], 60),
        "seeds": np.arange(60),
        "streams": np.zeros(60, np.int64),
        "positions": np.arange(60),
    }
    wanted, _ = sampler.sample(logits, **settings)
    found, _ = sampler.sample(logits.cuda(), **settings)
    assert (found.cpu() == wanted).float().mean() >= 0.98, "sums round otherwise, rarely"


def test_a_recorder_replays_on_changed_inputs() -> None:
    recorder = CudaRecorder("cuda")
    source, target = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

    def work() -> None:
        target.copy_(source * 2)

    recorder.warm_up(work)
    replay = recorder.capture(work)
    source.fill_(5.0)
    replay()
    assert target.tolist() == [10.0] * 4


def test_a_compiled_decoder_can_be_captured() -> None:
    _, wanted = serve(make(cuda_graphs=False), [GREEDY, WARM])
    llm = make(cuda_graphs=True, compile=True)
    _, found = serve(llm, [GREEDY, WARM])
    assert found == wanted
    assert llm.executor.summary()["graph_steps"] > 0
