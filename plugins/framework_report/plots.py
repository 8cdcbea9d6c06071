"""The figures of a report, made from a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from framework import registry
from framework.results.catalogue import title
from framework.results.metric import is_number
from framework_report.figures import (
    block_map,
    curve,
    fork_tree,
    intervals,
    memory,
    trials,
)
from framework_report.records import Run, Trials, Value
from framework_report.study import Setting, Study, label
from framework_report.tables import Column, column, column_of_differences
from framework_workloads.lines import read_jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_RUNS = (memory, block_map, fork_tree)
"""The figures of single runs, in the order of a page; each says which file it draws from. Those that installed plugins
declare follow."""
MOST_SERIES = 9
"""Lines that a reader can distinguish; where there are more, the best and the baseline are shown."""
_MOST_POINTS = 12
"""Single points in one picture, each with its own colour and marker."""
_MOST_BARS, _MOST_PANELS, _MOST_STACKS, _MOST_LOGGED = 40, 8, 8, 4
_MOST_BYTES = 50_000_000
_LATENCIES = ("ttft_s_p95", "tpot_s_p95", "latency_s_p95")
_THROUGHPUTS = ("output_tokens_per_s", "requests_per_s")
_CAPACITIES = ("cache.num_blocks", "replay.capacity")
_REFERENCES = {
    "hit_rate": {"optimum_hit_rate": "optimum", "infinite_hit_rate": "infinite cache"},
    "hit_rate_blocks": {"optimum_hit_rate_blocks": "optimum"},
}
"""Metric -> results that hold the same of what it is held against."""
_BARS = (
    "Bars: 95 % intervals, over seeds where these differ, else over sessions. All policies served the same sessions: "
    "whether two differ, the table of differences says."
)

Key = tuple[Value, ...]
Point = tuple[float, Setting]
"""x of a setting on an axis, and the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with what a reader of the page needs besides: its name, title and what is on it."""

    name: str
    title: str
    note: str
    figure: Figure


def plots_of(study: Study) -> list[Plot]:
    """Differences, curves over what varied, latency over throughput and over hits, right answers over what compressions
    returned; of a search, its history and what it tried."""
    if study.trials is not None:
        return list(_of_search(study, study.trials))
    return [
        *_differences(study), *_curves(study),
        *_tradeoff(study, "throughput_latency", "Latency over throughput", _THROUGHPUTS, _LATENCIES),
        *_tradeoff(
            study, "returned_quality", "Right answers over the bytes that came back to the pool",
            ("returned_bytes",), ("workload_accuracy", "kept_attention_mass"), better="Up",
        ),
        *_tradeoff(study, "hits_first_token", "Time to first token over hits", ("hit_rate",), ("ttft_s_p99",)),
    ]  # fmt: skip


def pictures_of(study: Study) -> list[Plot]:
    """What happened inside single runs: memory of up to 8 settings, the others of up to 4."""
    plots: list[Plot] = []
    for module in (*OF_RUNS, *map(import_module, registry.declared("figures"))):
        name = module.__name__.rpartition(".")[2]
        drawn = ((setting, _of_run(module, setting.runs[0])) for _, setting in study.ranked)
        shown = ((setting, figure) for setting, figure in drawn if figure is not None)
        for setting, figure in islice(shown, _MOST_STACKS if module is memory else _MOST_LOGGED):
            run = setting.runs[0]
            heading = f"{module.TITLE}: {study.label(setting) if study.keys else run.name}"
            plots.append(Plot(name=f"{name}_{run.name}", title=heading, note=module.NOTE, figure=figure))
    return plots


def _of_run(module: Any, run: Run) -> Figure | None:
    """None also for a damaged or huge file: a picture less must not cost the report."""
    path = run.path / module.SOURCE
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        figure: Figure | None = module.draw(read_jsonl(path))
    except Exception:  # the records are whatever the file holds
        return None
    return figure


def _differences(study: Study) -> Iterator[Plot]:
    compared = [made for made in study.comparisons if not made.identical][:_MOST_BARS]
    if not compared:
        return
    shown = column_of_differences(study)
    rows = [
        intervals.Row(
            label=study.name_of(made.challenger),
            value=shown.scale * made.difference.value,
            interval=shown.scaled(made.difference.interval),
            parts=[shown.scale * number for number in made.by_setting.values()],
        )
        for made in compared
    ]
    yield Plot(
        name="differences",
        title=f"{title(study.metric)} against {study.baseline}",
        note="Open circles: the difference in each setting. Filled: over all settings, with its 95 % interval where "
        "something independent repeats.",
        figure=intervals.draw(
            rows, x_label=replace(shown, title=f"{shown.title} minus {study.baseline}'s").head, zero=True
        ),
    )


def _curves(study: Study) -> list[Plot]:
    """The ranked metric over each numeric setting that varied, a plot for each trace; dots where none did."""
    if not study.metric or len(study.settings) < 2:
        return []
    return [plot for key in study.keys for plot in _curve(study, key)] or [_dots(study)]


def _curve(study: Study, key: str) -> Iterator[Plot]:
    traces: dict[str, list[Point]] = {}
    for setting in study.settings:
        if study.metric in setting.means and (x := _position(study, setting, key)) is not None:
            traces.setdefault(setting.runs[0].trace, []).append((x, setting))
    several = len(traces) > 1
    # Where each trace has a plot of its own, what names the trace is no part of a series' name.
    others = [other for other in study.keys if other != key and not (several and other.startswith("workload"))]
    by_trace = {trace: _series(study, points, others) for trace, points in traces.items()}
    if not any(len({x for x, _ in series}) > 1 for of_trace in by_trace.values() for series in of_trace.values()):
        return
    over_all = _series(study, [point for points in traces.values() for point in points], others)
    kept = _best(study, over_all)
    metric = column(
        study.metric, [setting.means[study.metric].value for points in traces.values() for _, setting in points]
    )
    axis = "capacity (blocks)" if key in _CAPACITIES else key
    rest = len(over_all) - len(kept)
    note = f"The best {len(kept)} with the baseline; {rest} more are in the table." if rest else ""
    for number, (trace, of_trace) in enumerate(by_trace.items(), start=1):
        lines = [
            _line(study, of_trace[values], others, metric, look)
            for look, values in enumerate(kept)
            if values in of_trace
        ]
        bars = _BARS if any(any(line.intervals) for line in lines) else ""
        lines += _reference_lines(study, traces[trace], others, metric, lines)
        where = f", {traces[trace][0][1].runs[0].trace_name}" if several else ""
        yield Plot(
            name=f"curve_{key}" + (f"_{number}" if several else ""),
            title=f"{title(study.metric)} over {axis}{where}",
            note=f"{bars} {note}".strip(),
            figure=curve.draw(lines, x_label=axis, y_label=metric.head),
        )


def _series(study: Study, points: Sequence[Point], keys: Sequence[str]) -> dict[Key, list[Point]]:
    """The points, x ascending, by their values of these keys; of values that tie everywhere the first alone."""
    series: dict[Key, list[Point]] = {}
    for x, setting in sorted(points, key=lambda point: point[0]):
        if study.leads_its_tie(setting):
            series.setdefault(tuple(setting.values[key] for key in keys), []).append((x, setting))
    return series


def _best(study: Study, series: Mapping[Key, Sequence[Point]]) -> list[Key]:
    """As many series as a reader can distinguish: those that lead on average, and the baseline's."""
    order = sorted(series, key=lambda values: _average(study, [setting for _, setting in series[values]]))
    kept = order[:MOST_SERIES]
    baseline = [values for values in order if series[values][0][1].compared[:1] == (study.baseline,)]
    if len(order) > MOST_SERIES and not set(baseline) & set(kept):
        kept = [*kept[:-1], *baseline[:1]]
    return kept


