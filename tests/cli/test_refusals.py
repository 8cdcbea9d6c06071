"""What cannot be run is refused in one sentence that names the nearest valid choice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# words, what the sentence must hold
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("+allocator=prefx",), "did you mean 'prefix'"),
    (("allocator=zzz",), "installed: "),
    (("+eviction=lruu",), "did you mean 'lru'"),
    (("eviction=null",), "eviction is chosen by its name"),
    (("model=tinny",), "did you mean 'tiny'"),
    (("+experiment=nothing_like_it",), "no experiment named 'nothing_like_it'"),
    (("allocator.watermrk=0.1",), "did you mean 'watermark'"),
    (("+allocator=contiguous", "+allocator.reserve=maxx"), "did you mean 'max'"),
    (("cache.num_blocks=0",), "cache.num_blocks must be at least 1"),
    (("+cache.blocksize=16",), "did you mean 'block_size'"),
    (("cache.layout=NDH",), "did you mean 'NHD'"),
    (("mode=serv",), "did you mean 'serve'"),
    (("executor=roof",), "did you mean 'roofline'"),
    (("mode=kernel", "executor=model"), "cannot be in mode=kernel, whose are null"),
    (("allocatr=prefix",), "did you mean 'allocator'"),
    (("+workload.num_request=3",), "did you mean 'num_requests'"),
    (("model=checkpoint",), "model.path has no value"),
    (("prefix",), "cannot read the override 'prefix'"),
    (("cache.num_blocks=[1",), "cannot read the override 'cache.num_blocks=[1'"),
    (("~allocator",), "allocator has no choice"),
    (("allocator=naive,cow",), "--multirun"),
    (("--config-dir", "/no/such/folder"), "directory '/no/such/folder' not found"),
    (("-m", "+allocator=naive,nope"), "no allocator named 'nope'"),
    (("-m", "+allocator=naive", "cache.blocksize=1,2"), "did you mean 'block_size'"),
    (("-m", "+allocator=glob(zzz*)"), "the sweep has no job"),
    (("seed=${nowhere}",), "nowhere"),
    (("-m", "hydra/sweeper=optuna", "seed=1,2"), "`python -m framework search` lets optuna choose"),
    (("hydra.job.env_copy=[KVLAB_NOT_SET]",), "'KVLAB_NOT_SET'"),
    (("eviction=./nowhere.py:Mine",), "nowhere.py"),
    (("run.dir=/dev/null",), "'/dev/null' cannot be made"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_a_bad_request_is_one_sentence(words: Any, says: str, command: Any, runs: list[Any]) -> None:
    free = any("backend" in word for word in words)
    status, out, err = command(*words, *(() if free else ("backend=gather",)))
    assert status == 2, (status, out, err)
    assert runs == [], "something ran all the same"
    assert says in err, err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err, err
    assert out == "", out


@pytest.mark.parametrize("name", ["é", "名前", "naïve"])
def test_names_may_hold_letters_beyond_ascii(name: str, command: Any, runs: list[Any]) -> None:
    status, _, err = command(f"run.name={name}", f"run.dir=out/{name}", "backend=gather")
    assert (status, err) == (0, ""), err
    assert runs[0]["run"]["name"] == name


@pytest.mark.parametrize(
    ("group", "text", "says"),
    [("model", "defaults:\n  - bad\n", "defaults list names itself"),
     ("model", f"x: {'[' * 20_000}{']' * 20_000}\n", "nested too deep"),
     ("model", "x: &x [*x]\n", "names itself"),
     ("experiment", "# @package _global_\ndefaults:\n  - override /executor: none\n",
      "In 'experiment/bad': Could not override 'executor'. No match in the defaults list."),
     ("experiment", "workload: [\n", "bad.yaml")],
    ids=["names itself", "brackets", "alias of itself", "overrides a setting", "damaged"],
)  # fmt: skip
def test_a_file_that_cannot_be_composed_is_one_sentence(
    group: str, text: str, says: str, command: Any, elsewhere: Path
) -> None:
    (elsewhere / "mine" / group).mkdir(parents=True)
    (elsewhere / "mine" / group / "bad.yaml").write_text(text)
    status, _, err = command("-cd", "mine", f"+{group}=bad")
    assert (status, err.count("\n")) == (2, 1), err
    assert says in err, err


def test_a_configuration_with_a_gap_is_shown(command: Any) -> None:
    status, out, err = command("--cfg", "job", "backend=gather", "model=checkpoint")
    assert (status, err) == (0, ""), err
    assert "path: ???" in out


def test_one_bad_job_does_not_lose_the_others(command: Any, runs: list[Any]) -> None:
    words = ("allocator=contiguous", "allocator.reserve=max,most,pow2", "backend=gather", "run.report=false")
    status, _, err = command("-m", *words)
    assert status == 1
    assert [run["allocator"]["reserve"] for run in runs] == ["max", "pow2"]
    assert "\njob 1 (" in err, err
    assert "1 of 3 jobs failed" in err


def test_a_crash_in_a_run_is_one_sentence_and_status_1(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(config: Any, **begin: Any) -> Any:
        raise KeyError("lost\nits head")

    monkeypatch.setattr("framework.api.run", crash)
    status, _, err = command("backend=gather")
    assert status == 1
    assert err.count("\n") == 1, err
    assert "HYDRA_FULL_ERROR=1" in err


@pytest.mark.parametrize("result", [{"status": "failed"}, {"status": "ok", "num_failed": 2}, {"dense_mismatches": 1}])
def test_a_run_that_went_wrong_says_so_in_its_status(
    result: Any, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.api.run", lambda config, **begin: result)
    status, _, err = command("backend=gather")
    assert (status, err.count("\n")) == (1, 1), err


@pytest.mark.parametrize("utf8", ["0", "1"])
def test_a_locale_that_cannot_read_a_name_is_said_and_with_utf8_it_is_read(utf8: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "framework.run", "--cfg", "job", "run.name=é", "run.dir=out/名前"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": utf8, "HYDRA_FULL_ERROR": "0"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
    said = done.stderr.decode()
    if utf8 == "1":
        assert (done.returncode, said) == (0, "")
        assert "name: é" in done.stdout.decode()
    else:
        assert (done.returncode, done.stdout, said.count("\n")) == (2, b"", 1), said
        assert "set PYTHONUTF8=1" in said


@pytest.mark.parametrize(
    "words",
    [("-m", "seed=1,2", "hydra.sweep.subdir=../../x"), ("-m", "seed=1,2", "hydra.sweep.dir=foreign"),
     ("run.dir=new", "cache.block_size=-1"),
     ("-m", "seed=1,2", "run.sweep=''")],
)  # fmt: skip
def test_a_refused_command_writes_nothing_anywhere(words: tuple[str, ...], command: Any, elsewhere: Path) -> None:
    for folder in ("mine", "foreign"):
        (elsewhere / folder).mkdir()
        (elsewhere / folder / "config.yaml").write_text("mine")
    status, _, said = command(*words, "run.report=false")
    assert (status, said.count("\n")) == (2, 1), said
    found = {str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*")}
    assert found == {"mine", "foreign", "mine/config.yaml", "foreign/config.yaml"}
