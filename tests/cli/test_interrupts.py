"""What ends a command from outside leaves an exit status and what there is: signals, full disks, closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import Command, start, wait_until, written
from synthetic_workloads import mooncake

from framework.results.reading import read_result
from framework_workloads.lines import read_jsonl

SERVE = ("model=tiny", "workload=chat", "workload.num_requests=600", "cache.num_blocks=2048", "run.dir=run")
REPLAY = ("mode=replay", "workload=trace", "workload.path=trace.jsonl", "cache.num_blocks=64", "run.dir=run")
ENDINGS = [
    pytest.param(REPLAY, signal.SIGTERM, 143, "SIGTERM", marks=pytest.mark.slow),
    pytest.param(REPLAY, signal.SIGHUP, 129, "SIGHUP", marks=pytest.mark.slow),
    pytest.param(REPLAY, signal.SIGINT, 130, "Ctrl-C", marks=pytest.mark.slow),
    (SERVE, signal.SIGTERM, 143, "SIGTERM"),
]  # fmt: skip


def make_trace(folder: Path, num_requests: int) -> None:
    prompts = ([i % 7] for i in range(num_requests))
    mooncake(folder / "trace.jsonl", prompts, every_ms=40, input_length=100, output_length=8)


@pytest.mark.parametrize(("words", "number", "status", "name"), ENDINGS, ids=lambda value: str(value)[:20])
def test_a_run_that_a_signal_ends_writes_what_there_is(
    tmp_path: Path, words: Sequence[str], number: signal.Signals, status: int, name: str
) -> None:
    if words is REPLAY:
        make_trace(tmp_path, 60_000)
    process = start(tmp_path, *words)
    wait_until(lambda: written(tmp_path / "run" / "metrics.jsonl"), process)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    assert err.splitlines()[-1] == f"interrupted by {name}", err
    result = read_result(tmp_path / "run")
    assert (result["status"], result["reasons"]) == ("interrupted", [f"interrupted by {name}"])
    assert result["num_requests"] > 0
    assert not (tmp_path / "run" / "lock").exists()
    assert len(read_jsonl(tmp_path / "run" / "metrics.jsonl")) > 0


def test_a_sweep_s_job_that_a_signal_ended_is_one_to_run_again(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trace(tmp_path, 60_000)
    words = ("-m", *REPLAY[:-1], "run.sweep=s", "eviction=lru,fifo", "run.report=false")
    process, folder = start(tmp_path, *words), tmp_path / "sweeps" / "s"
    wait_until(lambda: list(folder.glob("*lru*/metrics.jsonl")), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    (job,) = folder.glob("*lru*")
    assert read_result(job)["status"] == "interrupted"
    make_trace(tmp_path, 50)
    monkeypatch.chdir(tmp_path)
    command.ok(*words)
    assert [read_result(path)["status"] for path in sorted(folder.glob("*eviction*"))] == ["ok", "ok"]


def test_a_full_disk_is_a_sentence_and_leaves_no_half_written_result(tmp_path: Path) -> None:
    make_trace(tmp_path, 5000)
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))\n"
        "from framework.run import call\n"
        f"sys.exit(call({list(REPLAY)!r}))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert "internal error" not in done.stderr
    assert read_result(tmp_path / "run")["status"] == "failed"
    assert not (tmp_path / "run" / "lock").exists()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("framework.run", ["--help"]),
        pytest.param("framework", ["report", "lost"], marks=pytest.mark.slow),  # printed by rich
    ],
)
def test_a_closed_pipe_ends_a_command_quietly(module: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "failure.json").write_text('{"status": "failed", "reason": "lost", "overrides": []}')
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.close()
        assert run.stderr is not None
        err = run.stderr.read()
    assert (err, run.returncode) == ("", 0), (err, run.returncode)


RUN = "-m framework.run mode=replay workload=conversations workload.num_sessions=2"
SWEEP = f"{RUN} -m seed=1,2"


@pytest.mark.parametrize(
    ("words", "where", "status", "said"),
    [(RUN, "&-", 0, ""),
     (RUN, "/dev/full", 1, "standard output cannot be written: No space left on device; the results are in"),
     pytest.param(
         f"{SWEEP} run.progress=false", "/dev/full", 1, "standard output cannot be written: No space left",
         marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_closed_output_is_none_and_a_full_one_a_failure(
    words: str, where: str, status: int, said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        f"{sys.executable} {words} >{where}", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, said in done.stderr) == (status, True), done
    assert done.stderr.count("\n") == int(bool(said)), done


def children(pid: int) -> list[int]:
    """Processes that `pid` started and that run Python's spawn."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGKILL))]
)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks' processes in /proc")
def test_however_rank_0_ends_no_rank_outlives_it(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "workload.num_requests=400",
        "workload.output_tokens=200",
        "run.progress=false",
        "device=cpu",
        "engine.tensor_parallel_size=2",
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    run = start(tmp_path, *words, "run.dir=out")
    try:
        wait_until(lambda: written(tmp_path / "out" / "metrics.jsonl"), run)
        ranks = children(run.pid)
        assert len(ranks) == 1, ranks
        if number is signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does: to every process of the command
        else:
            run.send_signal(number)
        _, errors = run.communicate(timeout=60)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))
        assert list(scratch.glob("kvlab-ranks-*")) == []
        expected = -number if number is signal.SIGKILL else 128 + number
        assert run.returncode == expected, errors
        assert number is not signal.SIGINT or "Traceback" not in errors, errors
    finally:
        run.kill()
        run.wait()
