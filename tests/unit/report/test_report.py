"""Reports: what varied, who leads and by how much, and pages that need nothing but themselves."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.report.__main__ import main
from framework.report.plots import plots_of
from framework.report.study import Study
from framework.report.tables import escape_latex, latex, print_study, runs_csv, settings_csv
from framework.report.write import write_report
from framework.results.records import collect
from report.runs import make_run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two policies, two sizes, three seeds; fifo is 0.1 behind, give or take; one failed, one killed."""
    rng = np.random.default_rng(0)
    for eviction in ("lru", "fifo"):
        for num_blocks in (64, 1024):
            for seed in (0, 1, 2):
                base = 0.4 + num_blocks / 10_000 - (0.1 if eviction == "fifo" else 0.0)
                result = {
                    "hit_rate": base + float(rng.normal(0, 0.01)),
                    "output_tokens_per_s": 100.0 + seed,
                    "ttft_s_p95": 0.5 + 0.1 * seed,
                    "num_evictions": 7,
                    "clock": "wall",
                }
                name = f"{eviction}_{num_blocks}-{seed}"
                first = seed == 0 and num_blocks == 64
                make_run(
                    tmp_path / "sw" / name, result=result, eviction=eviction, num_blocks=num_blocks, seed=seed,
                    events=first,
                )  # fmt: skip
    make_run(tmp_path / "sw" / "killed", result=None, eviction="mru")
    (tmp_path / "sw" / "killed" / "metrics.jsonl").write_text("")
    bad = tmp_path / "sw" / "bad_<b>&"
    bad.mkdir()
    reason = "KeyError: 50% & <script>alert(1)</script> $x_1$"
    failure = {"status": "failed", "reason": reason, "overrides": ["eviction=sieve", "seed=0", "run.sweep=s"]}
    (bad / "failure.json").write_text(json.dumps(failure))
    return tmp_path / "sw"


def test_runs_are_found_with_their_state_settings_and_reason(sweep: Path) -> None:
    rows = {row.name: row for row in collect([sweep])}
    assert len(rows) == 14
    assert rows["lru_64-0"].settings["eviction"] == "lru"
    assert rows["lru_64-0"].settings["cache.num_blocks"] == 64
    assert not any(key.startswith(("run", "tracker")) for key in rows["lru_64-0"].settings)
    assert (rows["killed"].status, rows["killed"].settings["eviction"]) == ("unfinished", "mru")
    assert (rows["bad_<b>&"].status, rows["bad_<b>&"].settings) == ("failed", {"eviction": "sieve", "seed": 0})


def test_what_varied_is_found_and_seeds_become_means(sweep: Path) -> None:
    study = Study(collect([sweep]))
    assert study.keys == ["eviction", "cache.num_blocks"]
    assert study.constant["cache.block_size"] == 16
    assert [setting.values for setting in study.settings] == [("fifo", 64), ("fifo", 1024), ("lru", 64), ("lru", 1024)]
    for setting in study.settings:
        values = [run.result["hit_rate"] for run in setting.runs]
        mean = setting.means["hit_rate"]
        assert mean.value == pytest.approx(np.mean(values))
        assert mean.half_width == pytest.approx(4.303 * np.std(values, ddof=1) / np.sqrt(3))
    ranked = [(rank, setting.values) for rank, setting in study.ranked]
    assert ranked == [(1, ("lru", 64)), (2, ("fifo", 64)), (1, ("lru", 1024)), (2, ("fifo", 1024))]


def test_policies_are_compared_over_all_pairs_alike_in_the_rest(sweep: Path) -> None:
    study = Study(collect([sweep]))
    assert (study.baseline_key, study.baseline) == ("eviction", "lru")
    (entry,) = study.comparisons
    assert (entry.challenger, entry.difference.count, entry.difference.unit) == (("fifo",), 3, "seed of a policy")
    assert (entry.verdict, entry.evidence) == ("not shown", "3 seeds of a policy, 1 trace: too few"), (
        "two sizes are not six pairs"
    )
    assert entry.difference.low is not None
    assert entry.difference.high is not None
    assert entry.difference.low < -0.1 < entry.difference.high
    (other,) = Study(collect([sweep]), baseline="eviction=fifo").comparisons
    assert (other.challenger, other.better) == (("lru",), True)
    assert other.difference.mean == pytest.approx(-entry.difference.mean)


