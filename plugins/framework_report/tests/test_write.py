"""A report's files and its page: what is in them, what they need, and whatever a run left there."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_runs import make_run, make_sweep

from framework.errors import ConfigError
from framework.results.catalogue import catalogue
from framework.results.console import print_result
from framework_report.records import collect
from framework_report.study import Study
from framework_report.tables import runs_csv, settings_csv
from framework_report.write import escape_latex, latex, print_study, write_report

main = command("report")


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


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep and its report, made once: `sw` and `out`."""
    folder = tmp_path_factory.mktemp("example")
    write_report([make_sweep(folder)], folder / "out")
    return folder


@pytest.fixture
def example(written: Path) -> str:
    """The page."""
    return (written / "out" / "report.html").read_text()


def test_a_foreign_file_is_not_replaced_by_a_report_and_the_same_runs_make_the_same_files(
    written: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "there" / "figures" / "differences.pdf"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=rf"{mine.name} exists already"):
        write_report([written / "sw"], tmp_path / "there")
    assert mine.read_text() == "mine"
    assert [path for path in (tmp_path / "there").rglob("*") if path.is_file()] == [mine]
    made = write_report([written / "sw"], tmp_path / "there", force=True)
    assert mine.read_bytes() != b"mine"
    for path in made.files:
        assert path.read_bytes() == (written / "out" / path.name).read_bytes(), path


def test_one_run_alone_and_a_sweep_of_failures_are_reports_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "one", result={"hit_rate": 0.5}, events=True)
    for _ in range(2):  # a report is replaced without being asked
        assert main([str(tmp_path / "one")]) == 0
    assert "1 run (1 ok); ranked by hit rate" in capsys.readouterr().out
    assert "Fork tree" in (tmp_path / "one" / "report.html").read_text()
    make_run(tmp_path / "bad" / "a", result=None)
    (tmp_path / "bad" / "a" / "failure.json").write_text('{"status": "unavailable", "reason": "no GPU"}')
    assert "no GPU" in write_report([tmp_path / "bad"], tmp_path / "out").files[0].read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "no folder 'nowhere'"),
        (["."], "no run below"),
        (["sw", "--to", ""], "--to names no folder"),
        (["sw", "--metric", "hit_rat"], "did you mean 'hit_rate'"),
        (["sw", "--baseline", "eviction=zzz"], "no good run has it"),
        (["sw", "--baseline", "hash=xxh64"], "did not vary"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    words: list[str],
    says: str,
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path if words == ["."] else written)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert says in err, err
    assert err.count("\n") == 1, err


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


NASTY = (r"$\frac{", "=1+1", "+1", "-2+3", "@SUM(A1)", "\tx", "_hidden", "a\x1bb", "<script>", "\ud800x", "中", "%d\\")


LINES = (
    "not json\n", '{"step": 1', '{"step": "a", "event": "evict", "block": "x"}\n' * 3, '{"live_slots": 1e400}\n' * 3,
    '{"event": "step", "step": 1, "sequences": 7}\n{"event": "fork"}\n', "[1]\n", '{"live_slots": ' + "9" * 401 + "}\n",
)  # fmt: skip


def test_a_damaged_log_or_a_pipe_costs_its_picture_and_no_more(tmp_path: Path) -> None:
    """Every pair of a file and what may be in it, and files that nobody ever writes to."""
    make_run(tmp_path / "lru", result={"hit_rate": 0.5}, eviction="lru", events=True)
    for number, text in enumerate(LINES):
        make_run(tmp_path / f"p{number}", result={"hit_rate": 0.4 - number / 100}, eviction=f"p{number}")
        for name in ("metrics.jsonl", "events.jsonl", "requests.jsonl"):
            (tmp_path / f"p{number}" / name).write_text(text)
    for name in ("result.json", "config.yaml", "provenance.json", "requests.jsonl"):
        make_run(tmp_path / f"pipe {name}", result={"hit_rate": 0.1}, eviction=f"pipe {name}")
        (tmp_path / f"pipe {name}" / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / f"pipe {name}" / name)
    page = write_report([tmp_path], tmp_path / "out").files[0].read_text()
    assert "lru leads" in page
    assert "Memory over time" in page
    assert all(f">p{number}<" in page for number in range(len(LINES)))


def test_a_full_disk_names_the_file_of_a_report_and_leaves_nothing_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", result={"hit_rate": 0.5}, eviction="lru")
    real, left = os.fsync, 1

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert main([str(tmp_path), "--to", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said == f"{tmp_path / 'out' / 'report.html'}: No space left on device\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".report"]


def test_settings_that_matplotlib_html_and_latex_would_read_stand_as_they_are(tmp_path: Path) -> None:
    for index, word in enumerate(NASTY):
        for num_blocks in (8, 16):
            make_run(
                tmp_path / f"{index}-{num_blocks}", result={"hit_rate": 0.1 * index}, eviction=word,
                num_blocks=num_blocks, events=index < 2 and num_blocks == 8,
            )  # fmt: skip
    page, runs, table, _ = (path.read_text() for path in write_report([tmp_path], tmp_path / "out").files)
    assert r"$\frac{" in page
    assert "<script>" not in page
    for text in (runs, table):
        for row in csv.reader(text.splitlines()):
            assert not [cell for cell in row if cell.startswith(("=", "+", "@", "\t", "-2"))], row
    assert "'=1+1" in runs


def test_negative_numbers_in_a_csv_stay_numbers(tmp_path: Path) -> None:
    for eviction, gap in (("lru", -0.25), ("fifo", 0.5)):
        make_run(tmp_path / eviction, result={"hit_rate": 0.1, "gap_to_optimum": gap}, eviction=eviction)
    rows = list(csv.DictReader(write_report([tmp_path], tmp_path / "out").files[1].read_text().splitlines()))
    assert sorted(row["gap_to_optimum"] for row in rows) == ["-0.25", "0.5"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**301) | st.floats() | st.text(max_size=8)
    | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from([*catalogue(), "eviction_x", "eviction_needs_future", "="])
CONFIG_KEYS = st.sampled_from(["mode", "seed", "eviction", "cache", "workload", "replay", "executor", "model", "$x$"])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    result=st.dictionaries(KEYS, JSON, max_size=6),
    config=st.dictionaries(CONFIG_KEYS, JSON, max_size=5),
    provenance=JSON,
)
def test_whatever_a_run_left_there_is_a_report(
    tmp_path_factory: pytest.TempPathFactory, result: dict[str, Any], config: dict[str, Any], provenance: Any
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    make_run(folder / "good", result={"hit_rate": 0.5})
    odd = folder / "odd"
    odd.mkdir()
    (odd / "result.json").write_text(json.dumps({"status": "ok", "hit_rate": 0.25, **result}))
    (odd / "config.yaml").write_text(yaml.safe_dump(config))
    (odd / "provenance.json").write_text(json.dumps(provenance))
    report = write_report([folder], folder / "out")
    assert {row.name for row in report.study.rows} == {"good", "odd"}
    assert "good" in report.files[1].read_text()
    alone = write_report([odd], folder / "alone")
    print_study(alone.study, file=io.StringIO(), width=100)
    print_result({**result, "mode": "serve"}, file=io.StringIO(), width=80)
