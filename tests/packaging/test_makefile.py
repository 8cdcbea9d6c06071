"""Every target of the Makefile names modules and files that are there, and what the long ones run has a quick form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()  # type: ignore[index]
ELSEWHERE = {
    "gpu": "tests/unit/experiments/test_gpu_script.py",
    "live": "tests/unit/experiments/test_live_quick.py",
    "live-clock": "tests/unit/experiments/test_live_quick.py",
    "live-speed": "tests/unit/experiments/test_live_quick.py",
}
"""What CI cannot run, and the test that runs it quickly; `engines` are run by CI where .engines is set up."""


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_names_what_is_there(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    modules = re.findall(r" -m (experiments[\w.]*)", done.stdout)
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    paths = [
        word
        for word in re.findall(r"(?<![\w./])(?:tests|experiments|plugins)/[\w./-]+", done.stdout)
        if word[-1] != "/"
    ]
    here = ROOT if target != "engines-own" else None  # its last words are of vLLM's own tests
    assert here is None or all((here / word).exists() for word in paths), paths
    assert (ROOT / ELSEWHERE.get(target, "Makefile")).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_bench_hot_paths.py", "test_bench_allocator.py"])
def test_what_bench_times_runs(name: str) -> None:
    options = ["-q", "-n", "0", "-o", "addopts=--import-mode=importlib", "--benchmark-disable"]
    command = [sys.executable, "-m", "pytest", *options, f"tests/bench/{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout[-2000:]
