"""What a step moves between host and device, counted on torch's meta device: it computes nothing and cannot be read.

Whatever would have to wait for a real device raises there; beams and log-probabilities are in test_pretended_device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_engines import make_llm
from static_backend import StaticBackend
from torch.utils._python_dispatch import TorchDispatchMode

from framework.engine.staging import Staging
from framework.llm import LLM
from framework.model.decoder import Decoder
from framework.model.loading import TINY_CONFIG, LoadedModel
from framework.model.tokenizer import ByteTokenizer
from framework.sampling import Sampling
from framework.testing.attention_runs import ReplayRecorder

GREEDY = Sampling(max_tokens=10, ignore_eos=True)
WARM = Sampling(max_tokens=10, temperature=0.8, ignore_eos=True)
FILTERED = Sampling(max_tokens=10, temperature=0.8, top_k=5, top_p=0.9, ignore_eos=True)


class Uploads(TorchDispatchMode):
    """Counts copies from the CPU to the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.name()
        if name.startswith("aten::copy_") or name in ("aten::_to_copy", "aten::to.dtype_layout", "aten::to.device"):
            source = args[1] if name.startswith("aten::copy_") else args[0]
            self.count += source.device.type == "cpu" and found.device.type == "meta"
        return found


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that the one way back to the host was asked for. It answers with token 7."""
    seen: list[tuple[int, ...]] = []

    def fetch(self: Staging, tensor: torch.Tensor) -> Any:
        assert tensor.device.type == "meta", tensor.device
        seen.append(tuple(tensor.shape))
        ranks = np.arange(tensor.numel()).reshape(tuple(tensor.shape))
        return np.full(tuple(tensor.shape), 7) if tensor.dtype == torch.int64 else 8.0 + ranks

    monkeypatch.setattr(Staging, "fetch", fetch)
    return seen


def on_meta(sizes: tuple[int, ...] | None) -> LLM:
    model = LoadedModel(Decoder(TINY_CONFIG, device="meta"), ByteTokenizer(), TINY_CONFIG, "tiny")
    options = {"max_model_len": 64, "max_batch_requests": 8, "max_batch_tokens": 32, "block_size": 4}
    llm = make_llm(model, backend=StaticBackend(), device="meta", num_blocks=100, **options)
    if sizes:
        # Addresses are all 0 there: what is left to compare are operators, numbers and shapes.
        llm.executor.capture(ReplayRecorder(), sizes)
    return llm


def count_steps(llm: LLM, samplings: list[Sampling], each: Callable[[int, int], None]) -> None:
    """Serve; tell `each` step's decodes and uploads."""
    for i, sampling in enumerate(samplings):
        llm.submit([9, *range(30, 37 + i)], sampling)
    while llm.engine.num_unfinished:
        with Uploads() as uploads:
            llm.engine.step()
        each(uploads.count, llm.engine.state.rows.num_active)


@pytest.mark.parametrize("sizes", [None, (1, 2, 4, 8)], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    "samplings",
    [[GREEDY] * 4, [WARM] * 3, [FILTERED] * 3, [GREEDY, WARM, FILTERED]],
    ids=["greedy", "warm", "filtered", "mixed"],
)
def test_a_step_asks_the_device_for_its_tokens_and_for_nothing_else(
    samplings: list[Sampling], sizes: tuple[int, ...] | None, fetches: list[tuple[int, ...]]
) -> None:
    llm = on_meta(sizes)
    per_step: list[int] = []
    uploads: list[int] = []

    def each(sent: int, active: int) -> None:
        per_step.append(len(fetches) - sum(per_step))
        uploads.append(sent)

    count_steps(llm, samplings, each)
    assert max(per_step) == 1, per_step
    assert all(len(shape) == 1 for shape in fetches), fetches
    assert sum(shape[0] for shape in fetches) == 10 * len(samplings), "every token once"
    # The step's integers in one copy, and what sampling needs in another where something is drawn.
    draws = any(sampling.temperature > 0 for sampling in samplings)
    assert max(uploads) == (2 if draws else 1), uploads
    if sizes:
        assert llm.executor.summary()["graph_steps"] >= 8, llm.executor.summary()
