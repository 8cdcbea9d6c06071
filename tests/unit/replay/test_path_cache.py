"""Paths kept on disk are those that are read, and are made anew when anything that decides them changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from framework.errors import WorkloadError
from framework.replay import path_cache
from framework.replay.path_cache import cache_folder, trace_paths
from framework.replay.paths import RequestPaths, build_paths
from framework.types import Hint
from framework.workload.traces import WorkloadRequest, open_trace, write_trace


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVLAB_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = cache_folder()
    assert found is not None
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    requests = [
        WorkloadRequest(
            arrival_s=float(i), input_tokens=35, output_tokens=1, block_ids=np.array([i % 3, 7, i]), block_tokens=16,
            session=f"s-{i % 2}", turn=i // 2, hint=Hint(continues=0.5) if i else None,
        )
        for i in range(6)
    ]  # fmt: skip
    write_trace(path, requests)
    return path


def same(one: RequestPaths, other: RequestPaths) -> bool:
    arrays = ("nodes", "starts", "parents", "depths", "input_tokens", "tenants")
    equal = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
    types = all(getattr(one, name).dtype == getattr(other, name).dtype for name in arrays)
    return equal and types and one.block_tokens == other.block_tokens and one.known == other.known


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> RequestPaths:
        raise AssertionError("the trace was read again")

    monkeypatch.setattr(path_cache, "build_paths", refuse)


def test_a_second_look_reads_no_trace_and_says_the_same(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace.write_text(trace.read_text() + "broken\n")
    first = open_trace(trace, on_error="skip")
    made = trace_paths(first)
    assert same(made, build_paths(open_trace(trace, on_error="skip")))
    forbid_reading(monkeypatch)
    second = open_trace(trace, on_error="skip")
    assert same(trace_paths(second), made)
    assert (second.num_requests, second.num_skipped, second.first_error) == (6, 1, first.first_error)


def test_whatever_decides_the_paths_decides_the_file(trace: Path, folder: Path) -> None:
    trace_paths(open_trace(trace))
    trace_paths(open_trace(trace), limit=2)
    trace_paths(open_trace(trace), full_blocks_only=True)
    trace_paths(open_trace(trace, block_tokens=32))
    trace_paths(open_trace(trace, on_error="skip"))
    assert len(list(folder.iterdir())) == 5
    assert trace_paths(open_trace(trace), limit=2).num_requests == 2
    text = trace.read_text().replace('"input_tokens":35', '"input_tokens":36', 1)
    trace.write_text(text)
    assert trace_paths(open_trace(trace)).input_tokens[0] == 36, "changed content is another trace"


@pytest.mark.parametrize("damage", [b"", b"PK", b"\x00" * 300, "cut", "flipped", "renamed"])
def test_a_damaged_file_is_made_anew(trace: Path, folder: Path, damage: bytes | str) -> None:
    made = trace_paths(open_trace(trace))
    (file,) = folder.iterdir()
    good = file.read_bytes()
    flipped = good[:-40] + bytes([good[-40] ^ 1]) + good[-39:]
    other = {"cut": good[:-40], "flipped": flipped, "renamed": good.replace(b"s-1", b"s-2")}
    file.write_bytes(damage if isinstance(damage, bytes) else other[damage])
    assert same(trace_paths(open_trace(trace)), made)
    assert same(trace_paths(open_trace(trace)), made)
    assert [one.name for one in folder.iterdir()] == [file.name]


def test_a_trace_that_cannot_be_read_leaves_nothing(trace: Path, folder: Path) -> None:
    trace.write_text(trace.read_text() + "broken\n")
    with pytest.raises(WorkloadError):
        trace_paths(open_trace(trace))
    assert not folder.exists()


def test_the_least_recently_used_go_when_all_are_too_large(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_cache, "MAX_BYTES", 6000)
    for limit in range(1, 7):
        trace_paths(open_trace(trace), limit=limit)
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 6000
    assert list(folder.iterdir())


def test_no_cache_can_be_written_or_none_is_wanted(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert trace_paths(open_trace(trace)).num_requests == 6
    monkeypatch.setenv("KVLAB_CACHE", "0")
    assert cache_folder() is None
    assert trace_paths(open_trace(trace)).num_requests == 6


def test_a_format_that_reads_files_beside_the_trace_is_not_kept(tmp_path: Path, folder: Path) -> None:
    from framework.workload.traces.ragpulse import RagPulse

    for name, text in RagPulse.example.items():
        (tmp_path / name).write_text(text)
    for _ in range(2):
        paths = trace_paths(open_trace(tmp_path / "0_trace.jsonl"))
        lengths = ({"passages_id": 2, "token_length": 4}, {"passages_id": 3, "token_length": 8})
        (tmp_path / "2_passages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lengths))
    assert paths.num_requests == 2
    assert not folder.exists()


def test_memory_of_a_reference_is_four_bytes_and_at_most_sixteen_on_disk(traces: Path, folder: Path) -> None:
    name = traces / "mooncake_conversation_trace.jsonl.gz"
    if not name.exists():
        pytest.skip("no conversation trace")
    made = trace_paths(open_trace(name))
    (file,) = folder.iterdir()
    assert made.nodes.nbytes == 4 * made.num_references
    assert file.stat().st_size <= 16 * made.num_references
    assert same(trace_paths(open_trace(name)), made)
