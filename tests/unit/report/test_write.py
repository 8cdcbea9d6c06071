"""The files of a report: CSV unrounded, LaTeX escaped, the same from the same runs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from framework.errors import ConfigError
from framework.report.study import Study
from framework.report.tables import escape_latex, latex, runs_csv, settings_csv
from framework.report.write import write_report
from framework.results.records import collect


def test_the_csv_files_hold_every_run_and_setting_unrounded(sweep: Path) -> None:
    study = Study(collect([sweep]))
    rows = list(csv.DictReader(io.StringIO(runs_csv(study))))
    assert len(rows) == 14
    for row in rows:
        if row["status"] == "ok":
            result = json.loads((sweep / row["run"] / "result.json").read_text())
            assert float(row["hit_rate"]) == result["hit_rate"]
    settings = list(csv.DictReader(io.StringIO(settings_csv(study))))
    assert [row["rank"] for row in settings] == ["1", "2", "1", "2"]
    assert float(settings[0]["hit_rate"]) == study.ranked[0][1].means["hit_rate"].value


def test_the_latex_has_whole_tables_and_escapes_what_latex_reads(sweep: Path) -> None:
    text = latex(Study(collect([sweep])), "50% of a_b & {c}")
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 2, text
    assert r"50\% of a\_b \& \{c\}" in text
    for body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        lines = [line for line in body[1].splitlines() if line.rstrip().endswith(r"\\")]
        assert all(len(re.findall(r"(?<!\\)&", line)) == len(body[0]) - 1 for line in lines), body
        assert all(rule in body[1] for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert escape_latex("\\~^") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}"


def test_the_same_runs_make_the_same_files(sweep: Path, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        report = write_report([sweep], tmp_path / "out")
        texts.append([path.read_bytes() for path in report.files])
    assert texts[0] == texts[1]


def test_a_foreign_file_is_not_replaced_by_a_report_and_a_report_is(sweep: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "runs.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"runs\.csv exists already"):
        write_report([sweep], there)
    assert [(path.name, path.read_text()) for path in there.iterdir()] == [("runs.csv", "mine")]
    write_report([sweep], there, force=True)
    assert (there / "runs.csv").read_text() != "mine"
    write_report([sweep], there)
