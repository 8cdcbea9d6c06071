"""A report's files: written whole at the end of a sweep, and whenever asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.figures.style import FORMATS, save
from framework.files.atomic import require_new, write_json
from framework.report.page import page
from framework.report.plots import Plot, pictures_of, plots_of
from framework.report.study import Study
from framework.report.tables import latex, print_study, runs_csv, settings_csv
from framework.report.trials import read_trials
from framework.results.layout import CONFIG, FAILURE, REPORT, RESULT
from framework.results.records import collect

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
