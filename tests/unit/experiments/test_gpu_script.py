"""experiments/gpu: the script for a GPU machine, as far as a machine without one can try it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

CARRIED = ("torch", "triton", "numpy")


def load(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the experiment's files, as a module."""
    monkeypatch.syspath_prepend(str(repository / "experiments" / "gpu"))
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", repository / "experiments" / "gpu" / f"{name}.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return load(repository, "run", monkeypatch)


@pytest.fixture
def session(script: Any, tmp_path: Path) -> Any:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = script.Session(tmp_path, 540.0, False, scratch)
    made.results["skipped"] = {}
    return made


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds torch, triton, numpy and what these need, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    links = folder / "links"
    links.mkdir()
    for name in needs(CARRIED):
        found = importlib.metadata.distribution(name)
        for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (links / top).exists():
                (links / top).symlink_to(Path(str(found.locate_file(top))))
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    packages.joinpath("links.pth").write_text(f"{links}\n")
    return folder / "venv" / "bin" / "python"


def needs(names: tuple[str, ...]) -> set[str]:
    """These distributions and those they require without extras, as far as they are installed."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower()
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            plain = [text for text in requirements if "extra ==" not in text]
            left += [re.match(r"[A-Za-z0-9._-]+", text)[0] for text in plain]  # type: ignore[index]
    return found


def dry_run(python: Path, repository: Path, out: Path, *words: str) -> dict[str, Any]:
    command = [str(python), str(repository / "experiments" / "gpu" / "run.py"), "--dry-run", "--out", str(out), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, cwd=out,
        env={"PATH": "/usr/bin:/bin", "HOME": str(out), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return {**found, "printed": done.stdout}


def test_with_torch_triton_and_numpy_alone_it_serves_and_says_what_is_missing(
    bare_python: Path, repository: Path, tmp_path: Path
) -> None:
    found = dry_run(bare_python, repository, tmp_path, "--wheels", str(tmp_path / "none"), "--only", "serve", "kit")
    here, runs, skips, missing, *_, done = found["printed"].splitlines()
    assert f"torch {torch.__version__}, triton" in here
    assert f"runs serve: tiny shapes on the CPU, whose numbers mean nothing; results go to {tmp_path}" in runs
    assert "skips kit: needs pytest" in skips
    assert "needed by nothing that runs: hydra-core, omegaconf" in missing
    assert f"done: 1 ok, 1 skipped; {tmp_path}/results.json" in done
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["hydra-core"] is None
    (served,), (kit,) = found["parts"]["serve"], found["parts"]["kit"]
    assert served["status"] == "ok"
    assert served["rows"][0]["output_tokens_per_s"] > 0
    assert kit["status"] == "skipped"
    assert "hydra" in kit["reason"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["logs.tar.gz", "results.json"]


@pytest.mark.slow
def test_the_dry_run_goes_through_with_torch_triton_and_numpy_alone(
    bare_python: Path, repository: Path, tmp_path: Path
) -> None:
    found = dry_run(bare_python, repository, tmp_path, "--wheels", str(tmp_path / "none"))
    statuses = {part: [step["status"] for step in steps] for part, steps in found["parts"].items()}
    assert statuses == {
        "machine": ["ok"], "replay": ["ok", "ok"], "precompile": ["ok"], "grid": ["ok"],
        "serve": ["ok"], "tiers": ["ok", "ok"], "kit": ["skipped"],
    }  # fmt: skip


def test_without_a_gpu_it_says_so_and_measures_nothing(
    script: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "new")])
    assert script.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "new").exists(), "nothing stands where a result would"


def test_a_step_out_of_time_is_stopped_with_its_children_and_what_it_printed_is_kept(
    script: Any, session: Any, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    child = (
        f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).write_text(str(time.time())); time.sleep(.05)"
    )
    program = f"import subprocess, sys; print('{{\"a\": 1}}\\n{{\"a\":', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"  # fmt: skip  # noqa: E501
    done = script.run_process(session, "endless", [sys.executable, "-c", program], 5.0)
    step = script.judged("endless", done, rows=script.json_lines(done["log"]))
    assert (step["status"], step["reason"], step["rows"]) == ("out of time", "stopped after 5 s", [{"a": 1}])
    last = alive.read_text()
    subprocess.run(["sleep", "0.3"], check=True)
    assert alive.read_text() == last, "a child of the stopped step still runs"


def test_no_step_begins_when_no_time_is_left(script: Any, session: Any) -> None:
    done = script.run_process(session, "late", [sys.executable, "-c", "raise SystemExit('ran')"], 1.0)
    assert script.judged("late", done)["reason"] == "no time was left"


def test_the_parts_leave_the_grid_its_time_within_nine_minutes(script: Any) -> None:
    limits = {name: part.limit_s for name, part in script.PARTS.items() if part.usual}
    assert list(limits) == ["machine", "replay", "precompile", "grid", "serve", "tiers", "kit"]
    assert limits["grid"] >= 250
    assert sum(seconds for name, seconds in limits.items() if name != "kit") <= 540 - script._LAST_S


def test_the_site_folder_has_every_entry_point_of_the_project(
    repository: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    surroundings = load(repository, "surroundings", monkeypatch)
    surroundings.make_site(tmp_path, None)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    named = {(point.group, point.name): point.value for point in found.entry_points}
    for group, points in surroundings.project()["entry-points"].items():
        for name, value in points.items():
            assert named[group, name] == value


def test_rows_of_the_grid_carry_registers_and_spills_of_what_was_launched(repository: Path, tmp_path: Path) -> None:
    """By Triton's own launcher, on a driver without a device that says 106 registers and 2 spills of every kernel.

    In a process of its own: this one may have been started with TRITON_INTERPRET set.
    """
    code = (
        "import grid, json\n"
        "from framework_builtin.backend.triton_kernels import steps\n"
        "from framework_builtin.backend.triton_kernels.configs import ARCHS\n"
        "from framework_builtin.backend.triton_kernels.kernels import compiled\n"
        "from framework_builtin.backend.triton_kernels.pretended import pretended\n"
        "from framework.interfaces.backend import AttentionSpec\n"
        "spec = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64, dtype='bfloat16', block_size=16)\n"
        "arch, before = ARCHS['sm_90'], grid.launched()\n"
        "with pretended(arch.target, arch.shared_bytes) as driver:\n"
        "    driver.load_binary = lambda *arguments: (None, None, 106, 2, 1024)\n"
        "    steps.run(steps.Step(context=steps.SHORT), steps.launcher_for(spec, arch, compiled), spec)\n"
        "    print(json.dumps([before, driver.num_launches, grid.launched()]))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(repository / "experiments" / "gpu")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [{}, 1, {"decode_n_regs": [106], "decode_n_spills": [2]}]


def test_a_dry_run_fits_links_and_compares_steps_with_and_without_copies(
    bare_python: Path, repository: Path, tmp_path: Path
) -> None:
    found = dry_run(bare_python, repository, tmp_path, "--wheels", str(tmp_path / "none"), "--only", "tiers")
    links, overlap = found["parts"]["tiers"]
    assert (links["step"], links["status"], overlap["step"], overlap["status"]) == ("links", "ok", "overlap", "ok")
    model, *points = links["rows"]
    assert model["link"] == "host"
    assert model["num_points"] == len(points) == 36
    assert {point["direction"] for point in points} == {"read", "write"}
    assert [row["copies"] for row in overlap["rows"]] == ["out", "in", "out+in"]
    for row in overlap["rows"]:
        assert row["copied_bytes_per_s"] > 0, "no copy was in flight"
        assert row["rows"] == 2, "all rows decode in every phase"
        assert row["slowdown"] > -1


def test_steps_that_wait_for_their_copies_are_not_within_the_aim(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    module = load(repository, "overlap", monkeypatch)
    top_up = module.Copies.top_up

    def waits(self: Any, ways: Any) -> None:
        top_up(self, ways)
        self.drain()
        time.sleep(0.05)

    monkeypatch.setattr(module.Copies, "top_up", waits)
    monkeypatch.setattr(sys, "argv", ["overlap.py", "torch", "--dry-run"])
    assert module.main() == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [row["within_aim"] for row in rows] == [False] * 3


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
