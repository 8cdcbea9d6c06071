"""The example package, as anyone gets it: two wheels in a fresh environment, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

EXAMPLE = "plugins/framework-example"


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _wheel(source: Path, out: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_the_allocator_on_the_easy_base_class_is_at_most_fifty_lines(repository: Path) -> None:
    lines = (repository / EXAMPLE / "framework_example" / "allocator.py").read_text().splitlines()
    assert len(lines) <= 50, len(lines)


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone_and_works_in_a_fresh_environment(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, of the test extra, builds the wheels")
    ours, example = _wheel(repository, tmp_path / "ours"), _wheel(repository / EXAMPLE, tmp_path / "example")
    with zipfile.ZipFile(example) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"framework_example", "framework_example-0.1.0.dist-info"}, tops
    _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    inside = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (inside / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", ours, example, cwd=tmp_path)
    tests = repository / EXAMPLE / "tests"
    passed = _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tests, cwd=tmp_path)
    assert " passed" in passed, passed
    words = ["+eviction=capped_hits", "eviction.cap=2", "+allocator=packed", "+hash=keyed", "hash.secret=s"]
    job = ["workload.num_requests=6", "workload.output_tokens=4"]
    assert "hit rate" in _run(python, "-m", "framework.run", *words, *job, cwd=tmp_path)
    for name in ("capped_hits", "packed", "keyed", "int8_reader"):
        checked = _run(python, "-m", "framework.check", name, "--no-cost", cwd=tmp_path)
        assert "(framework-example 0.1.0)" in checked, checked