def _average(study: Study, settings: Sequence[Setting]) -> float:
    """Mean of the ranked metric, the best lowest."""
    return sum(study.order(setting) for setting in settings if study.metric in setting.means) / len(settings)


def _line(study: Study, points: Sequence[Point], keys: Sequence[str], metric: Column, look: int) -> curve.Line:
    return curve.Line(
        label=study.label(points[0][1], keys),
        x=[x for x, _ in points],
        y=[metric.scale * setting.means[study.metric].value for _, setting in points],
        intervals=[metric.scaled(_interval(study, setting)) for _, setting in points],
        look=look,
    )


def _interval(study: Study, setting: Setting) -> tuple[float, float] | None:
    """Interval of a setting's mean: over seeds that differ, else over the sessions of its trace."""
    return setting.means[study.metric].interval or study.evidence.interval(setting.runs)


def _reference_lines(
    study: Study, points: Sequence[Point], keys: Sequence[str], metric: Column, drawn: Sequence[curve.Line]
) -> list[curve.Line]:
    """What every run computed besides, such as the optimum of its capacity; not what is drawn as a policy already."""
    rest = [key for key in keys if key not in study.compared_keys]
    policies = [{x: round(y, 6) for x, y in zip(line.x, line.y, strict=True)} for line in drawn]
    lines = []
    for name, words in _REFERENCES.get(study.metric, {}).items():
        curves: dict[str, dict[float, float]] = {}
        for x, setting in sorted(points, key=lambda point: point[0]):
            if name in setting.means:
                curves.setdefault(study.label(setting, rest), {})[x] = metric.scale * setting.means[name].value
        for where, ys in curves.items():
            if {x: round(y, 6) for x, y in ys.items()} not in policies:
                suffix = f", {where}" if len(curves) > 1 else ""
                lines.append(curve.Line(label=words + suffix, x=[*ys], y=[*ys.values()], reference=True))
    return lines


