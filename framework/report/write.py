"""A report's files: written whole at the end of a sweep, and whenever asked; one is an HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.figures.style import FORMATS, as_svg, save
from framework.files.atomic import require_new, write_json
from framework.report import misses, tables
from framework.report.console import lines
from framework.report.plots import Plot, pictures_of, plots_of
from framework.report.sentences import basis, lead, origin, ties
from framework.report.study import Study
from framework.report.tables import latex, print_study, runs_csv, settings_csv
from framework.report.trials import read_trials
from framework.results.catalogue import SECTIONS
from framework.results.layout import CONFIG, FAILURE, REPORT, RESULT
from framework.results.records import Run, collect

_MOST_EXPLAINED = 20
_LONG_TABLE = 40  # rows; then the plots come first
_CSS = """
:root { color-scheme: light dark; --ink: #1a1a1a; --page: #ffffff; --soft: #5a5a5a; --line: #d6d6d6; --band: #f4f4f2;
  --mark: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --page: #15171a; --soft: #a9adb2; --line: #3a3e44; --band: #1e2126; --mark: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; max-width: 46rem; }
.best { border-left: 3px solid var(--mark); padding-left: .7rem; overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); font-size: .875rem; }
.wide { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; min-width: 60%; }
th { text-align: left; border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); vertical-align: top; }
th, td { padding: .35rem .7rem .35rem 0; white-space: nowrap; }
.right { text-align: right; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
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
  dd { margin-bottom: .35rem; } td.long { min-width: 9rem; } }
@media print {
  :root { color-scheme: light; --ink: #000; --page: #fff; --soft: #444; --line: #bbb; --band: #fff; --mark: #000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 8pt; } .wide { overflow: visible; }
  th, td { white-space: normal; overflow-wrap: break-word; padding-right: .5rem; }
  td.right { white-space: nowrap; }
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
    findings = [_ranking(study), _comparison(study), _section("Plots", plots)]
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p class=best>{_text(lead(study))}.</p>",
        f"<p>{_text(tables.headline(study))}.</p>",
        _origin(study),
        *(reversed(findings) if len(study.settings) > _LONG_TABLE else findings),
        _troubles(study),
        _misses(study),
        _section("Inside single runs", pictures),
        _constant(study),
        _method(study),
    ]
    body = "\n".join(part for part in parts if part)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_CSS}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n'


def _origin(study: Study) -> str:
    entries = "".join(f"<dt>{_text(what)}</dt><dd>{_text(text)}</dd>" for what, text in origin(study))
    return f"<dl>{entries}</dl>" if entries else ""


def _ranking(study: Study) -> str:
    if not study.settings:
        return ""
    if len(study.good) == 1:
        return _result(study.good[0])
    table = _table(tables.ranking_header(study), tables.ranking(study), first=bool(study.keys), long=_tied(study))
    return "<h2>Ranking</h2>" + table + (f"<p class=soft>{_text(ties(study))}</p>" if ties(study) else "")


def _result(run: Run) -> str:
    """Everything that one run measured, by section, as at its end on the console."""
    parts = []
    for section in SECTIONS:
        rows = [[metric.title, text] for metric, text in lines(run.result, section)]
        if rows:
            parts.append(f"<h2>{_text(section[0].upper() + section[1:])}</h2>" + _table(["", ""], rows, long=(1,)))
    return "".join(parts)


def _tied(study: Study) -> tuple[int, ...]:
    return (1,) if study.compared_keys and any(value != leader for value, leader in study.ties.items()) else ()


def _comparison(study: Study) -> str:
    if not study.comparisons:
        return ""
    parts = [
        f"<h2>Against {_text(str(study.baseline))}</h2>",
        _table(tables.comparison_header(study), tables.comparison(study)),
        f"<p class=soft>{_text(basis(study))}</p>",
    ]
    if rows := tables.by_setting(study):
        parts += ["<h2>Difference in each setting</h2>", _table(tables.by_setting_header(study), rows)]
    return "".join(parts)


def _troubles(study: Study) -> str:
    rows = tables.troubles(study)
    if not rows:
        return ""
    return "<h2>Runs that did not end well</h2>" + _table(["run", "status", "reason"], rows, long=(0, 2))


