"""A report's files: written whole at the end of a sweep, and whenever asked; one is an HTML page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from framework import registry
from framework.files.atomic import require_new, write_json, write_text
from framework.interfaces.tracker import Tracker
from framework.registry.components import build_component
from framework.results.catalogue import sections
from framework.results.catalogue import title as title_of
from framework.results.console import Table, lines, new_console, print_table
from framework.results.layout import REPORT
from framework_report.figures.style import FORMATS, as_svg, save_plot
from framework_report.plots import Plot, pictures_of, plots_of
from framework_report.records import Run, collect, config_of, read_trials
from framework_report.study import Study
from framework_report.tables import (
    by_setting,
    comparison,
    headline,
    lead,
    number,
    origin,
    ranking,
    runs_csv,
    settings_csv,
    tables_of,
    troubles,
)

_LONG_TABLE = 40  # rows; then the plots come first
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$",
}  # fmt: skip
_LATEX_MARKS = {
    "block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<", "variable_end_string": ">>",
    "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip


def page(study: Study, plots: Sequence[Plot], pictures: Sequence[Plot], *, title: str) -> str:
    """The whole page as text.

    Args:
        plots: of the study, open.
        pictures: of single runs, below them.
    """
    alone = study.good[0] if len(study.good) == 1 else None
    return _template("page.html.j2", autoescape=True).render(
        title=title,
        lead=lead(study),
        headline=headline(study),
        origin=[*origin(study)],
        tables=[*(_of_run(alone) if alone is not None else [ranking(study)]), comparison(study), by_setting(study)],
        plots=plots,
        plots_first=len(study.settings) > _LONG_TABLE,
        further=[troubles(study), *(made(study) for made in map(resolve_name, registry.declared("tables")))],
        pictures=pictures,
        constant=[(key, number(value)) for key, value in sorted(study.constant.items()) if value is not None],
        searched=study.trials is not None,
    )


def _of_run(run: Run) -> list[Table]:
    """Everything that one run measured, by section, as at its end on the console."""
    parts = ((section, [[metric.title, text] for metric, text in lines(run.result, section)]) for section in sections())
    return [Table(section[0].upper() + section[1:], ["", ""], rows) for section, rows in parts]


def latex(study: Study, title: str) -> str:
    """The ranking, and the comparison where there is one, as tables for `\\usepackage{booktabs}`."""
    tables = [(f"{title}: means over seeds, with 95 % intervals where seeds differ", ranking(study))]
    if study.comparisons:
        table = comparison(study)
        tables.append((f"{title}: {title_of(study.metric)} against {study.baseline}. {table.note}", table))
    return _template("report.tex.j2", finalize=escape_latex, **_LATEX_MARKS).render(tables=tables)


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_LATEX.get(character, character) for character in text)


def _template(name: str, **options: Any) -> Template:
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options)
    made.filters["svg"] = as_svg
    return made.get_template(name)


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
    trackers = (config_of(run.path).get("tracker") for run in study.rows)
    return next((dict(tracker) for tracker in trackers if isinstance(tracker, Mapping)), {})
