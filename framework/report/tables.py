"""A study as text: on the console, as CSV, as LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

from framework.report.compare import FEW_PAIRS, Mean
from framework.report.study import SEED, Comparison, Study

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MOST_ROWS = 40
_NUMERIC = re.compile(r"^(-|[<+-]?\d[\d.,e+-]*(( ± | \$\\pm\$ | to )[+-]?\d[\d.,e+-]*)?)$")
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


def mean(value: Mean | None, between: str = " ± ") -> str:
    """`0.4321 ± 0.0012`; the half-width only where there are several runs."""
    if value is None:
        return "-"
    return number(value.value) + ("" if value.half_width is None else between + _short(value.half_width))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def headline(study: Study) -> str:
    """One line: how many runs, what became of them, ranked by what."""
    counts: dict[str, int] = {}
    for row in study.rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    states = ", ".join(f"{count} {status}" for status, count in counts.items())
    ranked = f"; ranked by {study.metric}, {'higher' if study.higher_is_better else 'lower'} is better"
    return f"{len(study.rows)} run{'s' if len(study.rows) != 1 else ''} ({states}){ranked if study.metric else ''}"


def ranking_header(study: Study) -> list[str]:
    """Column names of `ranking`."""
    return ["rank", *study.keys, "runs", *study.shown_metrics]


def ranking(study: Study, between: str = " ± ") -> list[list[str]]:
    """One row a setting, best first within equal other settings."""
    return [
        [
            str(rank),
            *(number(value) for value in setting.values),
            str(len(setting.runs)),
            *(mean(setting.means.get(metric), between) for metric in study.shown_metrics),
        ]
        for rank, setting in study.ranked
    ]


def comparison_header(study: Study) -> list[str]:
    """Column names of `comparison`."""
    return [f"{study.baseline_key} against {study.baseline}", "difference", "95 % interval", "pairs", "p", "verdict"]


def comparison(study: Study) -> list[list[str]]:
    """One row a value of the compared key, best first."""
    return [
        [
            str(entry.challenger),
            f"{entry.difference.mean:+.4g}",
            f"{entry.difference.low:+.4g} to {entry.difference.high:+.4g}",
            str(entry.difference.pairs),
            _p_value(entry),
            entry.verdict,
        ]
        for entry in study.comparisons
    ]


def _p_value(entry: Comparison) -> str:
    if entry.difference.pairs < FEW_PAIRS:
        return "-"
    return "<0.001" if entry.p_adjusted < 0.001 else f"{entry.p_adjusted:.3f}"


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
    console.print(Text(headline(study), style="bold"))
    if study.trials is not None:
        from framework.report.trials import sentence

        console.print(Text(sentence(study.trials)), soft_wrap=True)
    if study.settings and study.keys:
        _print(console, ranking_header(study), ranking(study))
    elif study.settings:
        console.print(
            ", ".join(f"{metric} {mean(study.settings[0].means.get(metric))}" for metric in study.metrics[:6])
        )
    if study.comparisons:
        _print(console, comparison_header(study), comparison(study))
    if troubles(study):
        _print(console, ["run", "status", "reason"], troubles(study))


def runs_csv(study: Study) -> str:
    """One line a run: name, status, reason, the settings that varied, the seed, every metric. Numbers unrounded."""
    keys = [*study.keys, SEED]
    lines = [["run", "status", "reason", *keys, *study.metrics]]
    lines.extend(
        [
            [row.name, row.status, row.reason]
            + [_cell(row.settings.get(key)) for key in keys]
            + [_cell(row.result.get(metric)) for metric in study.metrics]
            for row in study.rows
        ]
    )
    return _csv(lines)


def settings_csv(study: Study) -> str:
    """One line a setting: rank, settings, number of runs, then mean and half-width of every metric. Unrounded."""
    columns = [name for metric in study.metrics for name in (metric, f"{metric}_ci95")]
    lines = [["rank", *study.keys, "runs", *columns]]
    for rank, setting in study.ranked:
        means = [setting.means.get(metric) for metric in study.metrics]
        numbers = [cell for m in means for cell in ((_cell(m.value), _cell(m.half_width)) if m else ("", ""))]
        lines.append([str(rank), *map(_cell, setting.values), str(len(setting.runs)), *numbers])
    return _csv(lines)


def latex(study: Study, title: str) -> str:
    """The ranking, and the comparison where there is one, as tables for `\\usepackage{booktabs}`."""
    note = "means over seeds with 95\\% intervals"
    parts = [_tabular(ranking_header(study), ranking(study, between=" $\\pm$ "), f"{escape_latex(title)}: {note}")]
    if study.comparisons:
        caption = f"{escape_latex(title)}: paired bootstrap on {escape_latex(study.metric)}, p adjusted by Holm"
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
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _print(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table: Table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = _fitting(header, rows, console.width) if header[0] == "rank" else list(range(len(header)))
    for index in shown:
        right = is_numeric_column(rows, index)
        whole = right or header[0] == "rank"
        justify: Literal["right", "left"] = "right" if right else "left"
        table.add_column(Text(header[index]), justify=justify, no_wrap=whole, overflow="fold")
    for row in [[row[index] for index in shown] for row in rows[:_MOST_ROWS]]:
        table.add_row(*(Text(cell, style="bold" if row[0] == "1" and header[0] == "rank" else "") for cell in row))
    console.print(table)
    if len(rows) > _MOST_ROWS:
        console.print(f"and {len(rows) - _MOST_ROWS} more rows in the report's files")


def _fitting(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that fit side by side, the last metrics left out first; the ranked one always stays."""
    widths = [max(len(name), *(len(row[index]) for row in rows)) + 2 for index, name in enumerate(header)]
    least = header.index("runs") + 2
    count = len(header)
    while count > least and sum(widths[:count]) > width:
        count -= 1
    return list(range(min(count, len(header))))
