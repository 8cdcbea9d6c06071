"""Search: optuna chooses, the laboratory runs, and a killed search goes on where it was."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import command

from framework.errors import ConfigError, RunDirectoryError
from framework.interfaces.workload import WorkloadRequest
from framework_lab.search import Axis, Search, axes_of, maximises, search
from framework_report.records import read_trials
from framework_traces.writing import write_trace

main = command("search")

optuna = pytest.importorskip("optuna")

FIXED = ("mode=cache_only", "workload=trace", "workload.path=trace.jsonl", "backend=gather")
VARIED = ("eviction=lru,fifo,mru", "cache.num_blocks=range(8,65,8)")


@pytest.fixture
def place(elsewhere: Path) -> Path:
    make_trace(elsewhere)
    return elsewhere


def make_trace(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = np.random.default_rng(0).integers(0, 30, size=(80, 3))
    requests = [
        WorkloadRequest(arrival_s=i, input_tokens=48, output_tokens=1, block_ids=row, block_tokens=16)
        for i, row in enumerate(names)
    ]
    write_trace(folder / "trace.jsonl", requests)


def plan(trials: int, **changed: Any) -> Search:
    fixed, axes = axes_of([*FIXED, *VARIED])
    made: dict[str, Any] = {
        "folder": Path("sweeps/x"), "fixed": fixed, "axes": axes, "metric": "hit_rate", "maximize": True,
        "trials": trials,
    }  # fmt: skip
    return Search(**{**made, **changed})


def test_overrides_part_into_fixed_words_and_axes() -> None:
    words = ["+eviction=lru,fifo", "cache.num_blocks=range(16,65,16)", "seed=3", "replay.step_s=interval(0.1,1)"]
    words += ["replay.slo_ttft_s=tag(log,interval(0.01,10.0))", "engine.chunk_size=int(interval(1,64))"]
    fixed, axes = axes_of(words)
    assert fixed == ("seed=3",)
    assert axes == (
        Axis(key="eviction", choices=("lru", "fifo")),
        Axis(key="cache.num_blocks", low=16, high=64, step=16, whole=True),
        Axis(key="replay.step_s", low=0.1, high=1),
        Axis(key="replay.slo_ttft_s", low=0.01, high=10, log=True),
        Axis(key="engine.chunk_size", low=1, high=64, whole=True),
    )


@pytest.mark.parametrize(
    "word",
    ["interval(5,1)", "interval(nan,1)", "interval(0,inf)", "tag(log,interval(0,1))", "range(0,1,0)", "range(inf)",
     "range(5,1)"],
)  # fmt: skip
def test_a_space_that_holds_nothing_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"seed=.*(interval|range|magnitude)"):
        axes_of([f"seed={word}"])


def test_a_foreign_folder_is_not_searched_in(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"mine holds files that are no sweep's \(notes\.txt\)"):
        search(plan(1, folder=Path("mine")))
    assert [path.name for path in (place / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("damage", "line"),
    [("null", 4), ("[]", 4), ("{", 4), ("{}", 4), ('{"op_code":99,"worker_id":"x"}', 4), ('{"op_code":4}', 4),
     ('{"op_code":"x","worker_id":"x"}', 4), ('{"op_code":6,"worker_id":"x","trial_id":0,"state":77,"values":[1]}', 4),
     ('{"op_code":8,"worker_id":"x","trial_id":0,"user_attr":5}', 4),
     ('{"op_code":2,"worker_id":"x","study_id":0,"user_attr":7}', 4)],
)  # fmt: skip
def test_a_damaged_journal_is_named_with_its_line(
    place: Path, capsys: pytest.CaptureFixture[str], damage: str, line: int
) -> None:
    search(plan(1))
    journal = place / "sweeps" / "x" / "search.journal"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[: line - 1], f"{damage}\n", *lines[line - 1 :]]))
    assert main(["x", *FIXED, *VARIED, "--trials", "2"]) == 2
    said = capsys.readouterr().err
    assert f"sweeps/x/search.journal:{line}: " in said, said
    assert "internal error" not in said, said


@pytest.mark.parametrize(
    ("words", "said"),
    [(("n", "seed=1,2", "seed=3,4"), "seed is given several values twice"), (("n", "run.dir=a,b"), "run.dir is for"),
     (("a/b", "seed=1,2"), "one folder's name"), (("n", "seed=1,2", "--seed", "-1"), "--seed must be at least 0")],
)  # fmt: skip
def test_a_search_that_means_nothing_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main([*words, *FIXED]) == 2
    assert said in capsys.readouterr().err
    assert not (place / "sweeps").exists()


def test_a_full_disk_behind_the_journal_is_named_by_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["x", *FIXED, *VARIED, "--trials", "1"]) == 1
    assert capsys.readouterr().err.endswith("sweeps/x/search.journal: No space left on device\n")


def test_a_full_disk_ends_a_search_and_its_trial_is_tried_again(place: Path, failing: Any) -> None:
    error = RunDirectoryError(errno.ENOSPC, "no space left")
    with failing(error), pytest.raises(RunDirectoryError, match="no space left"):
        search(plan(3))
    assert [trial.reason for trial in search(plan(3)).trials] == ["", "", ""]


def test_nothing_to_search_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to search"):
        axes_of(["eviction=lru"])
    with pytest.raises(ConfigError, match="cannot read"):
        axes_of(["eviction=lru,"])


def test_a_search_in_two_calls_asks_what_one_call_asks(place: Path) -> None:
    whole = search(plan(6, folder=Path("sweeps/one")))
    search(plan(3, folder=Path("sweeps/two")))
    with Path("sweeps/two/search.journal").open("ab") as file:
        file.write(b'{"op_code": 4, "half a li')  # what a killed process leaves
    assert search(plan(6, folder=Path("sweeps/two"))).trials == whole.trials
    results = [json.loads(path.read_text())["hit_rate"] for path in Path("sweeps/two").glob("*/result.json")]
    assert whole.best is not None
    assert whole.best.value == max(results)


def test_a_search_whose_policy_has_changed_begins_anew(place: Path) -> None:
    policy = place / "searched_policy.py"
    text = (
        "from framework.interfaces.eviction import ScoredPolicy\n\n\nclass Mine(ScoredPolicy):\n"
        "    def score(self, block, now):\n        return block.last_access\n"
    )
    policy.write_text(text)
    code = (
        "import sys; from pathlib import Path; from framework_lab.search import Search, axes_of, search\n"
        "fixed, axes = axes_of(sys.argv[1:])\n"
        "search(Search(folder=Path('sweeps/x'), fixed=fixed, axes=axes, metric='hit_rate', maximize=True, trials=2),\n"
        "       say=lambda line: print(line, file=sys.stderr))"
    )
    call = [sys.executable, "-c", code, *FIXED, "eviction=searched_policy.py:Mine", "cache.num_blocks=16,32"]

    def values() -> list[float]:
        return [trial["value"] for trial in json.loads(Path("sweeps/x/search.json").read_text())["trials"]]

    def said() -> str:
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "begins anew" not in said()
    old = values()
    policy.write_text(text.replace("return block", "return -block"))
    assert "the search begins anew, since settings, code or files have changed" in said()
    assert len(values()) == 2, "trials of the old code count"
    assert not set(values()) & set(old), (values(), old)


def test_traces_are_searched_and_another_space_or_content_begins_anew(place: Path) -> None:
    trace = Path("trace.jsonl").read_text()
    Path("other.jsonl").write_text(trace)
    fixed = [word for word in FIXED if not word.startswith("workload.path")]

    def begun(*overrides: str) -> bool:
        words, axes = axes_of([*fixed, *overrides])
        lines: list[str] = []
        assert search(plan(1, fixed=words, axes=axes), say=lines.append).best is not None
        return any("anew" in line for line in lines)

    space = ("workload.path=trace.jsonl,other.jsonl", "cache.num_blocks=16,32")
    assert [begun(*space), begun(*space)] == [False, False]
    assert begun(space[0], "cache.num_blocks=16,32,64")
    assert not begun(*space)
    Path("other.jsonl").write_text(trace + trace.splitlines(keepends=True)[-1])
    assert begun(*space)


def test_a_search_whose_trials_all_fail_alike_stops_and_a_mended_one_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = place / "trace.jsonl"
    trace.rename(place / "away.jsonl")
    words = ["x", *FIXED, *VARIED, "--metric", "hit_rate", "--trials", "7"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "stopped after 5 of 7 trials: the last 5 failed alike" in said
    assert "none of 5 trials was good" in said
    (place / "away.jsonl").rename(trace)
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "stopped" not in said
    assert "begins anew" in said
    assert not [trial.reason for trial in search(plan(7)).trials if trial.reason], "trials without the trace count"


def test_the_report_of_a_search_shows_the_best_trial_first_what_it_was_and_the_history(
    place: Path, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["y", *FIXED, *VARIED, "--trials", "10", "--metric", "num_evictions", "--minimize"]
    with failing(KeyError("lost"), lambda config: config.eviction.name == "fifo"):
        assert main(words) == 0
    assert main(words) == 0, "a search that is done is reported again"
    out = capsys.readouterr().out
    found = read_trials(Path("sweeps/y"))
    assert found is not None
    assert [trial.number for trial in found.trials] == list(range(1, 11))
    good = [trial.value for trial in found.trials if trial.value is not None]
    assert 0 < len(good) < 10
    assert found.best is not None
    assert found.best.value == min(good), "smaller was asked for"
    said = (
        f"Best of 10 trials, {10 - len(good)} failed: num_evictions {min(good):g} with {' '.join(found.best.overrides)}"
    )
    assert said in " ".join(out.split()), out
    page = Path("sweeps/y/report.html").read_text()
    ranked = "ranked by evictions, lower is better"
    for part in (said, "History of the search", "evictions over what varied", ranked):
        assert part in page, part
    rows = list(csv.DictReader(Path("sweeps/y/settings.csv").read_text().splitlines()))
    assert [float(row["num_evictions"]) for row in rows] == sorted(float(row["num_evictions"]) for row in rows)
    assert float(rows[0]["num_evictions"]) == min(good)
    assert [int(row["rank"]) for row in rows].count(1) == [float(row["num_evictions"]) for row in rows].count(min(good))


@pytest.mark.slow
def test_a_killed_search_goes_on_and_counts_no_trial_twice(tmp_path: Path) -> None:
    make_trace(tmp_path)
    words = [sys.executable, "-m", "framework", "search", "x", *FIXED, *VARIED, "--trials", "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "best of 6: hit_rate" in done.stdout, done.stdout
    reported = [line for line in done.stderr.splitlines() if line.startswith("trial ")]
    assert reported[-1].startswith("trial 6 of 6"), reported
    assert 1 <= len(reported) < 6, reported


@pytest.mark.parametrize(
    ("metric", "asked", "larger"),
    [("hit_rate", None, True), ("ttft_s_p95", None, False), ("num_evictions", None, False), ("hit_rate", False, False)],
)
def test_the_direction_is_the_metrics_own_unless_it_is_asked_for(metric: str, asked: Any, larger: bool) -> None:
    assert maximises(metric, asked) is larger


@pytest.mark.parametrize(
    ("metric", "says"),
    [("hitrate", "did you mean 'hit_rate'"), ("", "is in no result"), ("eviction", "is no number"),
     ("num_blocks", "say --minimize or --maximize")],
)  # fmt: skip
def test_a_metric_that_cannot_be_searched_for_is_refused(metric: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        maximises(metric)
