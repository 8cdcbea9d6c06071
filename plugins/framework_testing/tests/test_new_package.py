"""`python -m framework new` writes a package that installs, is clean, passes its kit and runs; it spoils nothing."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from environments import fresh_environment, pip_install, run

import framework_testing
from framework import registry
from framework.errors import ConfigError
from framework_testing.new.command import create, kinds

main = command("new")


@pytest.mark.parametrize("kind", registry.kinds(with_kit=True))
def test_every_kind_has_a_kit_and_an_example(kind: str) -> None:
    assert getattr(framework_testing, f"{kind}_checks")
    assert kind in kinds()


@pytest.fixture(scope="module")
def interpreter(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has our dependencies, this checkout, and room for a third-party package."""
    python = fresh_environment(tmp_path_factory.mktemp("new") / "venv")
    run(*pip_install(python), "-e", repository, cwd=repository)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
def test_what_is_written_installs_is_clean_and_passes(kind: str, interpreter: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, of the test extra, builds the package")
    name, plugin = f"my-own-{kind}", f"my_own_{kind}"
    out = run(interpreter, "-m", "framework", "new", name, "--kind", kind, cwd=tmp_path)
    place = tmp_path / name
    assert f"pip install -e {name}" in out, out
    run(*pip_install(interpreter), "-e", place, cwd=tmp_path)
    tests = run(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=place)
    assert " passed" in tests, tests
    assert "failed" not in tests, tests
    small = ["--cases", "small"] if kind == "backend" else []
    checked = run(interpreter, "-m", "framework", "check", plugin, *small, cwd=tmp_path)
    assert f"{kind} '{plugin}' ({name} 0.1.0)" in checked, checked
    job = ["workload.num_requests=4", "workload.output_tokens=3", "run.progress=false"]
    words = shlex.split(registry.kind_of(kind).command.format(kind=kind, name=plugin))
    if registry.kind_of(kind).is_group or "+below=tiers" in words:
        ran = run(interpreter, *words[1:], *job, cwd=tmp_path)
        assert "hit rate" in ran, ran
    listed = run(interpreter, "-m", "framework.run", "--help", cwd=tmp_path)
    assert any(line.split()[:1] == [plugin] for line in listed.splitlines()), listed
    assert f"({name} 0.1.0)" in " ".join(listed.split()), listed


@pytest.mark.parametrize("kind", kinds())
def test_what_is_written_is_clean(kind: str, repository: Path, tmp_path: Path) -> None:
    place = create("a-name", kind, tmp_path)
    assert sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()) == sorted(
        ["pyproject.toml", "README.md", "a_name/__init__.py", "a_name/py.typed", f"a_name/{kind}.py",
         "tests/test_a_name.py"]
    )  # fmt: skip
    texts = {path: path.read_text() for path in place.rglob("*") if path.is_file()}
    left = [path for path, text in texts.items() if "example" in path.name or "framework_example" in text]
    assert left == [], "a name of the example was left"
    listed = [line for text in texts.values() for line in text.splitlines() if line.startswith("| `")]
    assert len(listed) == 1, listed
    assert (place / "pyproject.toml").read_text().count("framework.") == 1, texts
    pytest.importorskip("ruff", reason="ruff is in the lint extra")
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=place)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=place)


@pytest.mark.slow
def test_what_is_written_is_typed(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the lint extra")
    sources = os.pathsep.join(map(str, (repository, repository / "plugins")))
    for kind in kinds():
        place = create(f"a-typed-{kind}", kind, tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")],
            cwd=place, capture_output=True, text=True, env={**os.environ, "MYPYPATH": sources},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Mine", "lower-case"), ("1st", "lower-case"), ("", "lower-case"), ("a b", "lower-case"),
        ("../up", "lower-case"), ("-x", "lower-case"), ("x-", "lower-case"), ("ünder", "lower-case"),
        ("lambda", "no Python keyword"),
        ("lru", "eviction 'lru' is taken by kvcache-framework"), ("json", "a module 'json'"), ("numpy", "a module"),
        ("framework", "a module 'framework'"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_are_refused_and_nothing_is_written(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        create(name, "eviction", tmp_path)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "mine-own"
    place.mkdir()
    assert main(["mine-own", "--kind", "hash", "--dir", str(tmp_path)]) == 2
    assert "exists already; nothing was written" in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_an_unknown_kind_and_a_place_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mine-own", "--kind", "evict", "--dir", str(tmp_path)]) == 2
    (tmp_path / "file").write_text("")
    assert main(["mine-own", "--kind", "hash", "--dir", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.count("ConfigError") == 2, said


def test_a_full_disk_leaves_no_half_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], Path.write_text

    def full(path: Path, text: str, **how: Any) -> int:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written.append(path)
        return write(path, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match=r"cannot write .*No space left"):
        create("my-first-idea", "eviction", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
