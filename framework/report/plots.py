"""The figures of a report, made from a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.figures import block_map, curve, fork_tree, intervals, memory, regret_by_age, token_origins, trials
from framework.files.jsonl import read_jsonl
from framework.report import columns
from framework.report.sentences import column_of_differences
from framework.report.study import Setting, Study
from framework.report.trials import Trials
from framework.results.catalogue import title
from framework.results.metric import is_number
from framework.results.records import Run
from framework.results.settings import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_RUNS = (memory, block_map, fork_tree, token_origins, regret_by_age)
"""The figures of single runs, in the order of a page; each says which file it draws from."""
MOST_SERIES = 9
"""Lines that a reader can distinguish; where there are more, the best and the baseline are shown."""
_MOST_BARS, _MOST_PANELS, _MOST_STACKS, _MOST_LOGGED = 40, 8, 8, 4
_MOST_BYTES = 50_000_000
_LATENCIES = ("ttft_s_p95", "tpot_s_p95", "latency_s_p95")
_THROUGHPUTS = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
_CAPACITIES = ("cache.num_blocks", "replay.capacity")
_REFERENCES = {
    "hit_rate": {"optimum_hit_rate": "optimum", "infinite_hit_rate": "infinite cache"},
    "hit_rate_blocks": {"optimum_hit_rate_blocks": "optimum", "infinite_hit_rate_blocks": "infinite cache"},
}
"""Metric -> results that hold the same of what it is held against."""

Key = tuple[Value, ...]
Groups = dict[Key, list[tuple[float, Setting]]]
_BARS = (
    "Bars: 95 % intervals, over seeds where these differ, else over sessions. All policies served the same sessions: "
    "whether two differ, the table of differences says."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with what a reader of the page needs besides: its name, title and what is on it."""

    name: str
    title: str
    note: str
    figure: Figure


def plots_of(study: Study) -> list[Plot]:
    """Differences, curves over what varied, latency over throughput; of a search, its history and what it tried."""
    if study.trials is not None:
        return list(_of_search(study, study.trials))
    return [*_differences(study), *_curves(study), *_tradeoff(study)]


def pictures_of(study: Study) -> list[Plot]:
    """What happened inside single runs: memory of up to 8 settings, blocks, evictions and forks of up to 4."""
    found: list[Plot] = []
    shown: dict[str, int] = {}
    for _, setting in study.ranked:
        run = setting.runs[0]
        words = study.label(setting) if study.keys else run.name
        for module in OF_RUNS:
            name = module.__name__.rpartition(".")[2]
            most = _MOST_STACKS if name == "memory" else _MOST_LOGGED
            if shown.get(name, 0) < most and (figure := _of_run(module, run)) is not None:
                shown[name] = shown.get(name, 0) + 1
                found.append(Plot(name=f"{name}_{run.name}", title=f"{module.TITLE}: {words}", note=module.NOTE,
                                  figure=figure))  # fmt: skip
    return sorted(found, key=lambda plot: plot.name.partition("_")[0] != "memory")


def _of_run(module: Any, run: Run) -> Figure | None:
    """None also for a damaged or huge file: a picture less must not cost the report."""
    path = run.path / module.SOURCE
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        figure: Figure | None = module.draw(read_jsonl(path))
    except Exception:  # the records are whatever the file holds
        return None
    return figure


def _differences(study: Study) -> Iterator[Plot]:
    found = [made for made in study.comparisons if not made.identical][:_MOST_BARS]
    if not found:
        return
    column = column_of_differences(study)
    rows = [
        intervals.Row(
            label=study.name_of(made.challenger),
            value=column.scale * made.difference.mean,
            interval=None
            if made.difference.low is None or made.difference.high is None
            else (column.scale * made.difference.low, column.scale * made.difference.high),
            parts=[column.scale * number for number in made.by_setting.values()],
        )
        for made in found
    ]
    unit = f", {column.unit}" if column.unit else ""
    yield Plot(
        name="differences",
        title=f"{title(study.metric)} against {study.baseline}",
        note="Open circles: the difference in each setting. Filled: over all settings, with its 95 % interval where "
        "something independent repeats.",
        figure=intervals.draw(rows, x_label=f"{column.head} minus {study.baseline}'s{unit}", zero=True),
    )


def _curves(study: Study) -> Iterator[Plot]:
    """The ranked metric over each numeric setting that varied, a plot for each trace; dots where none did."""
    if not study.metric or len(study.settings) < 2:
        return
    made = [plot for key in study.keys for plot in _curve(study, key)]
    yield from made or [_dots(study)]


