"""A report's files: written whole at the end of a sweep, and whenever asked; one is an HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any

from framework import registry
from framework.errors import RunDirectoryError
from framework.files.atomic import require_new, write_json, write_text
from framework.files.lines import require_file
from framework.interfaces.tracker import Tracker
from framework.registry.components import build_component
from framework.results.catalogue import sections
from framework.results.catalogue import title as title_of
from framework.results.console import Table, lines, new_console, print_table
from framework.results.layout import CONFIG, REPORT
from framework.results.records import Run, collect
from framework_report.figures.style import FORMATS, as_svg, save_plot
from framework_report.plots import Plot, pictures_of, plots_of
from framework_report.sentences import headline, lead, origin
from framework_report.study import Study
from framework_report.tables import (
    by_setting,
    comparison,
    number,
    ranking,
    runs_csv,
    settings_csv,
    tables_of,
    troubles,
)
from framework_report.trials import read_trials

_LONG_TABLE = 40  # rows; then the plots come first
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$",
}  # fmt: skip
_CSS = """
:root { color-scheme: light dark; --ink: CanvasText; --mark: light-dark(#0072b2, #56b4e9);
  --soft: color-mix(in srgb, CanvasText 65%, Canvas); --line: color-mix(in srgb, CanvasText 20%, Canvas); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; max-width: 46rem; }
.best { border-left: 3px solid var(--mark); padding-left: .7rem; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; min-width: 60%; }
th { text-align: left; border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); vertical-align: top; }
th, td { padding: .35rem .7rem .35rem 0; }
td { overflow-wrap: anywhere; min-width: 5rem; }
.right { text-align: right; white-space: nowrap; min-width: 0; }
th.right { white-space: normal; }
tr.first td { font-weight: 600; }
tr.first td:first-child { border-left: 3px solid var(--mark); padding-left: .4rem; }
tr:not(.first) td:first-child, th:first-child { padding-left: calc(.4rem + 3px); }
figure { margin: 1rem 0 2rem; break-inside: avoid; }
figure svg { display: block; width: 100%; max-width: 38rem; height: auto; color: var(--ink);
  font-family: inherit; }
figcaption strong { color: var(--ink); display: block; font-size: .95rem; overflow-wrap: anywhere; }
summary { cursor: pointer; margin: 2.2rem 0 .6rem; font-size: 1.15rem; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .875rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: 1rem .75rem 3rem; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .35rem; } }
@media print {
  :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 8pt; } .wide { overflow: visible; }
  details::details-content { content-visibility: visible; block-size: auto; }
  figure svg { max-width: 15cm; min-width: 0; } thead { display: table-header-group; } tr { break-inside: avoid; }
  h2 { break-after: avoid; } @page { margin: 15mm; } }
"""


def page(study: Study, plots: Sequence[Plot], pictures: Sequence[Plot], *, title: str) -> str:
    """The whole page as text. Everything is inlined: it can be mailed, archived and opened without a network.

    Args:
        plots: of the study, open.
        pictures: of single runs, below them.
    """
    alone = study.good[0] if len(study.good) == 1 else None
    tables = [*(_of_run(alone) if alone is not None else [ranking(study)]), comparison(study), by_setting(study)]
    findings = ["".join(map(_table, tables)), _section("Plots", plots)]
    ranks = "" if study.trials is not None else "Ranks count within equal other settings. "
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p class=best>{_text(lead(study))}.</p>",
        f"<p>{_text(headline(study))}.</p>",
        _definitions(origin(study)),
        *(reversed(findings) if len(study.settings) > _LONG_TABLE else findings),
        _table(troubles(study)),
        *(_table(made(study)) for made in map(resolve_name, registry.declared("tables"))),
        _section("Inside single runs", pictures),
        "<details><summary>The same in all runs</summary>",
        _definitions((key, number(value)) for key, value in sorted(study.constant.items()) if value is not None),
        "</details><h2>How to read this</h2>",
        "<p class=soft>Intervals of means are 95 %, by Student's t over seeds; runs that are copies of each other have "
        f"none. {ranks}Every number is defined in docs/results.md.</p>",
    ]
    body = "\n".join(part for part in parts if part)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_CSS}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n'


def _of_run(run: Run) -> list[Table]:
    """Everything that one run measured, by section, as at its end on the console."""
    found = ((section, [[metric.title, text] for metric, text in lines(run.result, section)]) for section in sections())
    return [Table(section[0].upper() + section[1:], ["", ""], rows) for section, rows in found]


def _definitions(entries: Iterable[tuple[str, str]]) -> str:
    found = "".join(f"<dt>{_text(what)}</dt><dd>{_text(text)}</dd>" for what, text in entries)
    return f"<dl>{found}</dl>" if found else ""


def _section(heading: str, plots: Sequence[Plot]) -> str:
    figures = [
        f"<figure><figcaption><strong>{_text(plot.title)}</strong>{_text(plot.note)}</figcaption>"
        f"<div class=wide>{as_svg(plot.figure, plot.title)}</div></figure>"
        for plot in plots
    ]
    return f"<h2>{heading}</h2>" + "\n".join(figures) if figures else ""


def _table(table: Table) -> str:
    """With its heading and its note; empty without rows."""
    if not table.rows:
        return ""
    kinds = [' class="right"' if table.is_numeric(index) else "" for index in range(len(table.header))]
    head = "".join(f'<th scope="col"{kind}>{_text(name)}</th>' for kind, name in zip(kinds, table.header, strict=True))
    rows = []
    for row in table.rows:
        mark = ' class="first"' if table.header[0] == "rank" and row[0] == "1" else ""
        cells = "".join(f"<td{kind}>{_text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        rows.append(f"<tr{mark}>{cells}</tr>")
    note = f"<p class=soft>{_text(table.note)}</p>" if table.note else ""
    return (
        f"<h2>{_text(table.heading)}</h2>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{note}'
    )


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def latex(study: Study, title: str) -> str:
    """The ranking, and the comparison where there is one, as tables for `\\usepackage{booktabs}`."""
    note = "means over seeds, with 95 % intervals where seeds differ"
    parts = [_tabular(ranking(study), f"{title}: {note}")]
    if study.comparisons:
        table = comparison(study)
        parts.append(_tabular(table, f"{title}: {title_of(study.metric)} against {study.baseline}. {table.note}"))
    return "% \\usepackage{booktabs}\n" + "\n".join(parts)


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_LATEX.get(character, character) for character in text)


def _tabular(table: Table, caption: str) -> str:
    columns = "".join("r" if table.is_numeric(index) else "l" for index in range(len(table.header)))
    head, *body = [" & ".join(map(escape_latex, row)) + r" \\" for row in (table.header, *table.rows)]
    lines = [
        r"\begin{table}", r"  \centering", rf"  \caption{{{escape_latex(caption)}}}",
        rf"  \begin{{tabular}}{{{columns}}}", r"    \toprule", f"    {head}", r"    \midrule",
        *(f"    {line}" for line in body), r"    \bottomrule", r"  \end{tabular}", r"\end{table}", "",
    ]  # fmt: skip
    return "\n".join(lines)


PAGE, RUNS, SETTINGS, LATEX = "report.html", "runs.csv", "settings.csv", "report.tex"
FIGURES = "figures"
_MOST_NAMES, _LONGEST_NAME = 3, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written.

    Attributes:
        study: what it is about.
        files: in the order page, runs, settings, LaTeX.
    """

    study: Study
    files: tuple[Path, ...]


