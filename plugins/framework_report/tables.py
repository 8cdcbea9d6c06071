"""A study in words and numbers: columns with one unit and precision, tables, sentences; unrounded as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from framework.results.catalogue import find, title
from framework.results.console import Table
from framework.results.metric import SCALES, is_number, scale
from framework_report.evidence import Comparison, plural
from framework_report.records import Trials
from framework_report.statistics import FEW_RUNS, FEW_SESSIONS, Estimate
from framework_report.study import SEED, Study, label, sortable

_MOST_CONTEXTS = 8
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MOST_COMMANDS = 3
_MOST_DECIMALS = 3
_LOPSIDED = 1.1  # of the nearer end's distance: from there on both ends are written
_TITLES = {"hit_rate": "hit rate by tokens"}
"""Metric -> its name beside others, where its title leaves out what those say: gaps are by blocks."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one metric is written.

    Attributes:
        title: of the metric.
        unit: of the cells; empty for counts.
        scale: factor from the metric's own unit.
        decimals: of every cell.
    """

    title: str
    unit: str
    scale: float
    decimals: int

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def number(self, value: float) -> str:
        """One value, thousands apart."""
        return f"{self.scale * value:,.{self.decimals}f}"

    def signed(self, value: float) -> str:
        """A difference, with its sign."""
        return f"{self.scale * value:+,.{self.decimals}f}"

    def mean(self, estimate: Estimate | None) -> str:
        """A mean with the half-width of its interval, or with its ends where one is farther off, where runs differ."""
        if estimate is None or estimate.interval is None:
            return "-" if estimate is None else self.number(estimate.value)
        low, high = estimate.interval
        if high - estimate.value > _LOPSIDED * (estimate.value - low):
            return f"{self.number(estimate.value)} ({self.number(low)} to {self.number(high)})"
        return f"{self.number(estimate.value)} ± {self.number(high - estimate.value)}"

    def scaled(self, interval: tuple[float, float] | None) -> tuple[float, float] | None:
        """An interval as a figure draws it; None for none."""
        return None if interval is None else (self.scale * interval[0], self.scale * interval[1])


def column(metric: str, values: Iterable[float]) -> Column:
    """The column that tells these values apart, with as few decimals as that takes."""
    numbers = [abs(value) for value in values if math.isfinite(value)]
    declared = find(metric)
    unit, factor = "", 1.0
    if declared is not None and declared.unit in SCALES:
        unit, factor = scale(declared.unit, max(numbers, default=0.0))
    whole = not unit and all(value.is_integer() for value in numbers)
    decimals = 0 if whole else _decimals([factor * value for value in numbers], least=1 if unit else 0)
    return Column(_TITLES.get(metric) or title(metric), unit, factor, decimals)


def column_of_differences(study: Study) -> Column:
    """One unit and one precision for every difference of a study; shares in percentage points."""
    made = column(study.metric, [number for entry in study.comparisons for number in entry.by_setting.values()])
    return replace(made, title=title(study.metric), unit="points" if made.unit == "%" else made.unit)


def _decimals(numbers: Sequence[float], *, least: int) -> int:
    """Enough for three digits of the largest, and for values that differ in four digits to look different."""
    rounded = [float(f"{number:.4g}") for number in numbers]
    magnitude = math.floor(math.log10(max(rounded))) if rounded and max(rounded) > 0 else 0
    choices = range(max(least, min(_MOST_DECIMALS, 2 - magnitude)), _MOST_DECIMALS)
    distinct = len(set(rounded))
    return next((d for d in choices if len({f"{number:.{d}f}" for number in rounded}) >= distinct), _MOST_DECIMALS)


def tables_of(study: Study) -> list[Table]:
    """Ranking, comparison, differences in each setting, troubles: those that have rows."""
    return [table for table in (ranking(study), comparison(study), by_setting(study), troubles(study)) if table.rows]


def ranking(study: Study) -> Table:
    """One row a setting, best first within equal other settings; values that tie everywhere share a row."""
    columns = {
        metric: column(metric, [s.means[metric].value for s in study.settings if metric in s.means])
        for metric in study.shown_metrics
    }
    compared = study.compared_keys[:1]
    keys = [key.removeprefix("cache.") for key in (*compared, *study.other_keys)]
    rows = [
        [
            str(rank),
            *([study.tied_names(setting)] if compared else []),
            *(number(setting.values[key]) for key in study.other_keys),
            *(made.mean(setting.means.get(metric)) for metric, made in columns.items()),
            str(len(setting.runs)),
        ]
        for rank, setting in study.ranked
    ]
    header = ["rank", *keys, *(made.head for made in columns.values()), "runs"]
    bars = any(mean.interval for _, setting in study.ranked for mean in setting.means.values())
    note = "± and (a to b) are 95 % intervals of a mean over runs that differ in their seed, as many as `runs` says."
    return Table("Ranking", header, rows, " ".join(filter(None, (ties(study), note if bars else ""))))


def comparison(study: Study) -> Table:
    """A row a value of the compared key, best first; with several traces one over all, then one for each."""
    by_trace = any(made.by_trace for made in study.comparisons)
    rows = []
    for made in study.comparisons:
        rows.append(_compared(study, made, ["all"] if by_trace else []))
        rows += [_compared(study, alone, [name]) for name, alone in made.by_trace.items()]
    trace, head = ["trace"] if by_trace else [], column_of_differences(study).head
    header = [f"{study.baseline_key} against {study.baseline}", *trace, head, "95 % interval", "best at", "p",
              "verdict", "rests on"]  # fmt: skip
    return Table(f"Against {study.baseline}", header, rows, basis(study))


def _compared(study: Study, made: Comparison, trace: list[str]) -> list[str]:
    shown, interval = column_of_differences(study), made.difference.interval
    ends = "-" if interval is None else " to ".join(map(shown.signed, interval))
    offline = made.challenger in study.evidence.offline
    best = "knows the future" if offline else f"{made.best_at} of {len(made.by_setting)}"
    name, amount = study.name_of(made.challenger), shown.signed(made.difference.value)
    return [name, *trace, amount, ends, best, made.p, made.verdict, made.evidence]


def by_setting(study: Study) -> Table:
    """The difference in each setting, a row a value; without rows for one setting, or more than 8."""
    all_contexts = dict.fromkeys(context for made in study.comparisons for context in made.by_setting)
    contexts, shown = sorted(all_contexts, key=lambda context: sortable(context.values)), column_of_differences(study)
    rows = [
        [
            study.name_of(made.challenger),
            *(shown.signed(made.by_setting[context]) if context in made.by_setting else "-" for context in contexts),
            shown.signed(made.difference.value),
        ]
        for made in study.comparisons
        if not made.identical
    ]
    labels = [label(dict(zip(study.other_keys, context.values, strict=True))) for context in contexts]
    header = [f"{study.baseline_key} minus {study.baseline}", *labels, "all"]
    return Table("Difference in each setting", header, rows if 1 < len(contexts) <= _MOST_CONTEXTS else [])


def troubles(study: Study) -> Table:
    """Every run that is not ok, and why."""
    rows = [[row.name, row.status, row.reason] for row in study.rows if not row.ok]
    return Table("Runs that did not end well", ["run", "status", "reason"], rows)


def number(value: Any) -> str:
    """A setting's value: four significant digits, thousands apart; a dash for none."""
    if not is_number(value):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1e4 else f"{value:.4g}"


