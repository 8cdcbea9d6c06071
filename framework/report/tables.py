"""A study as text: on the console, as CSV, as LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

from framework.report import columns
from framework.report.evidence import Comparison, Context
from framework.report.sentences import basis, column_of_differences, context_label, lead, origin, p_value, ties
from framework.report.study import SEED, Setting, Study, sortable
from framework.results.catalogue import title as title_of
from framework.results.metric import is_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MOST_ROWS, _MOST_CONTEXTS, _LONGEST_NAME = 40, 8, 24
_NUMERIC = re.compile(r"^(-|[<+-]?\d[\d.,e+-]*(( ± | \$\\pm\$ | to )[+-]?\d[\d.,e+-]*)?)$")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def number(value: Any) -> str:
    """Four significant digits, thousands apart; a dash for none."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1e4):
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def headline(study: Study) -> str:
    """One line: how many runs, what became of them, ranked by what."""
    counts = Counter(row.status for row in study.rows)
    states = ", ".join(
        f"{counts[status]} {status}" for status in sorted(counts, key=lambda status: (status != "ok", status))
    )
    ranked = f"; ranked by {title_of(study.metric)}, {'higher' if study.higher_is_better else 'lower'} is better"
    return f"{len(study.rows)} run{'s' if len(study.rows) != 1 else ''} ({states}){ranked if study.metric else ''}"


def ranking_header(study: Study) -> list[str]:
    """Column names of `ranking`."""
    names = [key.removeprefix("cache.") for key in _ranking_keys(study)]
    return ["rank", *names, *(made.head for made in _columns(study).values()), "runs"]


def ranking(study: Study, between: str = " ± ") -> list[list[str]]:
    """One row a setting, best first within equal other settings; values that tie everywhere share a row."""
    written = _columns(study)
    return [
        [
            str(rank),
            *_ranking_values(study, setting),
            *(column.mean(setting.means.get(metric), between) for metric, column in written.items()),
            str(len(setting.runs)),
        ]
        for rank, setting in study.ranked
    ]


def _ranking_keys(study: Study) -> list[str]:
    rest = [key for key in study.keys if key not in study.compared_keys]
    return [*([study.compared_keys[0]] if study.compared_keys else []), *rest]


def _ranking_values(study: Study, setting: Setting) -> list[str]:
    rest = [key for key in study.keys if key not in study.compared_keys]
    head = [study.tied_names(setting)] if study.compared_keys else []
    return [*head, *(number(value) for value in study.pick(setting, rest))]


def _columns(study: Study) -> dict[str, columns.Column]:
    """One unit and one precision for all cells of a metric."""
    return {
        metric: columns.column(metric, [s.means[metric].value for s in study.settings if metric in s.means])
        for metric in study.shown_metrics
    }


def comparison_header(study: Study) -> list[str]:
    """Column names of `comparison`; `trace` where there are several."""
    unit = column_of_differences(study).unit
    head = f"{title_of(study.metric)}{', ' + unit if unit else ''}"
    trace = ["trace"] if any(made.by_trace for made in study.comparisons) else []
    return [f"{study.baseline_key} against {study.baseline}", *trace, head, "95 % interval", "best at", "p", "verdict",
            "rests on"]  # fmt: skip


def comparison(study: Study) -> list[list[str]]:
    """A row a value of the compared key, best first; with several traces one over all, then one for each."""
    by_trace = "trace" in comparison_header(study)
    rows = []
    for made in study.comparisons:
        rows.append(_compared(study, made, ["all"] if by_trace else []))
        rows += [_compared(study, alone, [name]) for name, alone in made.by_trace.items()]
    return rows


def _compared(study: Study, made: Comparison, trace: list[str]) -> list[str]:
    found, column, interval = made.difference, column_of_differences(study), "-"
    if found.low is not None and found.high is not None:
        interval = f"{column.signed(found.low)} to {column.signed(found.high)}"
    best = "knows the future" if study.is_offline(made.challenger) else f"{made.best_at} of {len(made.by_setting)}"
    return [study.name_of(made.challenger), *trace, column.signed(found.mean), interval, best, p_value(made),
            made.verdict, made.evidence]  # fmt: skip


def by_setting_header(study: Study) -> list[str]:
    """Column names of `by_setting`: the compared key, a column a setting, and all together."""
    labels = [context_label(study, context) for context in _contexts(study)]
    return [f"{study.baseline_key} minus {study.baseline}", *labels, "all"]


def by_setting(study: Study) -> list[list[str]]:
    """The difference in each setting, a row a value; empty with one setting, or more than 8."""
    contexts, column = _contexts(study), column_of_differences(study)
    if not 1 < len(contexts) <= _MOST_CONTEXTS:
        return []
    return [
        [
            study.name_of(made.challenger),
            *(column.signed(made.by_setting[context]) if context in made.by_setting else "-" for context in contexts),
            column.signed(made.difference.mean),
        ]
        for made in study.comparisons
        if not made.identical
    ]


def _contexts(study: Study) -> list[Context]:
    found = dict.fromkeys(context for made in study.comparisons for context in made.by_setting)
    return sorted(found, key=lambda context: sortable(context.values))


def troubles(study: Study) -> list[list[str]]:
    """(run, status, reason) of every run that is not ok."""
    return [[row.name, row.status, row.reason] for row in study.rows if not row.ok]


