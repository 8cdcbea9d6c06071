"""A study as tables: the same rows on the console, in the page, as LaTeX; unrounded as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from framework.results.console import Table
from framework.results.metric import is_number
from framework_report.columns import column, column_of_differences
from framework_report.evidence import Comparison
from framework_report.sentences import basis, ties
from framework_report.study import SEED, Study, label, sortable

_MOST_CONTEXTS = 8
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


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
    column, interval = column_of_differences(study), made.difference.interval
    ends = "-" if interval is None else " to ".join(map(column.signed, interval))
    offline = made.challenger in study.evidence.offline
    best = "knows the future" if offline else f"{made.best_at} of {len(made.by_setting)}"
    name, amount = study.name_of(made.challenger), column.signed(made.difference.value)
    return [name, *trace, amount, ends, best, made.p, made.verdict, made.evidence]


def by_setting(study: Study) -> Table:
    """The difference in each setting, a row a value; without rows for one setting, or more than 8."""
    all_contexts = dict.fromkeys(context for made in study.comparisons for context in made.by_setting)
    contexts, column = sorted(all_contexts, key=lambda context: sortable(context.values)), column_of_differences(study)
    rows = [
        [
            study.name_of(made.challenger),
            *(column.signed(made.by_setting[context]) if context in made.by_setting else "-" for context in contexts),
            column.signed(made.difference.value),
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
