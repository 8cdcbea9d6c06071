"""Threads of torch are chosen by the work, a setting overrules, and a process has its own back after a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from framework.api import run
from framework.config.check import parse
from framework.modes.serve import torch_threads


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("words", "environment", "threads"),
    [
        ({}, None, 1),
        ({"model": {"name": "random", "shape": "qwen3-0.6b"}}, None, 2),
        ({"engine": {"num_threads": 2}}, None, 2),
        ({"engine": {"num_threads": 1}, "model": {"name": "random", "shape": "qwen3-0.6b"}}, None, 1),
        ({}, "2", 2),
    ],
)
def test_a_tiny_model_takes_one_thread(
    words: dict[str, Any], environment: str | None, threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    with torch_threads(parse({"run": {"dir": str(tmp_path)}, **words})) as found:
        assert (found, torch.get_num_threads()) == (threads, threads)
    assert torch.get_num_threads() == 2


def test_a_result_says_how_many(tmp_path: Path) -> None:
    served = {"name": "no_sharing", "num_requests": 2, "min_tokens": 4, "max_tokens": 8, "new_tokens": 2}
    result = run({"workload": served, "run": {"dir": str(tmp_path / "run"), "progress": False}})
    assert (result["num_threads"], torch.get_num_threads()) == (1, 2)
