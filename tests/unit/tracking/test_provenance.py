"""The state of the checkout that a provenance names is the one before the run wrote anything."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from framework import api
from framework.registry import content_of, find, framework_content
from framework.tracking import provenance
from framework.tracking.provenance import checkout_state, collect_provenance


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


def test_code_and_inputs_are_named_by_their_content_secrets_are_masked_and_the_machine_is_what_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ed.py").write_text("from framework_builtin.eviction.lru import Lru\nclass Mine(Lru): ...\n")
    (tmp_path / "t.jsonl").write_text("{}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    found = collect_provenance(
        components=[("tiers.1.eviction", f"{tmp_path / 'ed.py'}:Mine"), ("hash", "sha256"), ("allocator", "none")],
        argv=["run", "tracker.api_key=12345678"], inputs=[tmp_path / "t.jsonl", tmp_path],
    )  # fmt: skip
    mine, ours = found["components"]["tiers.1.eviction"], found["components"]["hash"]
    assert mine["content_sha256"] == content_of(find("eviction", f"{tmp_path / 'ed.py'}:Mine"))
    assert mine["content_sha256"] != ours["content_sha256"] == framework_content()
    assert found["components"]["allocator"]["class"] is None
    assert "12345678" not in json.dumps(found)
    assert [(one["name"], one["bytes"], one["sha256"]) for one in found["inputs"]] == [
        ("t.jsonl", 3, hashlib.sha256(b"{}\n").hexdigest())
    ], "a folder is no file of requests"
    facts = provenance.headline({**found, "device": {"name": "cpu"}})
    assert facts["machine"].endswith(", 1 of 64 cores")
    assert (facts["trace_sha256"], facts["command"]) == (found["inputs"][0]["sha256"], found["command"])


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


@pytest.mark.parametrize(
    ("started", "said"),
    [
        ("-m said 'a b'", "python -m said 'a b'"),
        ("-X utf8 -W ignore -m said -m", "python -m said -m"),  # it was "said.py -m"
        ("../mine/said.py a", "python ../mine/said.py a"),
    ],
)
def test_the_command_can_be_given_again(started: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    code = "from framework.tracking.provenance import command_line\nprint(command_line())\n"
    (folder / "said.py").write_text(code)
    done = subprocess.run([sys.executable, *shlex.split(started)], cwd=folder, capture_output=True, text=True)
    assert done.stdout.strip() == said, done.stderr