def test_an_option_of_two_components_varied_only_if_one_component_s_did(tmp_path: Path) -> None:
    for index, (eviction, ghosts) in enumerate((("2q", 0.5), ("s3fifo", 0.9), ("lru", None))):
        options = {} if ghosts is None else {"ghosts": ghosts}
        make_run(tmp_path / str(index), result={"hit_rate": 0.1}, eviction=eviction, options=options)
    assert Study(collect([tmp_path])).keys == ["eviction"]
    make_run(tmp_path / "4", result={"hit_rate": 0.2}, eviction="2q", options={"ghosts": 0.7})
    assert Study(collect([tmp_path])).keys == ["eviction", "eviction.ghosts"]


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
    sweep_folder = sweep.__wrapped__(folder)  # type: ignore[attr-defined]
    write_report([sweep_folder], folder / "out")
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
                  "Memory over time", "Block map",
                  "Evictions", "Fork tree"):  # fmt: skip
        assert title in example, title
    for layer in ("live", "internal", "reserved", "external", "cached, idle", "free"):
        assert f">{layer}<" in example, layer


def test_the_page_escapes_what_a_run_says(example: str) -> None:
    assert "<script>" not in example
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in example
    assert "bad_&lt;b&gt;&amp;" in example


def test_the_page_suits_dark_rooms_phones_and_paper(example: str) -> None:
    for rule in ("prefers-color-scheme: dark", "@media print", "@media (max-width", "width=device-width"):
        assert rule in example, rule
    assert "currentColor" in example
    assert "#010203" not in example


def test_the_same_runs_make_the_same_files(sweep: Path, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        report = write_report([sweep], tmp_path / "out")
        texts.append([path.read_bytes() for path in report.files])
    assert texts[0] == texts[1]


def test_lines_beyond_what_a_reader_can_distinguish_are_left_out_but_not_the_baseline(tmp_path: Path) -> None:
    for index in range(14):
        for num_blocks in (8, 16):
            name = "lru" if index == 0 else f"p{index:02}"
            result = {"hit_rate": 0.01 * index}
            make_run(tmp_path / f"{name}{num_blocks}", result=result, eviction=name, num_blocks=num_blocks)
    (plot,) = [plot for plot in plots_of(Study(collect([tmp_path]))) if plot.name.startswith("curve")]
    labels = [text.get_text() for legend in plot.figure.legends for text in legend.get_texts()]
    assert len(labels) == 9
    assert "lru" in labels
    assert "5 more" in plot.note


def test_settings_without_numbers_become_dots(tmp_path: Path) -> None:
    for eviction in ("lru", "fifo"):
        make_run(tmp_path / eviction, result={"hit_rate": 0.5}, eviction=eviction)
    study = Study(collect([tmp_path]))
    plots = {plot.name: plot for plot in plots_of(study)}
    labels = [text.get_text() for text in plots["settings"].figure.axes[0].get_yticklabels()]
    assert labels == ["lru = fifo"], "what has the same results shares a row"
    assert "throughput_latency" not in plots


def test_one_run_alone_is_a_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "one", result={"hit_rate": 0.5}, events=True)
    assert main([str(tmp_path / "one")]) == 0
    assert "1 run (1 ok); ranked by hit rate" in capsys.readouterr().out
    assert "Fork tree" in (tmp_path / "one" / "report.html").read_text()


def test_a_sweep_of_failures_is_a_report_too(tmp_path: Path) -> None:
    make_run(tmp_path / "a", result=None)
    (tmp_path / "a" / "failure.json").write_text('{"status": "unavailable", "reason": "no GPU"}')
    report = write_report([tmp_path], tmp_path)
    assert "no GPU" in report.files[0].read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "no folder 'nowhere'"),
        (["."], "no run below"),
        (["sw", "--metric", "hit_rat"], "did you mean 'hit_rate'"),
        (["sw", "--baseline", "eviction=zzz"], "no good run has it"),
        (["sw", "--baseline", "hash=xxh64"], "did not vary"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    words: list[str], says: str, sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = sweep.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty if words == ["."] else sweep.parent)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert says in err, err
    assert err.count("\n") == 1, err


def test_the_console_table_fits_its_width_and_keeps_the_ranked_metric(sweep: Path) -> None:
    for width in (60, 80, 200):
        out = io.StringIO()
        print_study(Study(collect([sweep])), file=out, width=width)
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width, (width, out.getvalue())
        assert "hit rate" in out.getvalue()
    with pytest.raises(ConfigError):
        Study(collect([sweep]), metric="nope")
