"""What `make live`, `live-clock` and `live-speed` run, quickly and against a stand-in of vLLM: all but vLLM is real."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def live(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of experiments/live with our engine in place of vLLM."""
    monkeypatch.syspath_prepend(str(repository))
    monkeypatch.chdir(repository)
    monkeypatch.setenv("KVLAB_PYTHON", sys.executable)
    stand_in = importlib.import_module("stand_in_vllm")

    def imported(name: str) -> Any:
        module = importlib.import_module(f"experiments.live.{name}")
        for part in ("serving", "Client", "counting_evictions"):
            if hasattr(module, part):
                monkeypatch.setattr(module, part, getattr(stand_in, part))
        monkeypatch.setattr(module, "version", lambda name: "stand-in", raising=False)
        return module

    return imported


@pytest.mark.slow
def test_live_replays_what_was_recorded_and_finds_it_equal(
    live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, find = live("__main__"), importlib.util.find_spec
    monkeypatch.setattr(module, "make", lambda folder: folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name == "vllm" or find(name, *more))
    assert module.main(["--quick", "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    rows = (tmp_path / "out" / "engine.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["policy", "lru", "fifo"]
    hits = (tmp_path / "out" / "hits.csv").read_text()
    assert "conversations,lru,15" in hits
    assert "conversations,15" in (tmp_path / "out" / "orders.csv").read_text()
    ordered = [
        one.engine for one in importlib.import_module("stand_in_vllm").servers if one.engine.state.ordered is not None
    ]
    assert len(ordered) == 1, "one server had an order"


def test_a_version_is_asked_and_has_its_row(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live("__main__"), "make", lambda folder: folder)
    live("server")
    module = live("versions")
    found = module.asked(20)
    assert found == {"requests": 20, "tokens": 20, "lru": 20, "replay": 20, "failed": False}
    assert "| 0.31.0 | 20 | 20 of 20 | 20 of 20 | 20 of 20 | no |" in module.row_of("0.31.0", found)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # our engine serves in real time, each run a process
def test_the_clock_is_fitted_and_tells_both_engines(live: Any, tmp_path: Path) -> None:
    module = live("clock")
    assert module.main(["--quick", "--out", str(tmp_path / "out")]) == 0
    costs = (tmp_path / "out" / "costs.csv").read_text()
    assert "vLLM" in costs
    assert "ours" in costs


@pytest.mark.slow
def test_the_speed_of_engines_is_compared(live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = live("speed")
    monkeypatch.setattr(module, "ENGINES", ("vllm", "torch"))  # the native backend is a distribution of its own
    monkeypatch.setattr(module, "_vllm", module._ours("torch"))
    monkeypatch.setattr(
        module,
        "_child",
        lambda engine, model, dtype: json.loads(json.dumps(module.measured(engine, str(model), dtype))),
    )
    assert module.main(["--quick", "--out", str(tmp_path / "out")]) == 0
    assert "32 ragged prompts" in (tmp_path / "out" / "rounds.csv").read_text()
