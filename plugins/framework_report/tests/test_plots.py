"""Which lines and dots a plot of a report has."""

from __future__ import annotations

from pathlib import Path

from report_runs import make_run, make_runs

from framework_report.plots import plots_of
from framework_report.records import collect
from framework_report.study import Study


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
