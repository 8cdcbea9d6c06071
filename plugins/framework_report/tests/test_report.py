"""Reports: what varied, who leads and by how much, and pages that need nothing but themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import command
from report_runs import make_run

from framework_report.records import collect
from framework_report.write import write_report

main = command("report")


def test_runs_are_found_with_their_state_settings_and_reason(sweep: Path) -> None:
    rows = {row.name: row for row in collect([sweep])}
    assert len(rows) == 14
    assert rows["lru_64-0"].settings["eviction"] == "lru"
    assert rows["lru_64-0"].settings["cache.num_blocks"] == 64
    assert not any(key.startswith(("run", "tracker")) for key in rows["lru_64-0"].settings)
    assert (rows["killed"].status, rows["killed"].settings["eviction"]) == ("unfinished", "mru")
    assert (rows["bad_<b>&"].status, rows["bad_<b>&"].settings) == ("failed", {"eviction": "sieve", "seed": 0})


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
