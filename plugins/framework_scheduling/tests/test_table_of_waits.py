"""What a report says of the waiting queue: of real runs, with and without the observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.results.console import Table
from framework_report.records import collect
from framework_report.study import Study
from framework_scheduling.table_of_waits import waits


def table_of(folder: Path, *runs: dict[str, Any]) -> Table:
    for number, settings in enumerate(runs):
        workload = {"name": "conversations", "num_sessions": 12, "rate_per_s": 200.0, "think_s": 0.1}
        directory = {"dir": str(folder / str(number)), "progress": False}
        sizes = {"cache": {"num_blocks": 96}, "engine": {"max_batch_requests": 2}}
        run({"mode": "replay", "workload": workload, "run": directory, **sizes, **settings})
    return waits(Study(collect([folder])))


def test_every_order_says_its_bound_and_with_the_observer_what_was_waited_for(tmp_path: Path) -> None:
    shown = table_of(
        tmp_path,
        {"scheduling": "fcfs", "observers": ["queue"]},
        {"scheduling": {"name": "dfs_weight"}},
        {"scheduling": {"name": "shortest_job", "max_wait_s": 2.0}, "observers": ["queue"]},
    )
    rows = {row[0].partition(",")[0]: row for row in shown.rows}
    assert rows["fcfs"][1:3] == ["first come, first served", ""]
    assert rows["dfs_weight"][1:] == ["none: a request may starve", "0", "", "", "", "", "", ""]
    assert rows["shortest_job"][1] == "waited 2 s"
    assert int(rows["shortest_job"][2]) > 0
    for name, passed in (("fcfs", False), ("shortest_job", True)):
        assert sum(map(int, rows[name][4:8])) == pytest.approx(100, abs=2), rows[name]
        assert (int(rows[name][7]) > 0) == (int(rows[name][8]) > 0) == passed, rows[name]


def test_runs_without_an_order_of_their_own_have_no_table(tmp_path: Path) -> None:
    assert not table_of(tmp_path, {}).rows
