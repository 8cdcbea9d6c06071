"""Sweeps: named, resumable, and one bad job is one bad row."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Command, start, wait_until
from traces_of_lengths import write_trace

from framework import registry
from framework.errors import BackendUnavailable, RunDirectoryError
from framework.results.catalogue import is_wall_time
from framework.results.reading import read_result
from framework.tracking.run_directory import RunDirectory
from framework_workloads.trace.reader import Trace

COMMON = (
    "mode=replay",
    "workload=trace",
    "workload.path=trace.jsonl",
    "backend=gather",
    "run.progress=false",
)


@pytest.fixture
def trace(elsewhere: Path) -> Path:
    """A small trace in the working directory: a few shared prefixes, unshared tails."""
    return make_trace(elsewhere)


def make_trace(folder: Path, num_requests: int = 120) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)

    def requests() -> Any:
        for number in range(num_requests):
            user, depth = int(rng.zipf(1.3)) % 12, int(rng.integers(2, 7))
            names = [user * 100 + level for level in range(depth - 1)] + [10_000 + number]
            yield 0.1 * number, names, 4

    write_trace(folder / "trace.jsonl", requests())
    return folder / "trace.jsonl"


def finished(sweep: Path) -> list[Path]:
    return sorted(path.parent for path in sweep.glob("*/result.json"))


def stamps(sweep: Path) -> dict[Path, int]:
    """When the result of each job was written."""
    return {path: (path / "result.json").stat().st_mtime_ns for path in finished(sweep)}


def contents(sweep: Path) -> dict[str, Any]:
    """What a sweep found, folder by folder, and its tables; without clocks and the command that started it."""
    found: dict[str, Any] = {}
    for folder in finished(sweep):
        result = json.loads((folder / "result.json").read_text())
        found[folder.name] = {key: one for key, one in result.items() if key != "command" and not is_wall_time(key)}
    for name in ("runs.csv", "settings.csv"):
        rows = list(csv.reader((sweep / name).read_text().splitlines()))
        kept = [i for i, column in enumerate(rows[0]) if not is_wall_time(column.split("_ci95")[0])]
        found[name] = [[row[i] for i in kept] for row in rows]
    found["report.tex"] = (sweep / "report.tex").read_text()
    return found


def test_a_killed_sweep_run_again_runs_what_is_missing_and_ends_the_same(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kill -9, in the middle of its second chunk of two jobs; a sweep without chunks has chunks of one."""
    words = ("-m", *COMMON, "run.sweep=s", "run.chunk=2", "cache.num_blocks=8", "eviction=lru,fifo,lfu,random")
    for folder in ("whole", "killed"):
        make_trace(tmp_path / folder)
    monkeypatch.chdir(tmp_path / "whole")
    assert command(*words)[::2] == (0, "")
    sweep, killed = tmp_path / "killed" / "sweeps" / "s", start(tmp_path / "killed", *words)
    wait_until(lambda: len(finished(sweep)) >= 3, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = stamps(sweep)
    monkeypatch.chdir(tmp_path / "killed")
    assert command(*words)[::2] == (0, "")
    assert before.items() <= stamps(sweep).items(), "a finished job ran again"
    assert contents(sweep) == contents(tmp_path / "whole" / "sweeps" / "s")


def test_off_a_terminal_a_sweep_says_a_line_a_job_and_what_was_done_before(trace: Path, command: Command) -> None:
    words = ("-m", *COMMON, "run.progress=true", "run.sweep=s", "run.report=false", "cache.num_blocks=8,12")
    status, _, err = command(*words, "eviction=lru")
    assert status == 0, err
    said = [re.sub(r"\d+\.\d s", "T", line).partition(":")[0] for line in err.splitlines()]
    assert said == ["1 of 2 ok, T", "2 of 2 ok, T"], err
    _, _, err = command(*words, "eviction=lru,fifo")
    first, *lines = err.splitlines()
    assert first == "2 of 4 done before", err
    assert [line.split(",")[0] for line in lines] == ["3 of 4 ok", "4 of 4 ok"], err


def test_a_job_that_another_process_runs_is_running_elsewhere(trace: Path, command: Command) -> None:
    words = ("-m", *COMMON, "run.sweep=s", "run.report=false", "eviction=lru,fifo")
    assert command(*words)[0] == 0
    held = next(path for path in finished(Path("sweeps/s")) if "lru" in path.name)
    (held / "result.json").unlink()
    before = sorted(path.name for path in held.iterdir())
    with RunDirectory(held):
        status, _, err = command(*words)
        assert (status, "1 of 2 jobs are running elsewhere" in err) == (0, True), err
        assert sorted(path.name for path in held.iterdir()) == sorted([*before, "lock"]), "it is the other's folder"
    assert command(*words)[0] == 0
    assert read_result(held)["status"] == "ok"


def test_jobs_whose_policy_or_trace_changed_run_again(trace: Path, elsewhere: Path, command: Command) -> None:
    policy = "class Mine(ScoredPolicy):\n    def score(self, block, now):\n        return {sign} * block.last_access\n"
    words = ("-m", *COMMON, "cache.num_blocks=16", "eviction=ed.py:Mine,lru", "run.sweep=ed", "run.report=false")

    def swept(own_process: bool = False) -> list[dict[str, Any]]:
        if own_process:  # since this one has imported the policy
            process = start(elsewhere, *words)
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said
        else:
            command.ok(*words)
        (folder,) = (elsewhere / "sweeps").iterdir()
        return [read_result(next(folder.glob(f"*{name}*"))) for name in ("Mine", "lru")]

    own = "from framework.interfaces.eviction import ScoredPolicy\n\n\n"
    (elsewhere / "ed.py").write_text(own + policy.format(sign=1))
    mine, lru = swept()
    assert swept() == [mine, lru], "nothing has changed"
    (elsewhere / "ed.py").write_text(own + policy.format(sign=-1))
    edited, same = swept(own_process=True)
    assert same == lru
    assert edited["hit_rate"] < mine["hit_rate"], (edited["hit_rate"], mine["hit_rate"])
    make_trace(elsewhere, num_requests=60)
    for result, before in zip(swept(), (edited, lru), strict=True):
        assert result["started_at"] > before["started_at"]


def test_a_failing_job_is_a_failed_row_and_runs_again_next_time(trace: Path, command: Command, failing: Any) -> None:
    words = ("-m", *COMMON, "run.sweep=s", "eviction=lru,fifo")
    with failing(KeyError("lost its head"), lambda config: config.eviction.name == "fifo"):
        status, out, err = command(*words)
    assert status == 1
    assert "1 of 2 jobs failed" in err
    assert "2 runs (1 ok, 1 failed)" in out, out
    rows = {
        row["run"].split("eviction=")[1].split(",")[0]: row
        for row in csv.DictReader(Path("sweeps/s/runs.csv").read_text().splitlines())
    }
    assert (rows["fifo"]["status"], rows["lru"]["status"]) == ("failed", "ok")
    assert "lost its head" in rows["fifo"]["reason"]
    assert rows["fifo"]["eviction"] == "fifo", rows["fifo"]
    assert "lost its head" in Path("sweeps/s/report.html").read_text()
    status, out, err = command(*words)
    assert (status, err) == (0, "")
    assert "2 runs (2 ok)" in out, out


def test_a_backend_that_cannot_run_here_is_a_row_of_its_own_and_no_failure(
    trace: Path, command: Command, failing: Any
) -> None:
    with failing(BackendUnavailable("needs a GPU"), lambda config: config.seed == 1):
        status, out, _ = command("-m", *COMMON, "run.sweep=s", "eviction=random", "seed=0,1")
        assert (status, "2 runs (1 ok, 1 unavailable)" in out) == (0, True), out
        assert command("-m", *COMMON, "run.sweep=t", "run.report=false", "seed=1")[0] == 2, "nothing could run"


def test_a_sweep_stops_when_jobs_in_a_row_cannot_write(trace: Path, command: Command, failing: Any) -> None:
    ran: list[int] = []
    words = ("-m", *COMMON, "run.sweep=s", "run.report=false", "eviction=random", "seed=0,1,2,3,4,5")
    with failing(RunDirectoryError(28, "no space left on device"), lambda config: ran.append(config.seed) is None):
        status, _, err = command(*words)
    assert (status, ran) == (1, [0, 1, 2]), err
    assert "3 jobs were not run" in err, err


@pytest.mark.slow
def test_two_sweeps_of_one_name_at_once_share_the_jobs_and_fail_none(tmp_path: Path) -> None:
    make_trace(tmp_path, 1500)
    words = ("run.sweep=s", "run.progress=true", "eviction=lru,fifo", "cache.num_blocks=8,12")
    both = [start(tmp_path, "-m", *COMMON, *words, "run.report=false") for _ in range(2)]
    ended = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    assert [status for _, status in ended] == [0, 0], ended
    ran = [line.split(": ", 1)[1] for err, _ in ended for line in err.splitlines() if re.match(r"\d of 4 ok,", line)]
    assert sorted(ran) == sorted(path.name for path in finished(tmp_path / "sweeps/s")), ended
    assert len(ran) == 4, f"each job once, in one of the two: {ended}"
    assert not list((tmp_path / "sweeps/s").glob("*/failure.json"))
    assert not list((tmp_path / "sweeps/s").glob("*/lock"))
    for err, _ in ended:
        states = [
            re.fullmatch(r"\d of 4 (ok|elsewhere|skipped|done before)(,.*|:.*|)", line) for line in err.splitlines()
        ]
        assert all(states[:-1]), err
        assert states[-1] or err.endswith(
            "of 4 jobs are running elsewhere; run the same command again when they have ended\n"
        )


def test_a_chunk_of_jobs_reads_its_trace_once_and_goes_on_after_a_failure(
    trace: Path, command: Command, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    records = Trace._records
    monkeypatch.setattr(Trace, "_records", lambda self: read.append(self.path) or records(self))
    words = ("-m", *COMMON, "run.sweep=s", "run.report=false", "eviction=lru,fifo,lfu,mru", "run.chunk=2")
    with failing(KeyError("lost its head"), lambda config: config.eviction.name == "fifo"):
        status, _, err = command(*words)
    assert (status, "1 of 4 jobs failed" in err) == (1, True), err
    assert len(read) == 2, "once in each chunk"
    before = {path: read_result(path)["hit_rate"] for path in finished(Path("sweeps/s"))}
    assert len(before) == 3
    assert command(*words)[0] == 0
    after = {path: read_result(path) for path in finished(Path("sweeps/s"))}
    assert before.items() <= {path: result["hit_rate"] for path, result in after.items()}.items()
    assert command("-m", *COMMON, "run.sweep=t", "run.report=false", "eviction=lru,fifo,lfu,mru")[0] == 0
    alone = {path.name: read_result(path) for path in finished(Path("sweeps/t"))}
    assert {path.name for path in after} == set(alone)
    for path, result in after.items():
        same = {key for key in result if not is_wall_time(key)} - {"started_at", "job", "run_directory"}
        assert {key: result[key] for key in same} == {key: alone[path.name].get(key) for key in same}


LAUNCHERS = {
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "submitit": ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=3"),
    "ray": ("hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.remote.num_cpus=1"),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "chunk"),
    [("joblib", 2), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("submitit", "ray"))],
)
def test_a_sweep_through_a_launcher_is_the_same_sweep(name: str, chunk: int, trace: Path, command: Command) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{name}_launcher", reason=f"pip install hydra-{name}-launcher")
    words = (*COMMON, "run.sweep=s", "run.report=false", "eviction=lru,random", "seed=0,1", f"run.chunk={chunk}")
    # A process of its own: joblib's workers outlive the sweep.
    done = subprocess.run(
        [sys.executable, "-m", "framework.run", "-m", *words, *LAUNCHERS[name], "run.progress=true"],
        capture_output=True, text=True, check=False, timeout=850,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "run with one seed only, since nothing in them uses it: eviction=lru (1)\n" in done.stderr
    assert re.findall(r"^(\d) of 3 ok, \d+\.\d s: eviction=", done.stderr, re.MULTILINE) == ["1", "2", "3"], done.stderr
    assert name == "ray" or done.stderr.count("\n") == 4, done.stderr
    before = stamps(Path("sweeps/s"))
    assert len(before) == 3, "lru does not use the seed"
    if name == "joblib":  # the others' workers may have been started before
        called = {json.loads(path.read_text())["command"] for path in Path("sweeps/s").glob("*/provenance.json")}
        assert called == {
            shlex.join(["python", "-m", "framework.run", "-m", *words, *LAUNCHERS[name], "run.progress=true"])
        }
    status, _, err = command("-m", *words)
    assert (status, err) == (0, ""), err
    assert stamps(Path("sweeps/s")) == before


@pytest.mark.slow
def test_the_sweep_over_allocators_runs_and_is_reported(command: Command) -> None:
    small = ("workload.num_requests=3", "workload.output_tokens=3", "run.check_requests=1", "run.progress=false")
    status, out, err = command("+sweep=allocators", "cache.num_blocks=256", "seed=0", *small)
    assert (status, err) == (0, "")
    names = set(registry.names("allocator"))
    assert f"{len(names)} runs ({len(names)} ok)" in out, out
    rows = csv.DictReader(Path("sweeps/allocators/runs.csv").read_text().splitlines())
    assert {row["allocator"] for row in rows} == names
    page = Path("sweeps/allocators/report.html").read_text()
    for picture in ("Memory over time", "Block map"):
        assert picture in page


def test_a_frozen_sweep_is_swept_by_its_name_and_the_command_line_wins(trace: Path, command: Command) -> None:
    words = ("+sweep=evictions", "workload.path=trace.jsonl", "run.report=false", "run.progress=false")
    status, _, err = command(*words, "cache.num_blocks=8", "eviction=lru,fifo")
    assert (status, err) == (0, "")
    assert len(finished(Path("sweeps/evictions"))) == 2


def test_every_frozen_composition_names_its_command_and_composes(repository: Path) -> None:
    from framework.config.hydra.compose import compose

    files = sorted([*repository.glob("conf/*/*.yaml"), *repository.glob("plugins/*/conf/*/*.yaml")])
    assert files
    for path in files:
        comments = [line for line in path.read_text().splitlines() if line.startswith("# ") and "@package" not in line]
        assert f"+{path.parent.name}={path.stem}" in comments[0], f"{path}: {comments[0]}"
        compose([f"+{path.parent.name}={path.stem}", "workload.path=x"] if "PATH" in comments[0] or "TRACE" in
                comments[0] else [f"+{path.parent.name}={path.stem}"])  # fmt: skip


def test_a_replay_with_the_default_backend_loads_no_torch(trace: Path, elsewhere: Path) -> None:
    program = (
        "import sys; from framework.run import call; executors = 'null', 'roofline'; "
        "statuses = [call([*sys.argv[1:], f'executor={one}', f'run.dir=run-{one}']) for one in executors]; "
        "sys.exit(max(statuses) or 10 * ('torch' in sys.modules))"
    )
    words = [word for word in COMMON if not word.startswith("backend=")]
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done


def test_an_interrupted_sweep_reports_what_it_has(trace: Path, command: Command, failing: Any) -> None:
    with failing(KeyboardInterrupt(), lambda config: config.seed == 2, begun=True):
        status, out, _ = command("-m", *COMMON, "run.sweep=s", "eviction=random", "seed=0,1,2,3")
    assert (status, "(2 ok, 1 unfinished)" in out) == (130, True), out


def test_a_mode_of_a_file_names_its_runs_by_its_class_and_a_sweep_over_modes_is_one_folder(
    elsewhere: Path, runs: list[Any], command: Command
) -> None:
    """The path of the file was part of the folder: an absolute one was refused, and each mode had a sweep."""
    (elsewhere / "mine").mkdir()
    (elsewhere / "mine" / "mode.py").write_text(
        "from framework.interfaces.mode import Mode\n\n\nclass Still(Mode):\n    def run(self, config, on_begin): ...\n"
    )
    assert command(f"mode={elsewhere}/mine/mode.py:Still", "workload=system_prompts")[0] == 0
    assert Path(runs[0]["run"]["dir"]).relative_to(elsewhere).parts[:2] == ("runs", "Still")
    _, _, err = command(
        "-m", f"mode=replay,{elsewhere}/mine/mode.py:Still", "workload=system_prompts", "run.report=false"
    )
    folders = {Path(run["run"]["dir"]).parent for run in runs[1:]}
    assert (len(runs), len(folders)) == (3, 1), (folders, err)


def test_a_directory_for_one_run_is_refused_for_a_sweep(command: Command, elsewhere: Path) -> None:
    status, _, err = command("-m", "workload=chat", "seed=1,2", "run.dir=here")
    assert status == 2
    assert err.startswith("ConfigError: run.dir is for a single run; the jobs of a sweep lie below sweeps/NAME"), err
    assert list(elsewhere.iterdir()) == []
