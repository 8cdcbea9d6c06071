"""The documentation says what works: its marked blocks and notebooks run, links lead somewhere, tables are whole."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from environments import fresh_environment, pip_install, run

from framework import registry
from framework.engine.request import Completion, Request
from framework.interfaces import CONTRACT, CONTRACT_MINOR
from framework.interfaces.allocator import AllocatorStats, Hit
from framework.interfaces.attention import Batch
from framework.sampling import Sampling
from framework.types import RequestInfo, TableChange
from framework_testing.check.command import Check

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKED = re.compile(r"<!-- (run|file: (?P<path>[^ ]+)) -->\n```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One marked block: to be run, or to be written to `path`."""

    language: str
    text: str
    path: str | None


def blocks(page: Path) -> list[Block]:
    return [Block(m["language"], m["text"], m["path"]) for m in MARKED.finditer(page.read_text())]


def named(page: Path) -> str:
    return page.relative_to(ROOT / "docs").as_posix()


WITH_PYTHON = [page for page in PAGES if any(b.language == "python" and b.path is None for b in blocks(page))]
WITH_SHELL = [page for page in PAGES if any(b.language == "bash" for b in blocks(page))]


def test_every_mark_is_read() -> None:
    for page in PAGES:
        marks = page.read_text().count("<!-- run -->") + page.read_text().count("<!-- file:")
        assert marks == len(blocks(page)), f"{named(page)}: a mark is not followed by a fenced block"
    assert len(WITH_PYTHON) >= 6, WITH_PYTHON
    assert len(WITH_SHELL) >= 3, WITH_SHELL


@pytest.mark.parametrize("page", WITH_PYTHON, ids=named)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "a_page"}
    for block in blocks(page):
        if block.language == "python" and block.path is None:
            exec(compile(block.text, named(page), "exec"), names)


def test_the_page_on_the_python_api_runs_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), flags=re.DOTALL):
        exec(compile(block, "python.md", "exec"), names)
    assert "cancelled" in capsys.readouterr().out


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reader's shell: a fresh environment with the framework installed, whose pip installs without a network."""
    pytest.importorskip("hatchling", reason="hatchling, of the test extra, builds packages")
    place = tmp_path_factory.mktemp("reader") / "venv"
    pip = pip_install(fresh_environment(place))
    run(*pip, "-e", ROOT, cwd=ROOT)
    shim = place / "bin" / "pip"
    shim.write_text(f'#!/bin/sh\n[ "$1" = install ] || exit 2\nshift\nexec {" ".join(map(str, pip))} "$@"\n')
    shim.chmod(0o755)
    return {**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SHELL, ids=named)
def test_the_commands_of_a_page_run(page: Path, shell: dict[str, str], tmp_path: Path) -> None:
    for block in blocks(page):
        if block.path is not None:
            target = tmp_path / block.path
            assert target.parent.is_dir(), f"{block.path}: no command above made its folder"
            target.write_text(block.text)
        elif block.language == "bash":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text], cwd=tmp_path, env=shell, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_the_site_builds_with_every_link_checked(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs-material is in the docs extra")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]  # -q: nothing counts
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {named(page) for page in PAGES}


def test_every_kind_has_a_page_that_names_its_group_and_its_kit() -> None:
    for kind in registry.kinds(with_kit=True):
        text = (ROOT / "docs" / "interfaces" / f"{kind}.md").read_text()
        for word in (f"framework.{kind}`", f"{kind}_checks", registry.interface_of(kind).__name__):
            assert word in text, f"{kind}.md does not say {word}"


def test_every_package_is_on_the_page_and_in_the_map_and_has_a_readme() -> None:
    packages = {path.name for path in (ROOT / "plugins").glob("framework[-_]*") if path.is_dir()}
    for page in (ROOT / "docs" / "packages.md", ROOT / "framework" / "README.md"):
        text = page.read_text()
        assert sorted(name for name in packages if f"`{name}`" not in text) == [], page
    assert sorted(name for name in packages if not (ROOT / "plugins" / name / "README.md").exists()) == []


def test_every_command_has_a_place_on_the_command_line_page() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in registry.names("command") if f"python -m framework {name}" not in text] == []


def test_the_contract_page_has_every_contract() -> None:
    text = (ROOT / "docs" / "stability.md").read_text()
    assert f"now {CONTRACT}." in text
    assert f"`framework.interfaces.CONTRACT_MINOR`, now {CONTRACT_MINOR}," in text
    for minor in range(1, CONTRACT_MINOR + 1):
        assert f"| {CONTRACT}.{minor} |" in text, "what it added is not said"
    assert f"| {CONTRACT} | " in text, "since which version is not said"


