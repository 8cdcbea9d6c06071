"""A report's files, and its page."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import make_sweep

from framework.errors import ConfigError
from framework_report.records import collect
from framework_report.study import Study
from framework_report.tables import runs_csv, settings_csv
from framework_report.write import escape_latex, latex, write_report


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
    mine = tmp_path / "there" / "figures" / "differences.pdf"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=rf"{mine.name} exists already"):
        write_report([sweep], tmp_path / "there")
    assert mine.read_text() == "mine"
    assert [path for path in (tmp_path / "there").rglob("*") if path.is_file()] == [mine]
    write_report([sweep], tmp_path / "there", force=True)
    assert mine.read_bytes() != b"mine"
    write_report([sweep], tmp_path / "there")


class _Page(HTMLParser):
    """Collects tags and attributes, and that elements close in order."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "circle", "line", "polygon", "image"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for key, value in attributes:
            if key in ("src", "href", "xlink:href", "data", "poster", "action", "srcset"):
                self.references.append(str(value))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, (tag, self.open[-3:])


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of one sweep, drawn once."""
    folder = tmp_path_factory.mktemp("example")
    write_report([make_sweep(folder)], folder / "out")
    return (folder / "out" / "report.html").read_text()


def test_the_page_needs_nothing_from_outside(example: str) -> None:
    page = _Page()
    page.feed(example)
    assert page.open == []
    assert all(reference.startswith("#") for reference in page.references), page.references
    assert not {"script", "link", "iframe", "object", "embed", "img"} & set(page.tags)
    assert "@import" not in example
    assert not re.search(r"url\((?!['\"]?#)", example)
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\s\"'<>)]+", example)) <= namespaces


def test_the_page_shows_every_part(example: str) -> None:
    for heading in ("Ranking", "Against lru", "Plots", "Inside single runs", "Runs that did not end well"):
        assert heading in example, heading
    for title in ("hit rate over capacity (blocks)", "hit rate against lru", "Latency over throughput",
                  "Memory over time", "Block map", "Fork tree"):  # fmt: skip
        assert title in example, title
    for layer in ("live", "internal", "reserved", "external", "cached, idle", "free"):
        assert f">{layer}<" in example, layer


def test_the_page_escapes_what_a_run_says(example: str) -> None:
    assert "<script>" not in example
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in example
    assert "bad_&lt;b&gt;&amp;" in example


def test_the_page_suits_dark_rooms_phones_and_paper(example: str) -> None:
    for rule in ("color-scheme: light dark", "@media print", "@media (max-width", "width=device-width", "currentColor"):
        assert rule in example, rule
    assert "#010203" not in example
