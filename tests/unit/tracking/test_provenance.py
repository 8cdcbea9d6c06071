"""The state of the checkout that a provenance names is the one before the run wrote anything."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from framework import api
from framework.tracking import checkout_state, collect_provenance, provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean checkout that the package is said to run from, with a committed result."""
    folder = tmp_path / "checkout"
    (folder / "results").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    (folder / "code.py").write_text("")
    (folder / "results" / "rows.csv").write_text("old\n")
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*own, *words], check=True)
    monkeypatch.setattr(provenance, "CHECKOUT", folder)
    return folder


def test_a_checkout_is_dirty_for_changed_and_for_new_files(checkout: Path) -> None:
    assert checkout_state()["git_dirty"] is False
    (checkout / "new.py").write_text("")
    assert checkout_state()["git_dirty"] is True
    (checkout / "new.py").unlink()
    (checkout / "code.py").write_text("1\n")
    assert checkout_state()["git_dirty"] is True
    assert len(checkout_state()["git_revision"]) == 40


@pytest.mark.parametrize("name", ["results", "new/results", "results [1]*"])
def test_files_among_the_outputs_make_no_checkout_dirty_and_others_do(checkout: Path, name: str) -> None:
    folder = checkout / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.csv").write_text("new\n")
    (folder / "more.csv").write_text("new\n")
    assert checkout_state()["git_dirty"] is True
    assert checkout_state([folder, checkout.parent])["git_dirty"] is False
    (checkout / "code.py").write_text("1\n")
    assert checkout_state([folder])["git_dirty"] is checkout_state([checkout])["git_dirty"] is True


def test_an_earlier_state_is_kept(checkout: Path) -> None:
    state = checkout_state()
    (checkout / "code.py").write_text("1\n")
    assert collect_provenance(checkout=state)["package"]["git_dirty"] is False
    assert collect_provenance()["package"]["git_dirty"] is True


@pytest.mark.parametrize("edited", [False, True])
def test_a_run_inside_the_checkout_does_not_see_its_own_files(checkout: Path, edited: bool) -> None:
    if edited:
        (checkout / "code.py").write_text("1\n")
    for _ in range(2):
        api.run(
            {
                "mode": "replay", "executor": "none", "workload": "shared_prefix", "cache": {"num_blocks": 512},
                "run": {"dir": str(checkout / "mine" / "run"), "overwrite": True, "progress": False},
            }
        )  # fmt: skip
        found = json.loads((checkout / "mine" / "run" / "provenance.json").read_text())
        assert found["package"]["git_dirty"] is edited


@pytest.mark.parametrize("edited", [False, True])
def test_an_experiment_does_not_see_its_own_tables(
    checkout: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, edited: bool
) -> None:
    monkeypatch.syspath_prepend(str(repository))
    from experiments import shared

    (checkout / "results" / "rows.csv").write_text("a crashed run's\n")
    if edited:
        (checkout / "code.py").write_text("1\n")
    options = shared.parse(None, "precision", ["--quick", "--out", str(checkout / "results")])
    (checkout / "README.md").write_text("the experiment's page, with its tables\n")
    shared.finish(options, {"rows": [{"a": 1}]}, {})
    found = json.loads((checkout / "results" / "provenance.json").read_text())
    assert found["package"]["git_dirty"] is edited
