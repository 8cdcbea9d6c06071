"""What varied between runs, who leads by how much, and which lines and dots its plots have."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from report_runs import add_sha256, make_run, make_runs

from framework_report.plots import plots_of
from framework_report.records import collect
from framework_report.study import Study
from framework_report.tables import ranking
from framework_report.write import print_study, write_report


def test_what_varied_is_found_and_seeds_become_means(sweep: Path) -> None:
    study = Study(collect([sweep]))
    assert study.keys == ["eviction", "cache.num_blocks"]
    assert study.constant["cache.block_size"] == 16
    values = [(setting.values["eviction"], setting.values["cache.num_blocks"]) for setting in study.settings]
    assert values == [("fifo", 64), ("fifo", 1024), ("lru", 64), ("lru", 1024)]
    for setting in study.settings:
        values = [run.result["hit_rate"] for run in setting.runs]
        mean = setting.means["hit_rate"]
        assert mean.value == pytest.approx(np.mean(values))
        half = 4.3027 * np.std(values, ddof=1) / np.sqrt(3)
        assert mean.interval == pytest.approx((mean.value - half, mean.value + half), rel=3e-3)
    ranked = [(rank, tuple(setting.values.values())) for rank, setting in study.ranked]
    assert ranked == [(1, ("lru", 64)), (2, ("fifo", 64)), (1, ("lru", 1024)), (2, ("fifo", 1024))]


def test_policies_are_compared_over_all_pairs_alike_in_the_rest(sweep: Path) -> None:
    study = Study(collect([sweep]))
    assert (study.baseline_key, study.baseline) == ("eviction", "lru")
    (entry,) = study.comparisons
    assert (entry.challenger, entry.difference.count, entry.difference.unit) == (("fifo",), 3, "seed of a policy")
    assert (entry.verdict, entry.evidence) == (
        "not shown",
        "3 seeds of a policy, 1 trace: too few, 3 more would be enough for a test",
    ), "two sizes are not six pairs"
    assert entry.difference.interval is not None
    assert entry.difference.interval[0] < -0.1 < entry.difference.interval[1]
    (other,) = Study(collect([sweep]), baseline="eviction=fifo").comparisons
    assert (other.challenger, other.better) == (("lru",), True)
    assert other.difference.value == pytest.approx(-entry.difference.value)


def test_an_option_of_two_components_varied_only_if_one_component_s_did(tmp_path: Path) -> None:
    for index, (eviction, ghosts) in enumerate((("2q", 0.5), ("s3fifo", 0.9), ("lru", None))):
        options = {} if ghosts is None else {"ghosts": ghosts}
        make_run(tmp_path / str(index), result={"hit_rate": 0.1}, eviction=eviction, options=options)
    assert Study(collect([tmp_path])).keys == ["eviction"]
    make_run(tmp_path / "4", result={"hit_rate": 0.2}, eviction="2q", options={"ghosts": 0.7})
    assert Study(collect([tmp_path])).keys == ["eviction", "eviction.ghosts"]


def test_lines_beyond_what_a_reader_can_distinguish_are_left_out_but_not_the_baseline(tmp_path: Path) -> None:
    for num_blocks in (8, 16):
        make_runs(tmp_path, {"lru": 0.0, **{f"p{i:02}": 0.01 * i for i in range(1, 14)}}, num_blocks=num_blocks)
    (plot,) = [plot for plot in plots_of(Study(collect([tmp_path]))) if plot.name.startswith("curve")]
    labels = [text.get_text() for legend in plot.figure.legends for text in legend.get_texts()]
    assert len(labels) == 9
    assert "lru" in labels
    assert "5 more" in plot.note


def test_settings_without_numbers_become_dots(tmp_path: Path) -> None:
    make_runs(tmp_path, {"lru": 0.5, "fifo": 0.5})
    study = Study(collect([tmp_path]))
    plots = {plot.name: plot for plot in plots_of(study)}
    labels = [text.get_text() for text in plots["settings"].figure.axes[0].get_yticklabels()]
    assert labels == ["lru = fifo"], "what has the same results shares a row"
    assert "throughput_latency" not in plots


def test_a_policy_has_the_same_look_in_every_plot(tmp_path: Path) -> None:
    """The slowest ranks first here, and none is named in alphabetical order."""
    for index, eviction in enumerate(("zeta", "lru", "alpha")):
        for num_blocks in (8, 16):
            result = {
                "hit_rate": 0.5 - 0.1 * index, "output_tokens_per_s": 100.0 * (index + 1) + num_blocks,
                "ttft_s_p95": 1.0 + index,
            }  # fmt: skip
            make_run(tmp_path / f"{eviction}{num_blocks}", result=result, eviction=eviction, num_blocks=num_blocks)
    plots = {plot.name: plot.figure.axes[0] for plot in plots_of(Study(collect([tmp_path])))}
    drawn = [axes for name, axes in plots.items() if name.startswith(("curve_", "throughput_latency"))]
    looks = []
    for axes in drawn:
        handles, labels = axes.get_legend_handles_labels()
        lines = [handle[0] if isinstance(handle, tuple) else handle for handle in handles]
        looks.append(
            {label.strip(): (line.get_color(), line.get_marker()) for label, line in zip(labels, lines, strict=True)}
        )
    assert len(looks) == 2, list(plots)
    assert looks[0].keys() == {"zeta", "lru", "alpha"}, looks
    assert looks[0] == looks[1]


def test_latency_over_throughput_shows_every_point_whole_on_axes_from_zero_with_its_bars(tmp_path: Path) -> None:
    measured = {
        "lru": ((174.0, 0.02), (244.0, 6.9)),
        "hazard": ((213.0, 0.3), (217.0, 0.9)),
        "arc": ((212.0, 0.0),) * 2,
    }
    for eviction, runs in measured.items():
        for seed, (throughput, latency) in enumerate(runs):
            result = {"hit_rate": 0.5, "output_tokens_per_s": throughput, "ttft_s_p95": latency}
            make_run(tmp_path / f"{eviction}{seed}", result=result, eviction=eviction, seed=seed)
    study = Study(collect([tmp_path]))
    (plot,) = [plot for plot in plots_of(study) if plot.name == "throughput_latency"]
    (axes,) = plot.figure.axes
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert (left, bottom) == (0, 0), "three nearly equal throughputs look nearly equal"
    assert right < 2 * 217, "a bar far longer than all points does not squeeze them"
    assert top < 2 * 3.46
    points = [line for line in axes.lines if line.get_marker() not in ("None", "|", "_")]
    assert len(points) == 3
    for line in points:
        assert all(left < x < right and bottom <= y < top for x, y in zip(*line.get_data(), strict=True))
        assert not line.get_clip_on(), "the one on the edge, with no latency at all, is not cut"
    assert len(axes.collections) == 4, "two bars at each point whose runs differ"
    assert "95 % intervals over seeds" in plot.note


def test_right_answers_stand_over_what_compressions_returned_a_line_each(tmp_path: Path) -> None:
    found = {
        ("knorm", 0.25): (24 << 20, 0.7),
        ("knorm", 0.5): (50 << 20, 0.4),
        ("paged", 0.25): (20 << 20, 0.8),
        ("paged", 0.5): (40 << 20, 0.6),
    }
    for (name, ratio), (returned, right) in found.items():
        result = {"returned_bytes": returned, "workload_accuracy": right}
        make_run(tmp_path / f"{name}{ratio}", result=result, eviction=name, options={"ratio": ratio})
    (plot,) = [plot for plot in plots_of(Study(collect([tmp_path]))) if plot.name == "returned_quality"]
    (axes,) = plot.figure.axes
    lines = {line.get_label(): [*zip(*line.get_data(), strict=True)] for line in axes.get_lines()}
    assert lines == {"knorm": [(24.0, 0.7), (50.0, 0.4)], "paged": [(20.0, 0.8), (40.0, 0.6)]}
    assert plot.note.startswith("Up and to the right is better.")


def test_time_to_first_token_over_hits_has_a_point_for_each_choice_and_an_axis_as_wide_as_they_are(
    tmp_path: Path,
) -> None:
    found = {"lru": (0.40, 2.0), "edf": (0.40, 2.0), "lpm": (0.45, 3.0), "sjf": (0.42, 5.0)}
    for choice, (hits, first_s) in found.items():
        result = {"hit_rate": hits, "ttft_s_p99": first_s}
        make_run(tmp_path / choice, result=result, eviction=choice)
    plots = {plot.name: plot for plot in plots_of(Study(collect([tmp_path])))}
    (axes,) = plots["hits_first_token"].figure.axes
    points = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.get_lines()}  # type: ignore[index]
    assert points == {"edf = lru": (40.0, 2.0), "lpm": (45.0, 3.0), "sjf": (42.0, 5.0)}
    assert axes.get_xlim()[0] > 39
    assert axes.get_ylim()[0] == 0
    assert all(line.get_linestyle() == "None" for line in axes.get_lines())


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