def _position(study: Study, setting: Setting, key: str) -> float | None:
    """Where a setting stands on the axis of this key; a capacity in blocks, however it was given."""
    if key in _CAPACITIES and (blocks := setting.runs[0].number("num_blocks")) is not None:
        return blocks
    value: Any = setting.values[key]
    numeric = all(is_number(other) for other in {one.values[key] for one in study.settings} - {None})
    return float(value) if numeric and value is not None else None


def _dots(study: Study) -> Plot:
    ranked = [setting for _, setting in study.ranked if study.metric in setting.means][:_MOST_BARS]
    metric = column(study.metric, [setting.means[study.metric].value for setting in ranked])
    rows = [
        intervals.Row(
            label=study.label(setting),
            value=metric.scale * setting.means[study.metric].value,
            baseline=bool(study.compared_keys) and setting.compared[0] == study.baseline,
            interval=metric.scaled(_interval(study, setting)),
        )
        for setting in ranked
    ]
    bars = f" {_BARS}" if any(row.interval for row in rows) else ""
    return Plot(
        name="settings",
        title=f"{title(study.metric)} of each setting",
        note=f"Means over seeds; the square is the baseline.{bars}",
        figure=intervals.draw(rows, x_label=metric.head),
    )


def _tradeoff(
    study: Study, name: str, heading: str, throughputs: Sequence[str], latencies: Sequence[str], better: str = "Down"
) -> Iterator[Plot]:
    """The first of these latencies that runs have over the first of what is better higher, a line for each component
    combination along the load; needs both. `better`: which way the latencies are."""
    throughput = next((metric for metric in throughputs if metric in study.metrics), "")
    latency = next((metric for metric in latencies if metric in study.metrics), "")
    points = [setting for setting in study.settings if {throughput, latency} <= setting.means.keys()]
    if len(points) < 2:
        return
    categorical = [key for key in study.keys if _position(study, points[0], key) is None]
    groups: dict[str, list[Setting]] = {}
    for setting in points:
        groups.setdefault(label({key: setting.values[key] for key in categorical}), []).append(setting)
    same: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for group, settings in groups.items():
        point = tuple((setting.means[throughput].value, setting.means[latency].value) for setting in settings)
        same.setdefault(point, []).append(group)
    groups = {" = ".join(names): groups[names[0]] for names in same.values()}
    order = sorted(groups, key=lambda group: -max(setting.means[throughput].value for setting in groups[group]))
    xs, ys = (column(key, [setting.means[key].value for setting in points]) for key in (throughput, latency))
    most = MOST_SERIES if any(len(settings) > 1 for settings in groups.values()) else _MOST_POINTS
    lines = []
    for group in sorted(order[:most], key=lambda group: _average(study, groups[group])):  # the curves' order
        along = sorted((setting.means for setting in groups[group]), key=lambda means: means[throughput].value)
        x, y = ([means[key] for means in along] for key in (throughput, latency))
        lines.append(
            curve.Line(
                label=group, x=[xs.scale * one.value for one in x], y=[ys.scale * one.value for one in y],
                x_intervals=[xs.scaled(one.interval) for one in x], intervals=[ys.scaled(one.interval) for one in y],
            )
        )  # fmt: skip
    note = f"{better} and to the right is better. Each point is the mean over the seeds of one setting."
    if any(interval for line in lines for interval in (*line.x_intervals, *line.intervals)):
        note += " Bars: 95 % intervals over seeds; one that ends at the edge goes on."
    if len(order) > most:
        note += f" Those {most} that reach furthest to the right; {len(order) - most} more are in the table."
    figure = curve.draw(lines, x_label=xs.head, y_label=ys.head, measured_x=True, x_from_zero=throughput != "hit_rate")
    yield Plot(name=name, title=heading, note=note, figure=figure)


def _of_search(study: Study, search: Trials) -> Iterator[Plot]:
    best = search.best
    if best is None:
        return
    runs = [(run, number) for run in study.good if (number := run.number(search.metric)) is not None]
    panels = {
        key: [(run.settings.get(key), number, run.path.name == best.folder) for run, number in runs]
        for key in study.keys[:_MOST_PANELS]
    }
    yield Plot(
        name="trials",
        title=f"History of the search, and {title(search.metric)} over what varied",
        note=f"{len(search.trials)} trials in the order the sampler asked for them. Below, a dot is a run; the square "
        f"is the best trial, {best.number}.",
        figure=trials.draw(
            [trial.value for trial in search.trials], panels, maximize=search.maximize, y_label=title(search.metric)
        ),
    )
