"""One number against another, over all settings of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.figures.style import COLOURS, MARKERS, legend, new_axes, new_figure, series_style
from framework.report.study import Setting, Study, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SERIES = 10
"""Lines that a reader can tell apart; where there are more, the best and the baseline are shown."""
_MOST_BARS = 40
_LATENCIES = ("ttft_s_p95", "tpot_s_p95", "latency_s_p95")
_THROUGHPUTS = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with what a reader of the page needs besides: its name, title and what is on it."""

    name: str
    title: str
    note: str
    figure: Figure


def curves(study: Study) -> list[Plot]:
    """The ranked metric over each numeric setting that varied, or as dots where none did."""
    if not study.metric or len(study.settings) < 2:
        return []
    axes_keys = [key for key in study.keys if _is_numeric(study, key)]
    made = [plot for key in axes_keys if (plot := _curve(study, key)) is not None]
    return made or [_dots(study)]


def throughput_latency(study: Study) -> Plot | None:
    """Latency over throughput, a line for each component combination along the load; None without both numbers."""
    throughput = next((metric for metric in _THROUGHPUTS if metric in study.metrics), None)
    latency = next((metric for metric in _LATENCIES if metric in study.metrics), None)
    if throughput is None or latency is None:
        return None
    points = [s for s in study.settings if throughput in s.means and latency in s.means]
    if len(points) < 2:
        return None
    categorical = [key for key in study.keys if not _is_numeric(study, key)]
    groups: dict[tuple[Any, ...], list[Setting]] = {}
    for setting in points:
        groups.setdefault(_pick(study, setting, categorical), []).append(setting)
    left_out = max(0, len(groups) - MOST_SERIES)
    fastest = sorted(groups, key=lambda values: -max(setting.means[throughput].value for setting in groups[values]))
    groups = {values: groups[values] for values in fastest[:MOST_SERIES]}
    figure = new_figure(height_in=3.8)
    axes = new_axes(figure, grid="both")
    for index, (values, settings) in enumerate(groups.items()):
        settings.sort(key=lambda setting: setting.means[throughput].value)
        axes.plot(
            [setting.means[throughput].value for setting in settings],
            [setting.means[latency].value for setting in settings],
            label=label(categorical, values),
            **series_style(index),
        )
    axes.set_xlabel(throughput)
    axes.set_ylabel(latency)
    axes.set_ylim(bottom=0)
    legend(axes, len(groups))
    note = "Down and to the right is better. Each point is the mean over the seeds of one setting."
    if left_out:
        note += f" The fastest {len(groups)}; {left_out} more are in the table."
    return Plot(name="throughput_latency", title="Latency over throughput", note=note, figure=figure)


def _curve(study: Study, key: str) -> Plot | None:
    others = [other for other in study.keys if other != key]
    groups: dict[tuple[Any, ...], list[tuple[float, Setting]]] = {}
    for setting in study.settings:
        x = setting.values[study.keys.index(key)]
        if study.metric in setting.means and isinstance(x, (int, float)):
            groups.setdefault(_pick(study, setting, others), []).append((float(x), setting))
    if not groups or max(map(len, groups.values())) < 2:
        return None
    groups, left_out = _best(study, groups, others)
    figure = new_figure(height_in=3.4 + 0.18 * math.ceil(len(groups) / 4))
    axes = new_axes(figure)
    for index, (values, points) in enumerate(groups.items()):
        points.sort(key=lambda point: point[0])
        means = [setting.means[study.metric] for _, setting in points]
        axes.errorbar(
            [x for x, _ in points],
            [mean.value for mean in means],
            yerr=[mean.half_width or 0.0 for mean in means] if any(mean.half_width for mean in means) else None,
            label=label(others, values),
            capsize=3,
            **series_style(index),
        )
    _scale_x(axes, sorted({x for points in groups.values() for x, _ in points}))
    axes.set_xlabel(key)
    axes.set_ylabel(study.metric)
    legend(axes, len(groups))
    note = "Means over seeds; bars are 95 % intervals where there are several seeds."
    if left_out:
        note += f" The best {len(groups)} with the baseline; {left_out} more are in the table."
    return Plot(name=f"curve_{key}", title=f"{study.metric} over {key}", note=note, figure=figure)


def _best(
    study: Study, groups: dict[tuple[Any, ...], list[tuple[float, Setting]]], keys: Sequence[str]
) -> tuple[dict[tuple[Any, ...], list[tuple[float, Setting]]], int]:
    """As many series as can be told apart, those that lead on average and the baseline's; and how many are left out."""
    sign = -1 if study.higher_is_better else 1

    def average(values: tuple[Any, ...]) -> float:
        means = [setting.means[study.metric].value for _, setting in groups[values]]
        return sign * sum(means) / len(means)

    def is_baseline(values: tuple[Any, ...]) -> bool:
        return study.baseline_key in keys and values[keys.index(study.baseline_key)] == study.baseline

    order = sorted(groups, key=average)
    kept = order[:MOST_SERIES]
    if len(order) > MOST_SERIES and not any(map(is_baseline, kept)):
        kept = [*kept[:-1], *[values for values in order if is_baseline(values)][:1]]
    return {values: groups[values] for values in kept}, len(groups) - len(kept)


def _scale_x(axes: Any, ticks: Sequence[float]) -> None:
    """Logarithmic where the values are spread like powers; a tick at each value while these are few."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    if len(ticks) <= 10:
        axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _dots(study: Study) -> Plot:
    """A row for each setting, best first."""
    ranked = [setting for _, setting in study.ranked if study.metric in setting.means][:_MOST_BARS]
    figure = new_figure(height_in=1.0 + 0.26 * len(ranked))
    axes = new_axes(figure, grid="x")
    for row, setting in enumerate(ranked):
        mean = setting.means[study.metric]
        index = study.keys.index(study.baseline_key) if study.baseline_key in study.keys else 0
        baseline = bool(study.keys) and setting.values[index] == study.baseline
        axes.errorbar(
            mean.value,
            row,
            xerr=mean.half_width,
            fmt=MARKERS[1] if baseline else MARKERS[0],
            color=COLOURS[1] if baseline else COLOURS[0],
            capsize=3,
        )
    axes.set_yticks(range(len(ranked)), [study.label(setting) for setting in ranked])
    axes.invert_yaxis()
    axes.set_xlabel(study.metric)
    note = "Means over seeds with 95 % intervals; the square is the baseline."
    return Plot(name="settings", title=f"{study.metric} of each setting", note=note, figure=figure)


def _pick(study: Study, setting: Setting, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(setting.values[study.keys.index(key)] for key in keys)


def _is_numeric(study: Study, key: str) -> bool:
    values = {setting.values[study.keys.index(key)] for setting in study.settings}
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return len(numbers) == len(values - {None}) and len(numbers) > 1
