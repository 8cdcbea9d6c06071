"""experiments/gpu: the script for a GPU machine, as far as a machine without one can try it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import torch

CARRIED = ("torch", "triton", "numpy", "pydantic")


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(repository / "experiments" / "gpu"))
    return importlib.import_module("run")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds torch, triton, numpy, pydantic and what these need, and nothing else."""
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


@pytest.mark.slow
def test_with_the_four_packages_alone_it_serves_and_says_what_is_missing(
    bare_python: Path, repository: Path, tmp_path: Path
) -> None:
    found = dry_run(
        bare_python, repository, tmp_path, "--wheels", str(tmp_path / "none"), "--only", "grid", "serve", "links", "kit"
    )
    grid, served, links, kit = found["parts"].values()
    assert [part["status"] for part in (grid, served, links, kit)] == ["ok", "ok", "ok", "skipped"], found
    assert {row["heads"] for row in grid["rows"]} == {"4/2/64", "4/64+16"}, grid
    assert links["rows"][0]["read_bytes_per_s"] > 0, links
    assert served["rows"][0]["output_tokens_per_s"] > 0, served
    assert "hydra" in kit["reason"], kit
    assert "kit: skipped" in found["printed"], found["printed"]


def test_without_a_gpu_it_says_so_and_measures_nothing(
    script: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "new")])
    assert script.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "new").exists(), "nothing stands where a result would"


def test_a_part_out_of_time_is_stopped_with_its_children_and_what_it_printed_is_kept(
    script: Any, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    child = (
        f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).write_text(str(time.time())); time.sleep(.05)"
    )
    program = f"import subprocess, sys; print('{{\"a\": 1}}\\n{{\"a\":', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"  # fmt: skip  # noqa: E501
    found = script.run("endless", script.Part(("-c", program), 5), tmp_path / "log", dict(os.environ), 5.0)
    assert (found["status"], found["reason"], found["rows"]) == ("out of time", "stopped after 5 s", [{"a": 1}])
    last = alive.read_text()
    subprocess.run(["sleep", "0.3"], check=True)
    assert alive.read_text() == last, "a child of the stopped part still runs"
    late = script.run("late", script.Part(("-c", "print()"), 5), tmp_path / "log", {}, 1.0)
    assert late == {"status": "out of time", "reason": "no time was left"}


def test_the_site_folder_has_every_entry_point_of_the_project(script: Any, repository: Path, tmp_path: Path) -> None:
    import tomllib

    script.make_site(tmp_path, tmp_path / "none")
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    named = {(point.group, point.name): point.value for point in found.entry_points}
    facts = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for group, points in facts["entry-points"].items():
        assert {name: named.get((group, name)) for name in points} == points
