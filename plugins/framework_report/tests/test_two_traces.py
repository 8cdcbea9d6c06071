"""What a report over two traces looks like: a plot for each, names that stay, one line of title, files for papers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from report_runs import add_sha256, make_run

from framework_report.plots import plots_of
from framework_report.records import collect
from framework_report.study import Study
from framework_report.tables import ranking
from framework_report.write import print_study, write_report


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Three policies, the optimum among them, on two traces at four sizes."""
    for trace in (0, 1):
        for num_blocks in (64, 128, 256, 512):
            for eviction, rate in (("lru", 0.3), ("a_policy_of_long_name", 0.35), ("optimum", 0.5)):
                run = tmp_path / "two" / f"{eviction}-{trace}-{num_blocks}"
                result = {
                    "hit_rate": rate + 0.1 * trace + num_blocks / 1e4,
                    "optimum_hit_rate": 0.5 + 0.1 * trace + num_blocks / 1e4,
                    "gap_to_optimum": 0.5 + num_blocks / 1e4 - rate, "eviction_needs_future": eviction == "optimum",
                }  # fmt: skip
                path = f"trace-{trace}.jsonl"
                make_run(run, result=result, eviction=eviction, num_blocks=num_blocks, path=path)
                add_sha256(run, f"{trace}" * 64, path)
                lines = [{"request": i, "prompt_tokens": 1000, "cached_tokens": int(result["hit_rate"] * 1000) + i % 7}
                         for i in range(80)]  # fmt: skip
                (run / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "two"


def test_each_trace_has_a_plot_with_the_same_looks_one_optimum_and_intervals(two: Path) -> None:
    plots = [plot for plot in plots_of(Study(collect([two]))) if plot.name.startswith("curve")]
    assert [plot.title for plot in plots] == [
        "hit rate over capacity (blocks), trace-0.jsonl", "hit rate over capacity (blocks), trace-1.jsonl",
    ]  # fmt: skip
    looks = []
    for plot in plots:
        axes = plot.figure.axes[0]
        lines = {
            str(line.get_label()).strip(): line for line in axes.lines if not str(line.get_label()).startswith("_")
        }
        assert sorted(lines) == ["a_policy_of_long_name", "lru", "optimum"], "the optimum once, the trace in the title"
        looks.append({name: line.get_color() for name, line in lines.items()})
        assert len(axes.collections) >= 12, "an interval at every point"
        assert "over sessions" in plot.note
    assert looks[0] == looks[1]
    assert len(set(looks[0].values())) == 3


@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_fit_the_console_and_keep_names_and_the_ranked_metric(two: Path, width: int) -> None:
    out = io.StringIO()
    print_study(Study(collect([two])), file=out, width=width)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width, text
    assert "hit rate" in text
    if width >= 80:
        assert text.count("a_policy_of_long_name") == 1 + 8 + 3 + 1, "the finding, and a row of each table"
    assert ("more columns in the report's files" in text) == (width < 200), text


def test_units_are_named_where_gaps_stand_beside_hit_rates(two: Path) -> None:
    header = ranking(Study(collect([two]))).header
    assert "hit rate by tokens, %" in header, header
    assert "gap to the optimum by blocks, %" in header, header


def test_many_folders_make_a_title_of_one_line_and_every_figure_three_files(two: Path, tmp_path: Path) -> None:
    folders = sorted(two.iterdir())
    report = write_report(folders, tmp_path / "out")
    heading = report.files[0].read_text().partition("<h1>")[2].partition("</h1>")[0]
    assert heading.endswith(f" and {len(folders) - 3} more"), heading
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    for name in ("curve_cache.num_blocks_1", "curve_cache.num_blocks_2", "differences"):
        assert {f"{name}{suffix}" for suffix in (".pdf", ".svg", ".png")} <= names, names
    assert (tmp_path / "out" / "figures" / "differences.pdf").read_bytes().startswith(b"%PDF")
    assert not [name for name in names if name.startswith(".")], "no temporary file is left"