def print_study(study: Study, *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Ranking, comparison and troubles on a terminal; plain text elsewhere. At most 40 rows of each."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, width=width, highlight=False)
    if not console.is_terminal and width is None:
        console.width = 120
    console.print(Text(lead(study), style="bold"))
    console.print(Text(headline(study)))
    if study.settings and study.keys:
        _print(console, ranking_header(study), ranking(study), len(_ranking_keys(study)))
    if ties(study):
        console.print(Text(ties(study)))
    if study.comparisons:
        _print(console, comparison_header(study), comparison(study))
        if by_setting(study):
            _print_parts(console, by_setting_header(study), by_setting(study))
        console.print(Text(basis(study), style="dim"))
    if troubles(study):
        _print(console, ["run", "status", "reason"], troubles(study))
    for what, text in origin(study):
        console.print(Text(f"{what}: {text}", style="dim"))


def runs_csv(study: Study) -> str:
    """One line a run: name, status, reason, the settings that varied, the seed, every metric. Numbers unrounded."""
    keys = [*study.keys, SEED]
    lines = [["run", "status", "reason", *map(_cell, (*keys, *study.metrics))]]
    lines.extend(
        [
            [_cell(row.name), _cell(row.status), _cell(row.reason)]
            + [_cell(row.settings.get(key)) for key in keys]
            + [_cell(row.result.get(metric)) for metric in study.metrics]
            for row in study.rows
        ]
    )
    return _csv(lines)


def settings_csv(study: Study) -> str:
    """One line a setting: rank, settings, number of runs, then mean and half-width of every metric. Unrounded."""
    heads = [_cell(name) for metric in study.metrics for name in (metric, f"{metric}_ci95")]
    lines = [["rank", *map(_cell, study.keys), "runs", *heads]]
    for rank, setting in study.ranked_with_ties:
        means = [setting.means.get(metric) for metric in study.metrics]
        numbers = [cell for m in means for cell in ((_cell(m.value), _cell(m.half_width)) if m else ("", ""))]
        lines.append([str(rank), *map(_cell, setting.values), str(len(setting.runs)), *numbers])
    return _csv(lines)


def latex(study: Study, title: str) -> str:
    """The ranking, and the comparison where there is one, as tables for `\\usepackage{booktabs}`."""
    note = escape_latex("means over seeds, with 95 % intervals where seeds differ")
    parts = [_tabular(ranking_header(study), ranking(study, between=" $\\pm$ "), f"{escape_latex(title)}: {note}")]
    if study.comparisons:
        caption = escape_latex(f"{title}: {title_of(study.metric)} against {study.baseline}. {basis(study)}")
        parts.append(_tabular(comparison_header(study), comparison(study), caption))
    return "% \\usepackage{booktabs}\n" + "\n".join(parts)


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_LATEX.get(character, character) for character in text)


def is_numeric_column(rows: Sequence[Sequence[str]], index: int) -> bool:
    """Whether all cells begin like numbers: such columns stand right."""
    return all(_NUMERIC.match(row[index]) for row in rows)


def _tabular(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    columns = "".join("r" if is_numeric_column(rows, index) else "l" for index in range(len(header)))
    body = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in rows]
    lines = [
        r"\begin{table}", r"  \centering", rf"  \caption{{{caption}}}", rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule", "    " + " & ".join(map(escape_latex, header)) + r" \\", r"    \midrule",
        *(f"    {line}" for line in body), r"    \bottomrule", r"  \end{tabular}", r"\end{table}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _latex_cell(cell: str) -> str:
    return " $\\pm$ ".join(escape_latex(part) for part in cell.split(" $\\pm$ "))


def _csv(lines: Sequence[Sequence[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _cell(value: Any) -> str:
    """Numbers as they are; text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value) if is_number(value) else ""
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _print(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int = 0) -> None:
    """A table; with `num_keys` leading keys after the rank, columns that do not fit are left out."""
    shown = _fitting(header, rows, console.width, num_keys) if num_keys else list(range(len(header)))
    _print_columns(console, header, rows, shown)
    if len(rows) > _MOST_ROWS:
        console.print(f"and {len(rows) - _MOST_ROWS} more rows in the report's files")


def _print_parts(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A wide table as several below each other, each with the first column, which names the rows."""
    widths = _widths(header, rows)
    part = [0]
    for index in range(1, len(header)):
        if len(part) > 1 and sum(widths[i] for i in (*part, index)) > console.width:
            _print_columns(console, header, rows, part)
            part = [0]
        part.append(index)
    _print_columns(console, header, rows, part)


def _print_columns(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table: Table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index in shown:
        right = is_numeric_column(rows, index)
        whole = right or header[0] == "rank"
        justify: Literal["right", "left"] = "right" if right else "left"
        least = None if index else min(_LONGEST_NAME, max(len(row[0]) for row in rows))  # names never give way
        table.add_column(Text(header[index]), justify=justify, no_wrap=whole, overflow="fold", min_width=least)
    for row in [[row[index] for index in shown] for row in rows[:_MOST_ROWS]]:
        table.add_row(*(Text(cell, style="bold" if row[0] == "1" and header[0] == "rank" else "") for cell in row))
    console.print(table)


def _fitting(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, num_keys: int) -> list[int]:
    """The columns that fit side by side, the last metrics left out first; the ranked one always stays."""
    widths = _widths(header, rows)
    least = num_keys + 2
    count = len(header)
    while count > least and sum(widths[:count]) > width:
        count -= 1
    return list(range(min(count, len(header))))


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(name), *(len(row[index]) for row in rows)) + 2 for index, name in enumerate(header)]
