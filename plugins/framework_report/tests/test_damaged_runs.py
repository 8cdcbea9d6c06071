"""One damaged run does not stop a report, and nothing that a run says is executed by what opens the report."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_runs import make_run

from framework.results.catalogue import catalogue
from framework.results.console import print_result
from framework_report.write import print_study, write_report

NASTY = (r"$\frac{", "=1+1", "+1", "-2+3", "@SUM(A1)", "\tx", "_hidden", "a\x1bb", "<script>", "\ud800x", "中", "%d\\")


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "requests.jsonl"])
@pytest.mark.parametrize(
    "text",
    ["not json\n", '{"step": 1', '{"step": "a", "event": "evict", "block": "x"}\n' * 3, '{"live_slots": 1e400}\n' * 3,
     '{"event": "step", "step": 1, "sequences": 7}\n{"event": "fork"}\n', "[1]\n",
     '{"live_slots": ' + "9" * 401 + "}\n"],
)  # fmt: skip
def test_a_damaged_log_costs_its_picture_and_no_more(tmp_path: Path, name: str, text: str) -> None:
    for eviction, rate in (("lru", 0.5), ("fifo", 0.4)):
        make_run(tmp_path / eviction, result={"hit_rate": rate}, eviction=eviction)
        (tmp_path / eviction / name).write_text(text)
    assert "lru leads" in write_report([tmp_path], tmp_path / "out").files[0].read_text()


def test_settings_that_matplotlib_html_and_latex_would_read_stand_as_they_are(tmp_path: Path) -> None:
    for index, word in enumerate(NASTY):
        for num_blocks in (8, 16):
            make_run(
                tmp_path / f"{index}-{num_blocks}", result={"hit_rate": 0.1 * index}, eviction=word,
                num_blocks=num_blocks, events=num_blocks == 8,
            )  # fmt: skip
    page, runs, table, _ = (path.read_text() for path in write_report([tmp_path], tmp_path / "out").files)
    assert r"$\frac{" in page
    assert "<script>" not in page
    for text in (runs, table):
        for row in csv.reader(text.splitlines()):
            assert not [cell for cell in row if cell.startswith(("=", "+", "@", "\t", "-2"))], row
    assert "'=1+1" in runs


def test_negative_numbers_in_a_csv_stay_numbers(tmp_path: Path) -> None:
    for eviction, gap in (("lru", -0.25), ("fifo", 0.5)):
        make_run(tmp_path / eviction, result={"hit_rate": 0.1, "gap_to_optimum": gap}, eviction=eviction)
    rows = list(csv.DictReader(write_report([tmp_path], tmp_path / "out").files[1].read_text().splitlines()))
    assert sorted(row["gap_to_optimum"] for row in rows) == ["-0.25", "0.5"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**301) | st.floats() | st.text(max_size=8)
    | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from([*catalogue(), "eviction_x", "eviction_needs_future", "="])
CONFIG_KEYS = st.sampled_from(["mode", "seed", "eviction", "cache", "workload", "replay", "executor", "model", "$x$"])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    result=st.dictionaries(KEYS, JSON, max_size=6),
    config=st.dictionaries(CONFIG_KEYS, JSON, max_size=5),
    provenance=JSON,
)
def test_whatever_a_run_left_there_is_a_report(
    tmp_path_factory: pytest.TempPathFactory, result: dict[str, Any], config: dict[str, Any], provenance: Any
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    make_run(folder / "good", result={"hit_rate": 0.5})
    odd = folder / "odd"
    odd.mkdir()
    (odd / "result.json").write_text(json.dumps({"status": "ok", "hit_rate": 0.25, **result}))
    (odd / "config.yaml").write_text(yaml.safe_dump(config))
    (odd / "provenance.json").write_text(json.dumps(provenance))
    report = write_report([folder], folder / "out")
    assert {row.name for row in report.study.rows} == {"good", "odd"}
    assert "good" in report.files[1].read_text()
    alone = write_report([odd], folder / "alone")
    print_study(alone.study, file=io.StringIO(), width=100)
    print_result({**result, "mode": "serve"}, file=io.StringIO(), width=80)
