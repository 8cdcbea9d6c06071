"""The packages beside ours: the example, as anyone gets it, and the plugins around packages that are not here."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from environments import build, fresh_environment, pip_install, run

from framework.interfaces.backend import AttentionBackend

EXAMPLE = "plugins/framework-example"


def test_the_allocator_on_the_easy_base_class_is_at_most_fifty_lines(repository: Path) -> None:
    lines = (repository / EXAMPLE / "framework_example" / "allocator.py").read_text().splitlines()
    assert len(lines) <= 50, len(lines)


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone_and_works_in_a_fresh_environment(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, of the test extra, builds the wheels")
    ours, example = build(repository, tmp_path / "ours"), build(repository / EXAMPLE, tmp_path / "example")
    with zipfile.ZipFile(example) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"framework_example", "framework_example-0.1.0.dist-info"}, tops
    python = fresh_environment(tmp_path / "venv")
    run(*pip_install(python), ours, example, cwd=tmp_path)
    tests = repository / EXAMPLE / "tests"
    passed = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tests, cwd=tmp_path)
    assert " passed" in passed, passed
    words = ["+eviction=capped_hits", "eviction.cap=2", "+allocator=packed", "+hash=keyed", "hash.secret=s"]
    job = ["workload.num_requests=6", "workload.output_tokens=4"]
    assert "hit rate" in run(python, "-m", "framework.run", *words, *job, cwd=tmp_path)
    project = (repository / EXAMPLE / "pyproject.toml").read_text()
    names = re.findall(r'^(\w+) = "framework_example\.', project, re.MULTILINE)
    page = (repository / EXAMPLE / "README.md").read_text()
    assert sorted(names) == sorted(re.findall(r"framework check (\w+)", page))
    for name in names:
        small = ["--cases", "small"] if name in ("plain_softmax", "int8_reader") else []
        checked = run(python, "-m", "framework", "check", name, "--no-cost", *small, cwd=tmp_path)
        assert "(framework-example 0.1.0)" in checked, checked


FOLDERS = {
    "framework-flash-attn": "framework_flash_attn.backend:FlashAttnBackend",
    "framework-flashinfer": "framework_flashinfer.backend:FlashInferBackend",
}


OWN_TESTS = """
import sys, pytest
for folder in sys.argv[1:]:
    chosen = ["-k", "not passes_its_kit"] if folder.endswith("example") else []
    if status := pytest.main(["-q", "-p", "no:cacheprovider", folder, *chosen]):
        sys.exit(status)
"""


def test_their_own_tests_pass(repository: Path) -> None:
    """Those of the example without its kits, which run beside its wheel; in one process, which imports torch once."""
    folders = [str(repository / "plugins" / name) for name in (*FOLDERS, "framework-example")]
    done = subprocess.run([sys.executable, "-c", OWN_TESTS, *folders], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" passed") == len(folders), done.stdout


@pytest.mark.parametrize(("folder", "value"), FOLDERS.items())
def test_what_it_registers_is_a_backend(
    folder: str, value: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = (repository / "plugins" / folder / "pyproject.toml").read_text()
    assert f'"{value}"' in project, project
    assert '[project.entry-points."framework.backend"]' in project, project
    module, _, name = value.partition(":")
    monkeypatch.syspath_prepend(str(repository / "plugins" / folder))
    assert issubclass(getattr(importlib.import_module(module), name), AttentionBackend)
