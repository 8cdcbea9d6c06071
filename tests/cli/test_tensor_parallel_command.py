"""A run over two ranks, as a user starts, records and interrupts it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from processes import Command, start, wait_until, written

from framework.results.reading import read_result
from framework_workloads.lines import read_jsonl

SMALL = ("workload.num_requests=6", "workload.output_tokens=8", "run.progress=false", "device=cpu")
TIGHT = ("cache.num_blocks=40", "cache.block_size=8", "workload.prefix_tokens=24", "workload.suffix_tokens=20")
POOL = tuple(word for word in TIGHT if word.startswith("cache."))
PAIR = "engine.tensor_parallel_size=2"


def events(folder: Path) -> str:
    return (folder / "events.jsonl").read_text()


def test_a_run_over_two_ranks_is_the_run_of_one_and_its_recording_replays_to_the_same_log(
    command: Command, elsewhere: Path
) -> None:
    for folder, more in (("one", ()), ("two", (PAIR, "run.record=true"))):
        out = command.ok("+allocator=prefix", *SMALL, *TIGHT, *more, "run.events=true", f"run.dir={folder}")
    assert "K and V on each rank" in out, out
    command.ok(
        "mode=replay", "executor=none", "workload=recording", "workload.path=two/recording.jsonl", "+allocator=prefix",
        *POOL, "run.progress=false", "run.events=true", "run.dir=replayed",
    )  # fmt: skip
    assert events(elsewhere / "two") == events(elsewhere / "one") == events(elsewhere / "replayed")
    one, two = (read_result(elsewhere / name) for name in ("one", "two"))
    outputs = [
        [row["completions"] for row in read_jsonl(elsewhere / name / "requests.jsonl")] for name in ("one", "two")
    ]
    assert [[c["tokens"] for c in row] for row in outputs[1]] == [[c["tokens"] for c in row] for row in outputs[0]]
    assert two["dense_checked"] == one["dense_checked"] > 0
    assert two["dense_mismatches"] == 0, two
    assert (one["tensor_parallel_size"], two["tensor_parallel_size"]) == (1, 2)
    assert two["kv_bytes"] == one["kv_bytes"] == one["kv_bytes_per_rank"] == 2 * two["kv_bytes_per_rank"]


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
    words = ("workload.num_requests=400", "workload.output_tokens=200", "run.progress=false", "device=cpu", PAIR)
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