def _misses(study: Study) -> str:
    """What the runs with run.explain=true missed, and why: a row for each, and the sentence of the best."""
    rows = [(run, misses.counts_of(run.result)) for _, setting in study.ranked for run in setting.runs[:1]]
    rows = [(run, counts) for run, counts in rows[:_MOST_EXPLAINED] if counts]
    if not rows:
        return ""
    shown = [outcome for outcome in rows[0][1] if any(counts[outcome] for _, counts in rows)]
    cells = []
    for run, counts in rows:
        whole = max(1, sum(counts.values()))
        cells.append([run.name, *(f"{100 * counts[outcome] / whole:.1f}" for outcome in shown)])
    said = misses.sentence_of(rows[0][0].path)
    return (
        "<h2>Why prompt tokens were missed</h2>"
        + (f"<p>{_text(rows[0][0].name)}: {_text(said)}.</p>" if said else "")
        + _table(["% of prompt tokens", *shown], cells, long=(0,))
    )


def _section(heading: str, plots: Sequence[Plot]) -> str:
    if not plots:
        return ""
    return f"<h2>{heading}</h2>" + "\n".join(_figure(plot) for plot in plots)


def _figure(plot: Plot) -> str:
    svg = as_svg(plot.figure, plot.title)
    caption = f"<figcaption><strong>{_text(plot.title)}</strong>{_text(plot.note)}</figcaption>"
    return f"<figure>{caption}<div class=wide>{svg}</div></figure>"


def _constant(study: Study) -> str:
    entries = "".join(
        f"<dt>{_text(key)}</dt><dd>{_text(tables.number(value))}</dd>"
        for key, value in sorted(study.constant.items())
        if value is not None
    )
    return f"<details><summary>The same in all runs</summary><dl>{entries}</dl></details>" if entries else ""


def _method(study: Study) -> str:
    ranks = "" if study.trials is not None else "Ranks count within equal other settings. "
    return (
        "<h2>How to read this</h2><p class=soft>Intervals of means are 95 %, by Student's t over seeds; runs that are "
        f"copies of each other have none. {ranks}Every number is defined in docs/results.md.</p>"
    )


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, first: bool = False, long: Sequence[int] = ()
) -> str:
    right = [tables.is_numeric_column(rows, index) for index in range(len(header))]
    head = "".join(f'<th scope="col"{_class(right[i], i in long)}>{_text(name)}</th>' for i, name in enumerate(header))
    lines = []
    for row in rows:
        mark = ' class="first"' if first and row[0] == "1" else ""
        cells = "".join(f"<td{_class(right[i], i in long)}>{_text(cell)}</td>" for i, cell in enumerate(row))
        lines.append(f"<tr{mark}>{cells}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _class(right: bool, long: bool) -> str:
    return ' class="right"' if right else ' class="long"' if long else ""


def _text(text: str) -> str:
    return html.escape(text, quote=True)


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
    title: str | None = None,
    force: bool = False,
) -> Report:
    """Read the runs below `folders`, write page, CSV, LaTeX and `figures/` into `to`.

    Args:
        metric, baseline: see Study.
        title: of the page; default the folders' names.
        force: write over files of these names that are no report's.

    Each figure of the page also lies in `figures/` as PDF, SVG and PNG.

    Raises:
        ConfigError: no run there, no such metric or baseline, or a file of these names that is no report's.
        OSError: `to` cannot be written.
    """
    trials = read_trials(Path(folders[0])) if len(folders) == 1 else None
    study = Study(collect(folders), metric=metric, baseline=baseline, trials=trials)
    title = title or _title(folders)
    target = Path(to)
    if not force and not (target / REPORT).is_file():
        for path in (*(target / name for name in (PAGE, RUNS, SETTINGS, LATEX)), *(target / FIGURES).glob("*")):
            require_new(path)
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
        temporary = target / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        temporary.replace(target / name)
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
        temporary = folder / f".{name}.tmp{suffix}"
        save(plot.figure, temporary)
        temporary.replace(folder / f"{name}{suffix}")


def report_sweep(folder: Path) -> Report | None:
    """The report a sweep ends with, beside its jobs and on the console; None where no job left anything."""
    if not any(next(folder.glob(f"*/{name}"), None) for name in (RESULT, FAILURE)):
        return None
    report = write_report([folder], folder)
    print_study(report.study)
    print(f"report in {report.files[0]}")  # noqa: T201
    tracker = _tracker_of(report.study)
    if tracker.get("name") == "wandb":
        from framework.tracking.wandb import publish_report

        publish_report(folder, report.files, tracker, folder.name)
    return report


def _tracker_of(study: Study) -> dict[str, Any]:
    """The tracker that the runs of a study had; empty where none was configured."""
    import yaml

    for row in study.rows:
        try:
            config = yaml.safe_load((row.path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(config, dict) and isinstance(config.get("tracker"), dict):
            return dict(config["tracker"])
    return {}
