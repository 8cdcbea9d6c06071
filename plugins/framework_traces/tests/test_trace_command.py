"""`python -m framework trace`, as a user types it."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path

import pytest
from command_line import command

from framework.workload import stream
from framework_traces import public
from framework_traces.command import _shown
from framework_workloads.trace import open_trace
from framework_workloads.trace.own_format import as_trace

LINES = [
    {"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]},
    {"timestamp": 500, "input_length": 1200, "output_length": 4, "hash_ids": [1, 2, 3]},
    {"timestamp": 2000, "input_length": 512, "output_length": 5, "hash_ids": [9]},
]
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n2023-11-16 18:15:48.6,396,109\n"


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_describe_prints_a_data_sheet(mooncake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.json"
    assert command("trace")(["describe", str(mooncake), "--json", str(sheet)]) == 0
    out = capsys.readouterr().out
    for text in ("requests", "unique blocks", "hit rate by tokens", "hit rate of LRU"):
        assert text in out, out
    found = json.loads(sheet.read_text())
    assert (found["requests"], found["duration_s"], found["skipped"]) == (3, 2.0, 0)
    assert (found["input_tokens"]["total"], found["input_tokens"]["max"], found["output_tokens"]["p50"]) == (
        2736,
        1200,
        4,
    )
    sharing = found["sharing"]
    assert (sharing["references"], sharing["unique_blocks"], sharing["longest_blocks"]) == (6, 4, 3)
    assert sharing["hit_rate_by_blocks"] == pytest.approx(2 / 6)
    assert sharing["hit_rate_by_tokens"] == pytest.approx(1024 / 2736)
    assert sharing["hit_rate_full_blocks"] == pytest.approx(2 / 5)
    assert sharing["hit_rate_mean_per_request"] == pytest.approx((2 / 3) / 3)
    assert sharing["median_reuse_blocks"] == 1
    assert sharing["lru_curve"][-1] == [4, pytest.approx(2 / 6)]


def test_describe_of_lengths_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(CSV)
    assert command("trace")(["describe", str(path), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["requests"], found["sharing"]) == ("azure", 2, None)
    assert found["requests_per_s"] == pytest.approx(1.0)


def test_fetch_lists_names_and_says_where_to_put_the_file_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("trace")(["fetch"]) == 0
    listing = capsys.readouterr().out
    assert all(name in listing for name in public.PUBLIC_TRACES)
    assert "CC-BY-4.0" in listing
    assert command("trace")(["fetch", "mooncake-toolagent", "--to", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert f"put it at {tmp_path / 'new' / 'toolagent_trace.jsonl'}" in error
    assert not list((tmp_path / "new").iterdir()), "no half file is left"
    assert command("trace")(["fetch", "mooncake-toolagnet"]) == 2
    assert "no public trace 'mooncake-toolagnet'" in capsys.readouterr().err


def test_fetch_checks_a_file_put_there_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"hello\n"
    good = hashlib.sha256(content).hexdigest()
    known = public.PublicTrace("https://example.invalid/t.jsonl", "MIT", "a test", good)
    monkeypatch.setitem(public.PUBLIC_TRACES, "test", known)
    (tmp_path / "t.jsonl").write_bytes(content)
    assert command("trace")(["fetch", "test", "--to", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"SHA-256 {good} (as expected)" in out
    assert "licence MIT" in out
    (tmp_path / "t.jsonl").write_bytes(b"other")
    assert command("trace")(["fetch", "test", "--to", str(tmp_path)]) == 2
    assert "another or a damaged file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("convert", "{trace}", "--out", "{mine}"), ("synth", "rag", "--out", "{mine}"),
     ("describe", "{trace}", "--json", "{mine}"), ("record", "{trace}", "--out", "{mine}")],
)  # fmt: skip
def test_what_exists_is_written_over_only_by_force(
    mooncake: Path, tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.png"
    mine.write_text("mine")
    asked = [word.format(trace=mooncake, mine=mine) for word in words]
    assert command("trace")(asked) == 2
    assert "mine.png exists already" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    if words[0] in ("convert", "describe"):
        assert command("trace")([*asked, "--force"]) == 0
        assert mine.read_bytes() != b"mine"


def test_a_figure_has_no_more_digits_than_it_means() -> None:
    """A mean of 154,575.8302 tokens is 154,576."""
    values = [154_575.8302, 1234.5, 12.3456, 0.12345678, 7, 1_000_000, 2.0, None, "x"]
    found = [_shown(value) for value in values]  # type: ignore[arg-type]
    assert found == ["154,576", "1,234", "12.35", "0.1235", "7", "1,000,000", "2", "unknown", "x"], found


def test_synth_writes_what_the_workload_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rag.jsonl.gz"
    words = ["synth", "rag", "num_requests=9", "shuffle=false", "rate_per_s=2", "--out", str(out), "--seed", "3"]
    assert command("trace")([*words, "--block-tokens", "32"]) == 0
    assert "9 requests" in capsys.readouterr().out
    expected = as_trace(stream("rag", {"num_requests": 9, "shuffle": False, "rate_per_s": 2.0}, seed=3), 32)
    for read, request in zip(open_trace(out), expected, strict=True):
        assert read.block_ids is not None
        assert request.block_ids is not None
        assert read.block_ids.tolist() == request.block_ids.tolist()
    for wrong, message in (
        (["synth", "rag", "--out", str(out), "shuffle"], "expected OPTION=VALUE"),
        (["synth", "chat", "--out", str(tmp_path / "other")], "this workload has text"),
        (["synth", "rag", "--out", str(tmp_path / "other"), "num=3"], "has no option 'num'"),
    ):
        assert command("trace")(wrong) == 2
        assert message in capsys.readouterr().err


def test_a_full_disk_behind_a_recording_is_named_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("framework_traces.request_log.convert", full)
    assert command("trace")(["record", "log", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'out'}: No space left on device\n"