def runs_csv(study: Study) -> str:
    """One line a run: name, status, reason, the settings that varied, the seed, every metric. Numbers unrounded."""
    keys = [*study.keys, SEED]
    rows = [
        [row.name, row.status, row.reason, *map(row.settings.get, keys), *map(row.result.get, study.metrics)]
        for row in study.rows
    ]
    return _csv([["run", "status", "reason", *keys, *study.metrics], *rows])


def settings_csv(study: Study) -> str:
    """One line a setting: rank, settings, number of runs, then of every metric its mean and the ends of its 95 %
    interval. Unrounded.
    """
    heads = [name for metric in study.metrics for name in (metric, f"{metric}_ci95_low", f"{metric}_ci95_high")]
    rows = []
    for rank, setting in study.ranked_with_ties:
        numbers: list[float | None] = []
        for metric in study.metrics:
            mean = setting.means.get(metric)
            ends = (None, None) if mean is None or mean.interval is None else mean.interval
            numbers += [None if mean is None else mean.value, *ends]
        rows.append([rank, *setting.values.values(), len(setting.runs), *numbers])
    return _csv([["rank", *study.keys, "runs", *heads], *rows])


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([map(_cell, row) for row in rows])
    return buffer.getvalue()


def _cell(value: Any) -> str:
    """Numbers as they are; text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value) if is_number(value) else ""
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def lead(study: Study) -> str:
    """The finding, in one sentence: who leads by how much, with its interval, and at how many settings."""
    if study.trials is not None:
        return _of_search(study.trials)
    online = [made for made in study.comparisons if made.challenger not in study.evidence.offline]
    if online:
        ahead = next((made for made in online if made.better and not made.identical), None)
        return _baseline_leads(study, online[0]) if ahead is None else _ahead(study, ahead)
    ranked = [setting for setting in sorted(study.settings, key=study.order) if study.metric in setting.means]
    if not ranked:
        return f"No run has ended well: {len(study.rows)} in all"
    mean, gap = ranked[0].means[study.metric].value, ranked[0].means.get("gap_to_optimum")
    shown = column(study.metric, [mean])
    words = f"{title(study.metric)} {shown.number(mean)} {shown.unit}".rstrip()
    optimum = f", {100 * gap.value:.1f} % more missed blocks than the optimum" if gap else ""
    return f"{study.label(ranked[0])}: {words}{optimum}" if study.keys else f"{words[0].upper()}{words[1:]}{optimum}"


def headline(study: Study) -> str:
    """One line: how many runs, what became of them, ranked by what."""
    counts = Counter(row.status for row in study.rows)
    states = ", ".join(f"{counts[status]} {status}" for status in sorted(counts, key=lambda s: (s != "ok", s)))
    ranked = f"; ranked by {title(study.metric)}, {'lower' if study.higher_is_better is False else 'higher'} is better"
    return f"{len(study.rows)} {plural('run', len(study.rows))} ({states}){ranked if study.metric else ''}"


def basis(study: Study) -> str:
    """What the comparison rests on, and what it does not show."""
    made = study.comparisons
    tested = sum(entry.p_adjusted is not None for entry in made)
    parts = [
        f"Runs are paired that differ in {study.baseline_key} alone. Capacities of one trace are averaged, since they "
        "share its requests; runs that repeat each other exactly count once. p is two-sided and adjusted for "
        f"{tested} {plural('comparison', tested)} by Holm's method: T traces or seeds give none below 2 / 2^T, and "
        f"{FEW_SESSIONS} sessions (requests where a trace names none) in {FEW_RUNS} runs are the least to draw from "
        "with replacement. A verdict by these, or by seeds of a policy, says nothing about other traces."
    ]
    if cut := study.evidence.pieces():
        parts.append(f"Cut from one recording, and counted as one trace: {'; '.join(cut)}.")
    opposed = {entry.contradicted for entry in (*made, *(alone for entry in made for alone in entry.by_trace.values()))}
    if "trace" in opposed:
        parts.append("Where traces have opposite differences there is no verdict over all, only one on each.")
    if "setting" in opposed:
        parts.append(
            "Where settings of one trace have opposite differences, of which the lesser is a tenth of the greatest or "
            "more, there is no verdict over them: choose one by its row in the table of differences."
        )
    return " ".join(parts)


def ties(study: Study) -> str:
    """Which values have the same results on all these runs; empty where none have."""
    groups: dict[str, list[str]] = {}
    for value, leader in study.evidence.ties.items():
        if value != leader:
            groups.setdefault(study.name_of(leader), []).append(study.name_of(value))
    equalities = [
        f"{', '.join(others)} equal{'s' if len(others) == 1 else ''} {leader}" for leader, others in groups.items()
    ]
    return f"Identical results in every run, at these options: {'; '.join(equalities)}." if equalities else ""


def origin(study: Study) -> Iterator[tuple[str, str]]:
    """(what, text) of where the runs come from: traces with checksum, commands, dates, machines, code."""
    traces = {(run.trace_name, sha256) for run in study.rows for sha256 in run.origin.inputs}
    named = {run.trace_name for run in study.rows if run.trace_name and not run.origin.inputs}
    for name, sha256 in sorted(traces):
        yield "trace", f"{name}, SHA-256 {sha256 or 'unknown'}"
    if named:
        yield "workload", ", ".join(sorted(named))
    commands = list(dict.fromkeys(run.origin.command for run in study.rows if run.origin.command))
    for command in commands[:_MOST_COMMANDS]:
        yield "command", command
    if len(commands) > _MOST_COMMANDS:
        yield "command", f"and {len(commands) - _MOST_COMMANDS} more, in each run's provenance.json"
    dates = sorted(run.origin.date for run in study.rows if run.origin.date)
    if dates:
        yield "date", f"{dates[0]} UTC" if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]} UTC"
    for machine in sorted({run.origin.machine for run in study.rows if run.origin.machine}):
        yield "machine", machine
    revisions = sorted({run.origin.revision for run in study.rows if run.origin.revision})
    if revisions:
        several = "; more than one: the numbers may not compare" if len(revisions) > 1 else ""
        changed = "; + has changes beyond it" if any(revision.endswith("+") for revision in revisions) else ""
        yield "code", ", ".join(revisions) + changed + several


def _of_search(search: Trials) -> str:
    """The best trial in words."""
    best, failed = search.best, sum(trial.value is None for trial in search.trials)
    bad = f", {failed} failed" if failed else ""
    if best is None:
        return f"None of {len(search.trials)} trials was good"
    return (
        f"Best of {len(search.trials)} trials{bad}: {search.metric} {best.value:.6g} with {' '.join(best.overrides)} "
        f"(trial {best.number})"
    )


def _ahead(study: Study, made: Comparison) -> str:
    size = len(made.by_setting)
    where = f", best at {made.best_at} of {size} {plural('setting', size)}"
    return f"{study.name_of(made.challenger)}: {_difference(study, made, 'over')}{where}. {_shown(made)}"


def _baseline_leads(study: Study, nearest: Comparison) -> str:
    name = study.name_of(nearest.challenger)
    if nearest.identical:
        return f"{study.baseline}: no {study.baseline_key} is ahead of it; {name} equals it"
    words = _difference(study, nearest, "against")
    return f"{study.baseline} leads; next is {name}: {words}. {_shown(nearest)}"


def _difference(study: Study, made: Comparison, against: str) -> str:
    """`+0.9 points of hit rate over lru, 95 % interval [0.2, 1.6]`."""
    difference, shown = made.difference, column_of_differences(study)
    amount = f"{shown.signed(difference.value)} {shown.unit}".rstrip()
    words = f"{amount} of {title(study.metric)} {against} {study.baseline}"
    if difference.interval is None:
        return words
    return f"{words}, 95 % interval [{', '.join(map(shown.signed, difference.interval))}]"


def _shown(made: Comparison) -> str:
    """What a comparison shows, over all traces."""
    if made.contradicted:
        return f"{made.contradicted.capitalize()}s contradict each other"
    if made.difference.p is None:
        return f"Not shown beyond these runs: {made.evidence}"
    return f"{'Shown' if made.shown else 'Not shown'}: {made.evidence}, p {made.p}"
