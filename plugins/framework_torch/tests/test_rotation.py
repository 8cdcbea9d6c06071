"""A backend that offers "rope" gets queries and keys unrotated, and the tokens are those of one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from framework import LLM, Sampling
from framework.config.sections import EngineOptions
from framework.interfaces.backend import Capabilities
from framework_torch.backend import TorchBackend

PROMPTS = [list(range(3, 40)), list(range(3, 25)), [7, 8, 9]]


class Rotating(TorchBackend):
    """The torch backend, which rotates by the interface's default."""

    capabilities: ClassVar[Capabilities] = replace(
        TorchBackend.capabilities, features=TorchBackend.capabilities.features | {"rope"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls = {"write": 0, "rotate_and_write": 0}

    def write(self, *given) -> None:
        self.calls["write"] += 1
        super().write(*given)

    def rotate_and_write(self, *given):
        self.calls["rotate_and_write"] += 1
        return super().rotate_and_write(*given)


def tokens_of(backend, **engine) -> list[tuple[int, ...]]:
    llm = LLM("tiny", allocator="prefix_cow", backend=backend, engine=EngineOptions(**engine), device="cpu")
    requests = llm.generate(PROMPTS, Sampling(max_tokens=12, n=2, temperature=0.7, seed=3))
    return [tuple(completion.tokens) for request in requests for completion in request.completions]


def test_rotation_by_the_backend_gives_the_same_tokens():
    backend = Rotating()
    assert tokens_of(backend) == tokens_of("torch")
    assert backend.calls["rotate_and_write"] > 0
    assert backend.calls["write"] == backend.calls["rotate_and_write"], "the default writes once for each rotation"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in inductor
def test_rotation_by_the_backend_under_torch_compile():
    assert tokens_of(Rotating(), compile=True) == tokens_of("torch")
