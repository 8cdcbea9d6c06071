"""mode=kernel from the command line: exit status, table, files; alone and in a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import Command

from framework_testing.kernel import bench
from framework_workloads.lines import read_jsonl

TINY = (
    "mode=kernel",
    "device=cpu",
    "mode.batch=[2]",
    "mode.context=[20]",
    "mode.prefill=[]",
    "mode.lengths=[uniform]",
    "mode.heads=[2/1/16]",
    "mode.budget_s=0.01",
)


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of these tiny pools overflow it."""
    monkeypatch.setattr(bench, "last_level_cache_bytes", lambda device: 1 << 18)


def test_a_backend_that_cannot_run_here_exits_with_its_reasons(command: Command, elsewhere: Path) -> None:
    status, _, err = command(*TINY, "+backend=varlen", "run.dir=out")
    assert status == 2, err
    for part in ("device cpu is not supported", "nearest: 256", "Would work: gather"):
        assert part in err, f"{part!r} not in {err!r}"
    assert json.loads((elsewhere / "out" / "result.json").read_text())["status"] == "unavailable"


def test_triton_on_a_cpu_gets_a_floor_and_a_screen_and_no_time(command: Command, elsewhere: Path) -> None:
    words = [word for word in TINY if not word.startswith("mode.heads")]
    out = command.ok(*words, "+backend=triton", "mode.heads=[8/1/64]", "mode.dtypes=[bfloat16]", "run.dir=out")
    (row,) = read_jsonl(elsewhere / "out" / "kernel.jsonl")
    assert (row["kind"], row["target"], "time_s" in row) == ("modelled", "h200", False), row
    screen = json.loads((elsewhere / "out" / "result.json").read_text())["screen"]
    assert [kernel["name"].split("/")[:2] for kernel in screen] == [["sm_90", "decode"], ["sm_90", "prefill"]]
    assert all(kernel["spills"] == 0 and kernel["registers"] > 0 for kernel in screen), screen
    assert "no time was taken" in out, out
