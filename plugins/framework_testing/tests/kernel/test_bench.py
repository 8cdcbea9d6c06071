"""How long timing goes on, and how it is done where a device allows no graph."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from framework_testing.kernel.bench import time_on_cpu, time_on_cuda


def test_a_call_that_takes_longer_than_the_budget_is_made_once() -> None:
    turns: list[int] = []

    def slow(turn: int) -> None:
        turns.append(turn)
        time.sleep(0.02)

    found = time_on_cpu({"slow": slow}, 0.001)["slow"]
    assert turns == [0]
    assert len(found.samples) == 1
    assert found.median_s >= 0.02


class Device:
    """What `time_on_cuda` asks of torch.cuda. The clock is the number of turns; graphs replay what was captured.

    Args:
        captures: a capture works; else it ends with an error, as of a call that waits for the device.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *, captures: bool) -> None:
        self.turns: list[int] = []
        self._captured: list[int] = []
        self._captures = captures
        stream = type("Stream", (), {"wait_stream": lambda self, other: None})
        patch.setattr(torch.cuda, "Stream", stream)
        patch.setattr(torch.cuda, "current_stream", stream)
        patch.setattr(torch.cuda, "stream", lambda chosen: contextlib.nullcontext())
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        patch.setattr(torch.cuda, "graph", self._capture)
        patch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))

    @contextlib.contextmanager
    def _capture(self, graph: Any) -> Iterator[None]:
        before = len(self.turns)
        yield
        self._captured = self.turns[before:]
        if not self._captures:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    def replay(self) -> None:
        assert self._captures, "what was not captured is replayed"
        self.turns += self._captured


class Event:
    """Milliseconds are turns."""

    def __init__(self, device: Device) -> None:
        self._device, self.at = device, 0

    def record(self) -> None:
        self.at = len(self._device.turns)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, after: Event) -> float:
        return after.at - self.at


@pytest.mark.parametrize(
    ("graph", "captures", "method"),
    [
        (True, True, "CUDA events, graph"),
        (False, True, "CUDA events"),
        (True, False, "CUDA events; not captured: operation not permitted when stream is capturing"),
    ],
)
def test_a_cell_that_cannot_be_captured_is_timed_by_plain_calls_and_says_so(
    graph: bool, captures: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, captures=captures)
    found = time_on_cuda(device.turns.append, 0.01, num_turns=3, graph=graph)
    assert found.method == method
    assert len(found.samples) >= 5
    assert found.median_s == pytest.approx(1e-3), "a call is one turn, whether replayed or made"
    assert sorted(set(device.turns)) == list(range(max(device.turns) + 1)), device.turns
    assert (max(device.turns) + 1) % 3 == 0, "a sample is of whole rounds over the three buffers"