def test_every_option_of_check_is_on_the_command_line_page() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    parser = argparse.ArgumentParser()
    Check().add_arguments(parser)
    options = {word for action in parser._actions for word in action.option_strings if word.startswith("--")}
    assert [word for word in options - {"--help", "--device"} if f"`{word}" not in text] == []


def test_each_file_and_method_of_the_walks_exists() -> None:
    text = (ROOT / "docs" / "walks.md").read_text()
    found = re.findall(r"`([a-z_/0-9]+\.py)` `(\w+)(?:\.(\w+))?`", text)
    assert len(found) > 30, found
    for path, outer, method in found:
        places = [ROOT / "framework" / path, ROOT / "plugins" / path]
        source = next(file for file in places if file.exists()).read_text()
        of_class = source.partition(f"\nclass {outer}")[2].partition("\nclass ")[0] if method else source
        wanted = rf"^    def {method}\(" if method else rf"^(def|class) {outer}\b"
        assert re.search(wanted, of_class, re.MULTILINE), f"{path} has no {outer}.{method}"


def test_fifteen_files_are_read_in_under_four_thousand_lines() -> None:
    text = (ROOT / "docs" / "reading.md").read_text()
    lines = [(ROOT / path).read_text().count("\n") for path in re.findall(r"^\| +\d+ \| `([^`]+)`", text, re.MULTILINE)]
    said = re.search(r": (\d),(\d{3}) lines in all", text)
    assert said is not None
    assert len(lines) == 15
    assert sum(lines) < 4000, sum(lines)
    assert abs(sum(lines) - int(said[1] + said[2])) < 100, f"the page must say {sum(lines):,}"


NAMES_FILES = [
    *PAGES, *(ROOT / "plugins").glob("framework_*/README.md"), *(ROOT / "experiments").glob("*/README.md"),
    *map(ROOT.joinpath, ("README.md", "CONTRIBUTING.md", "DECISIONS.md", "framework/README.md", "Makefile", ".ci/run")),
]  # fmt: skip
NOT_FILES = ("tests/test_short_lived.py", "plugins/framework_builtin/KIND", "tests/v1", "experiments/gpu/wheels")
"""A file that the reader writes, a placeholder, vLLM's own, and what is put there."""


@pytest.mark.parametrize("page", NAMES_FILES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_file_that_is_named_exists(page: Path) -> None:
    """Below the root, below plugins/, or beside the page."""
    named = re.findall(
        r"(?<![\w/.$-])((?:tests|plugins|framework|experiments|conf|docs|framework_\w+)/[\w./-]*\w)", page.read_text()
    )
    places = (ROOT, ROOT / "plugins", page.parent)
    missing = [
        name for name in named if not name.startswith(NOT_FILES) and not any((at / name).exists() for at in places)
    ]
    assert missing == []


WRITTEN_DOWN = {
    "interfaces/allocator.md": (RequestInfo, Hit, TableChange, AllocatorStats),
    "interfaces/backend.md": (Batch,),
    "python.md": (Sampling, Completion),
}
"""Page -> the types whose every field it explains."""


@pytest.mark.parametrize("page", WRITTEN_DOWN)
def test_a_page_has_every_field_of_what_it_explains(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    missing = [
        f"{cls.__name__}.{one.name}" for cls in WRITTEN_DOWN[page] for one in fields(cls) if f"`{one.name}`" not in text
    ]
    assert missing == []
    of_the_engine = {"seed", "arrival", "arrival_step", "sequences", "group", "plugin_error"}
    of_a_request = {one.name for one in fields(Request)} - of_the_engine
    assert page != "python.md" or [name for name in of_a_request if f"`{name}`" not in text] == []


NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_committed_without_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], cell["id"]
            exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    assert type(names["figure"]).__name__ == "Figure"


def test_there_is_a_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["read_a_sweep"]


def test_ratios_beside_vllm_are_ranges_that_hold_the_recorded_rounds() -> None:
    """They vary by days: a median of one day, which a reader takes for the ratio, must not come back."""
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if "vLLM 0.32's CPU wheel" in line)
    ranges = re.findall(r"([\d.]+) to ([\d.]+)x", row.split("|")[-2])
    table = (ROOT / "experiments" / "live" / "README.md").read_text()
    found = dict(re.findall(r"^\| (.+?) \| native \| .*?\| [\d.]+ \(([\d.]+ to [\d.]+)\)", table, re.MULTILINE))
    cases = ["32 ragged prompts", "32 ragged prompts, bf16", "a shared prefix of 1,024", "one prompt of 8,192"]
    assert (len(ranges), found.keys()) == (4, {*cases}), (row, found)
    for case, (low, high) in zip(cases, ranges, strict=True):
        least, most = map(float, found[case].split(" to "))
        assert float(low) <= least < most <= float(high), (case, low, high, found[case])