def _curve(study: Study, key: str) -> Iterator[Plot]:
    traces: dict[str, list[Setting]] = {}
    for setting in study.settings:
        if study.metric in setting.means and _position(study, setting, key) is not None:
            traces.setdefault(setting.runs[0].trace, []).append(setting)
    several = len(traces) > 1
    # Where each trace has a plot of its own, what names the trace is no part of a series' name.
    others = [other for other in study.keys if other != key and not (several and other.startswith("workload"))]
    found: dict[str, Groups] = {}
    for trace, settings in traces.items():
        for setting in filter(study.leads_its_tie, settings):
            point = (float(_position(study, setting, key) or 0), setting)
            found.setdefault(trace, {}).setdefault(study.pick(setting, others), []).append(point)
    over_all: Groups = {}
    for groups in found.values():
        for values, points in groups.items():
            over_all.setdefault(values, []).extend(points)
    if max((len({x for x, _ in points}) for groups in found.values() for points in groups.values()), default=0) < 2:
        return
    kept, left_out = _best(study, over_all, others)
    looks = {values: number for number, values in enumerate(kept)}
    means = [setting.means[study.metric].value for points in over_all.values() for _, setting in points]
    column = columns.column(study.metric, means)
    label = "capacity (blocks)" if key in _CAPACITIES else key
    note = f"The best {len(kept)} with the baseline; {left_out} more are in the table." if left_out else ""
    for number, (trace, groups) in enumerate(found.items(), start=1):
        lines = [
            _line(study, others, values, sorted(groups[values], key=lambda point: point[0]), column, looks[values])
            for values in kept
            if values in groups
        ]
        words = _BARS if any(any(line.intervals) for line in lines) else ""
        lines += _reference_lines(study, key, others, column, traces[trace], lines)
        where = f", {traces[trace][0].runs[0].trace_name}" if several else ""
        yield Plot(
            name=f"curve_{key}" + (f"_{number}" if several else ""),
            title=f"{title(study.metric)} over {label}{where}",
            note=f"{words} {note}".strip(),
            figure=curve.draw(lines, x_label=label, y_label=column.head),
        )


def _line(
    study: Study, others: Sequence[str], values: Key, points: Sequence[tuple[float, Setting]], column: Any, look: int
) -> curve.Line:
    return curve.Line(
        label=study.label_of(others, values, points[0][1]),
        x=[x for x, _ in points],
        y=[column.scale * setting.means[study.metric].value for _, setting in points],
        intervals=[_interval(study, setting, column.scale) for _, setting in points],
        look=look,
    )


def _interval(study: Study, setting: Setting, scale: float) -> tuple[float, float] | None:
    """Of a setting's mean: over seeds that differ, else over the sessions of its trace."""
    mean = setting.means[study.metric]
    if mean.half_width is not None:
        return scale * (mean.value - mean.half_width), scale * (mean.value + mean.half_width)
    found = study.evidence.interval(setting.runs)
    return None if found is None else (scale * found.low, scale * found.high)


def _reference_lines(
    study: Study, key: str, others: Sequence[str], column: Any, settings: Sequence[Setting], drawn: Sequence[curve.Line]
) -> Iterator[curve.Line]:
    """What every run computed besides, such as the optimum of its capacity; not what is drawn as a policy already."""
    rest = [other for other in others if other not in study.compared_keys]
    policies = [{x: round(y, 6) for x, y in zip(line.x, line.y, strict=True)} for line in drawn]
    for name, words in _REFERENCES.get(study.metric, {}).items():
        found: dict[Key, dict[float, float]] = {}
        for setting in settings:
            x = _position(study, setting, key)
            if name in setting.means and x is not None:
                found.setdefault(study.pick(setting, rest), {})[x] = column.scale * setting.means[name].value
        for values, points in found.items():
            if {x: round(y, 6) for x, y in points.items()} in policies:
                continue
            suffix = f", {study.label_of(rest, values)}" if len(found) > 1 else ""
            xs = sorted(points)
            yield curve.Line(label=words + suffix, x=xs, y=[points[x] for x in xs], reference=True)


def _position(study: Study, setting: Setting, key: str) -> float | None:
    """Where a setting stands on the axis of this key; a capacity in blocks, however it was given."""
    if key in _CAPACITIES and (blocks := setting.runs[0].number("num_blocks")) is not None:
        return blocks
    values = {other.values[study.keys.index(key)] for other in study.settings} - {None}
    value: Any = setting.values[study.keys.index(key)]
    return float(value) if is_number(value) and all(is_number(other) for other in values) else None