def write_report(
    folders: Sequence[str | Path],
    to: str | Path,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    force: bool = False,
) -> Report:
    """Read the runs below `folders`, write page, CSV, LaTeX and `figures/` into `to`.

    Args:
        metric, baseline: see Study.
        force: write over files of these names that are no report's.

    Each figure of the page also lies in `figures/` as PDF, SVG and PNG.

    Raises:
        ConfigError: no run there, no such metric or baseline, or a file of these names that is no report's.
        OSError: `to` cannot be written.
    """
    trials = read_trials(Path(folders[0])) if len(folders) == 1 else None
    study = Study(collect(folders), metric=metric, baseline=baseline, trials=trials)
    title, target = _title(folders), Path(to)
    if not force and not (target / REPORT).is_file():
        require_new(*(target / name for name in (PAGE, RUNS, SETTINGS, LATEX)), *(target / FIGURES).glob("*"))
    target.mkdir(parents=True, exist_ok=True)
    plots, pictures = plots_of(study), pictures_of(study)
    texts = {
        PAGE: page(study, plots, pictures, title=title),
        RUNS: runs_csv(study),
        SETTINGS: settings_csv(study),
        LATEX: latex(study, title),
    }
    write_json(target / REPORT, {"files": list(texts)})
    for name, text in texts.items():
        write_text(target / name, text.encode("utf-8", "replace").decode())
    for plot in (*plots, *pictures):
        _write_figure(plot, target / FIGURES)
    return Report(study=study, files=tuple(target / name for name in texts))


def _title(folders: Sequence[str | Path]) -> str:
    """One line: the folders' names, of many the first."""
    names = [Path(folder).resolve().name for folder in folders]
    names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _write_figure(plot: Plot, folder: Path) -> None:
    """A file in each format, for a paper or a slide."""
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", plot.name)
    folder.mkdir(exist_ok=True)
    for suffix in FORMATS:
        save_plot(plot.figure, folder / f"{name}{suffix}")


def print_study(study: Study, *, file: IO[str] | None = None, width: int | None = None) -> None:
    """The finding, the tables (at most 40 rows of each), what they rest on and where the runs come from."""
    from rich.text import Text

    console = new_console(file, width, default=120)
    console.print(Text(lead(study), style="bold"))
    console.print(Text(headline(study)))
    for table in tables_of(study):
        print_table(console, table)
        if table.note:
            console.print(Text(table.note, style="dim"))
    for what, text in origin(study):
        console.print(Text(f"{what}: {text}", style="dim"))


def publish(report: Report, folder: Path) -> None:
    """Give a report to the tracker of the runs in `folder`, if they had one."""
    if tracker := _tracker_of(report.study):
        made: Tracker = build_component("tracker", tracker, {})
        made.publish(report.files, folder)


def _tracker_of(study: Study) -> dict[str, Any]:
    """The tracker that the runs of a study had; empty where none was configured."""
    import yaml

    for row in study.rows:
        try:
            require_file(row.path / CONFIG, RunDirectoryError)
            config = yaml.safe_load((row.path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(config, dict) and isinstance(config.get("tracker"), dict):
            return dict(config["tracker"])
    return {}
