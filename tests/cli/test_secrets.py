"""What looks like a secret is in no file that a run, a sweep or a search leaves."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traces_of_lengths import write_trace

from framework.errors import ConfigError

TYPED, TAKEN = "typed-hunter2", "taken-hunter2"
POLICY = """
from framework.interfaces.eviction import ScoredPolicy

class Mine(ScoredPolicy):
    def __init__(self, api_key: str = "", password: str = "", hmac_key: str = "", fails: bool = True) -> None:
        super().__init__()
        self._fails = fails

    def score(self, block, now):
        if self._fails:
            raise ValueError("no service takes it")
        return now
"""
WORDS = (
    "mode=replay", "workload=trace", "workload.path=trace.jsonl", "backend=gather",
    f"eviction.api_key={TYPED}", f"eviction.hmac_key={TYPED}", "eviction.password=${oc.env:THEIR_SERVICE}",
    "cache.num_blocks=8", "run.progress=false",
)  # fmt: skip

_NUMBER = itertools.count()


@pytest.fixture
def place(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THEIR_SERVICE", TAKEN)  # by its name no secret; the option that takes it is one
    monkeypatch.setattr("sys.argv", ["framework.run", *WORDS])
    write_trace(elsewhere / "trace.jsonl", [(i, [3 * i, 3 * i + 1, 3 * i + 2], 1) for i in range(20)])
    return elsewhere


@pytest.fixture
def words(place: Path) -> list[str]:
    file = place / f"secretive{next(_NUMBER)}.py"  # a process imports a name once
    file.write_text(POLICY)
    return [f"eviction={file.name}:Mine", *WORDS]


def _with_a_secret(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if TYPED in path.name or TAKEN in path.name]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 3, files
    for path in files:
        if TYPED.encode() in path.read_bytes() or TAKEN.encode() in path.read_bytes():
            found.append(path)
    return [str(path) for path in found]


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_leaves_no_secret(fails: bool, place: Path, words: list[str], command: Any) -> None:
    status, _, err = command(*words, f"eviction.fails={fails}", "run.dir=mine")
    assert status == int(fails), err
    assert _with_a_secret(place / "mine") == []
    assert "api_key: '***'" in (place / "mine" / "config.yaml").read_text()
    assert "eviction.api_key=***" in (place / "mine" / "provenance.json").read_text()


def test_a_sweep_over_keys_leaves_none(place: Path, words: list[str], command: Any, monkeypatch: Any) -> None:
    words += ["eviction.fails=false", f"eviction.api_key={TYPED},{TYPED}-2", "eviction.password='with a space'"]
    words.append("run.sweep=keys")
    monkeypatch.setattr("sys.argv", ["framework.run", *words])
    status, _, err = command("-m", *words)
    folder = place / "sweeps" / "keys"
    assert (status, len([*folder.glob("*/result.json")])) == (0, 2), err
    assert _with_a_secret(folder) == []
    assert not [path for path in folder.rglob("*.*") if path.is_file() and b"a space" in path.read_bytes()]


def test_wandb_gets_no_secret(place: Path, words: list[str]) -> None:
    pytest.importorskip("framework_wandb.tracker")
    call = [sys.executable, "-m", "framework.run", *words, "eviction.fails=false", "tracker=wandb", "run.dir=mine"]
    done = subprocess.run(call, env={**os.environ, "WANDB_MODE": "offline"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [*(place / "mine" / "wandb").glob("offline-run-*/*.wandb")]
    assert _with_a_secret(place / "mine") == []


def test_a_search_varies_no_secret(words: list[str], place: Path) -> None:
    search = pytest.importorskip("framework_lab.search")
    with pytest.raises(ConfigError, match=r"eviction\.api_key looks like a secret"):
        search.axes_of([*words, f"eviction.api_key={TYPED},{TYPED}-2"])


def test_no_secret_goes_into_a_sweep_of_wandb(words: list[str], place: Path) -> None:
    sweeps = pytest.importorskip("framework_lab.wandb_sweeps")
    with pytest.raises(ConfigError, match=r"eviction\.api_key=\*\*\*: .* give it as \$\{oc\.env:NAME\}"):
        sweeps.sweep_config([*words, "cache.num_blocks=8,16"])


def test_a_search_leaves_no_secret(place: Path, words: list[str]) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("framework_lab.search")
    from command_line import command

    main = command("search")

    assert main(["x", *words[:-2], "cache.num_blocks=8,16", "--trials", "2"]) == 1
    assert _with_a_secret(place / "sweeps" / "x") == []