def _best(study: Study, groups: Groups, keys: Sequence[str]) -> tuple[Groups, int]:
    """As many series as a reader can distinguish: the baseline's, and those that lead on average."""

    def is_baseline(values: Key) -> bool:
        key = study.baseline_key
        return key is not None and key in keys and values[list(keys).index(key)] == study.baseline

    order = sorted(groups, key=lambda values: _average(study, [setting for _, setting in groups[values]]))
    kept = order[:MOST_SERIES]
    if len(order) > MOST_SERIES and not any(map(is_baseline, kept)):
        kept = [*kept[:-1], *[values for values in order if is_baseline(values)][:1]]
    return {values: groups[values] for values in kept}, len(groups) - len(kept)


def _average(study: Study, settings: Sequence[Setting]) -> float:
    """Of the ranked metric, the best lowest; 0 where no setting has it."""
    means = [setting.means[study.metric].value for setting in settings if study.metric in setting.means]
    return (-1 if study.higher_is_better else 1) * sum(means) / max(1, len(means))


def _dots(study: Study) -> Plot:
    ranked = [setting for _, setting in study.ranked if study.metric in setting.means][:_MOST_BARS]
    column = columns.column(study.metric, [setting.means[study.metric].value for setting in ranked])
    dots = []
    for setting in ranked:
        mean = setting.means[study.metric]
        baseline = bool(study.compared_keys) and study.compared(setting)[0] == study.baseline
        dots.append(
            intervals.Row(
                label=study.label(setting),
                value=column.scale * mean.value,
                baseline=baseline,
                interval=_interval(study, setting, column.scale),
            )
        )
    bars = f" {_BARS}" if any(dot.interval for dot in dots) else ""
    note = f"Means over seeds; the square is the baseline.{bars}"
    figure = intervals.draw(dots, x_label=column.head)
    return Plot(name="settings", title=f"{title(study.metric)} of each setting", note=note, figure=figure)


def _tradeoff(study: Study) -> Iterator[Plot]:
    """Latency over throughput, a line for each component combination along the load; needs both."""
    throughput = next((metric for metric in _THROUGHPUTS if metric in study.metrics), None)
    latency = next((metric for metric in _LATENCIES if metric in study.metrics), None)
    if throughput is None or latency is None:
        return
    points = [s for s in study.settings if throughput in s.means and latency in s.means]
    if len(points) < 2:
        return
    categorical = [key for key in study.keys if _position(study, points[0], key) is None]
    groups: dict[Key, list[Setting]] = {}
    for setting in points:
        groups.setdefault(study.pick(setting, categorical), []).append(setting)
    order = sorted(groups, key=lambda values: -max(setting.means[throughput].value for setting in groups[values]))
    xs, ys = (columns.column(key, [s.means[key].value for s in points]) for key in (throughput, latency))
    lines = []
    for values in sorted(order[:MOST_SERIES], key=lambda values: _average(study, groups[values])):  # the curves' order
        along = sorted(groups[values], key=lambda setting: setting.means[throughput].value)
        lines.append(
            curve.Line(
                label=study.label_of(categorical, values),
                x=[xs.scale * setting.means[throughput].value for setting in along],
                y=[ys.scale * setting.means[latency].value for setting in along],
            )
        )
    note = "Down and to the right is better. Each point is the mean over the seeds of one setting."
    if len(order) > MOST_SERIES:
        note += f" The fastest {MOST_SERIES}; {len(order) - MOST_SERIES} more are in the table."
    figure = curve.draw(lines, x_label=xs.head, y_label=ys.head, measured_x=True)
    yield Plot(name="throughput_latency", title="Latency over throughput", note=note, figure=figure)


def _of_search(study: Study, found: Trials) -> Iterator[Plot]:
    best = found.best
    if best is None:
        return
    runs = [(run, number) for run in study.good if (number := run.number(found.metric)) is not None]
    panels = {
        key: [(run.settings.get(key), number, run.path.name == best.folder) for run, number in runs]
        for key in study.keys[:_MOST_PANELS]
    }
    yield Plot(
        name="trials",
        title=f"History of the search, and {title(found.metric)} over what varied",
        note=f"{len(found.trials)} trials in the order the sampler asked for them. Below, a dot is a run; the square "
        f"is the best trial, {best.number}.",
        figure=trials.draw(
            [trial.value for trial in found.trials], panels, maximize=found.maximize, y_label=title(found.metric)
        ),
    )
