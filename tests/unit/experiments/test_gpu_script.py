"""experiments/gpu: the script for a GPU machine, as far as a machine without one can try it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch


def load(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the experiment's files, as a module."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", repository / "experiments" / "gpu" / f"{name}.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return load(repository, "run", monkeypatch)


def test_without_a_gpu_it_says_so_and_measures_nothing(
    script: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path)])
    assert script.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert "sections" not in json.loads((tmp_path / "results.json").read_text())


def test_results_are_rewritten_after_every_step(script: Any, tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[int] = []

    def steps(session: Any, left: Any) -> Any:
        for number in range(3):
            stored = json.loads((tmp_path / "results.json").read_text())
            seen.append(len(stored.get("sections", {}).get("tests", [])))
            yield {"step": str(number), "status": "ok" if number else "failed"}

    monkeypatch.setitem(script.SECTIONS, "tests", steps)
    monkeypatch.setattr(sys, "argv", ["run.py", "--dry-run", "--only", "tests", "--out", str(tmp_path)])
    assert script.main() == 1, "a failed step is a failure of the whole"
    assert seen == [0, 1, 2]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["dry_run"] is True
    assert stored["provenance"]["package"]["name"] == "kvcache-framework"


def test_a_step_out_of_time_is_stopped_with_its_children_and_recorded(script: Any, tmp_path: Path) -> None:
    session = script.Session(tmp_path, 600.0, False)
    alive = tmp_path / "alive"
    child = (
        f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).write_text(str(time.time())); time.sleep(.05)"
    )
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    done = script._run(session, "endless", [sys.executable, "-c", program], 5.0)
    step = script._step("endless", done)
    assert (step["status"], step["reason"]) == ("out of time", "stopped after 5 s")
    last = alive.read_text()
    time.sleep(0.3)
    assert alive.read_text() == last, "a child of the stopped step still runs"


def test_no_step_begins_when_no_time_is_left(script: Any, tmp_path: Path) -> None:
    session = script.Session(tmp_path, 600.0, False)
    done = script._run(session, "late", [sys.executable, "-c", "raise SystemExit('ran')"], 1.0)
    assert script._step("late", done)["reason"] == "no time was left"


def test_rows_of_a_killed_run_are_read_up_to_the_last_whole_line(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "kernel.jsonl"
    path.write_text('{"a":1}\n{"a":2}\n{"a":')
    assert script._json_lines(path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(("backend", "status"), [("torch", 0), ("gather", 0), ("varlen", 4)])
def test_a_dry_replay_is_judged(
    backend: str, status: int, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    module = load(repository, "graph_replay", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["graph_replay.py", backend, "--dry-run"])
    assert module.main() == status
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(line["ok"], line["replayed"]) for line in lines] == ([(True, False)] * 4 if status == 0 else [])


def test_a_step_that_ignores_new_lengths_is_caught(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph that had the lengths baked in would do."""
    module = load(repository, "graph_replay", monkeypatch)
    made = module._backend("gather", "cpu")
    problem = module.build_problem(module.Case(made[1], (50, 50), (1, 1)))
    step = module._Step(made[0], problem, graph=False)
    assert module._case(step, problem, (50, 20))
    step()
    stale = step.out.clone()
    monkeypatch.setattr(module._Step, "_call", lambda self: self.out.copy_(stale))
    assert not module._case(step, problem, (50, 30))


def test_a_wrong_replay_is_a_failure_of_the_command(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(repository, "graph_replay", monkeypatch)
    monkeypatch.setattr(module, "_case", lambda step, problem, lengths: lengths[1] != 24)
    monkeypatch.setattr(sys, "argv", ["graph_replay.py", "torch", "--dry-run"])
    assert module.main() == 1


@pytest.mark.parametrize(("backend", "status"), [("torch", 0), ("varlen", 4)])
def test_whole_decode_steps_are_judged(
    backend: str, status: int, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    module = load(repository, "engine_replay", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["engine_replay.py", backend, "--dry-run"])
    assert module.main() == status
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"size"')]
    assert [(line["size"], line["ok"]) for line in lines] == ([(n, True) for n in (1, 2, 4, 8)] if not status else [])
    assert all(len(set(line["lengths"])) > 2 for line in lines), f"lengths did not change: {lines}"


def test_a_wrong_decode_step_is_a_failure(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph that read the table of another row would do."""
    from framework.engine.graphs import DecodeGraphs

    module = load(repository, "engine_replay", monkeypatch)
    inputs = DecodeGraphs._inputs

    def stale(self: Any, size: int, num_changes: int) -> Any:
        arrays = inputs(self, size, num_changes)
        arrays[3] = np.zeros(size, dtype=np.int64).view(_Deaf)  # whatever is written to it: row 0
        return arrays

    monkeypatch.setattr(DecodeGraphs, "_inputs", stale)
    monkeypatch.setattr(sys, "argv", ["engine_replay.py", "torch", "--dry-run"])
    assert module.main() == 1


class _Deaf(np.ndarray[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def test_serve_runs_compare_graphs_with_eager_steps_first(script: Any) -> None:
    runs = script.serve_runs(False)
    assert runs[:2] == [("triton", "prefix_cow", ""), ("triton", "prefix_cow", "eager")]
    assert ("varlen", "prefix_cow", "eager") in runs
    assert ("gather", "prefix_cow", "eager") not in runs, "it has no graphs to do without"
    assert len(set(runs)) == len(runs)
    assert {allocator for backend, allocator, _ in runs if backend == "triton"} == set(script.allocators())


@pytest.mark.slow
def test_the_dry_run_goes_through(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(repository / "experiments" / "gpu" / "run.py"), "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert list(sections) == ["tests", "replay", "kernel", "serve", "sanitizer"], sections
