"""Recorded agents: folders and archives are the same requests, and damage is named."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from synthetic_workloads import common_prefix

from framework.errors import WorkloadError
from framework.workload import build


def _agent_lines(session: str, start_us: int, inputs: list[str]) -> bytes:
    rows = [
        {"timestamp": start_us + index * 500_000, "input": text, "output": "o", "session_id": session}
        for index, text in enumerate(inputs)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_agent_sessions_of_a_folder_and_of_an_archive_are_the_same_requests(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    for family, session, start in (("swe", "s1", 10**6), ("chat", "s2", 1_200_000)):
        (folder / family).mkdir(parents=True)
        (folder / family / f"{session}.jsonl").write_bytes(_agent_lines(session, start, ["abc", "abcd"]))
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as archive:
        archive.add(folder, ".")
    options = {"use_times": True, "max_prompt_chars": 3}
    unpacked = build("agent_text", {**options, "path": str(folder)})
    packed = build("agent_text", {**options, "path": str(tmp_path / "a.tar.xz")})
    assert packed == unpacked
    assert [(request.session, request.prompt) for request in packed] == [
        ("s1", "abc"), ("s2", "abc"), ("s1", "abc"), ("s2", "abc"),
    ]  # fmt: skip
    assert [request.arrival_s for request in packed] == pytest.approx([0.0, 0.2, 0.5, 0.7])
    only = build("agent_text", {"path": str(folder), "family": "swe", "limit": 1})
    assert [(request.session, request.arrival_s) for request in only] == [("s1", 0.0)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"timestamp": "1", "input": "a", "output": "", "session_id": "s"}', "timestamp: want int, found str"),
        (b'{"timestamp": 1, "output": "", "session_id": "s"}', "input: want str, found NoneType"),
        (b'{"timestamp": 1, "input": "", "output": "", "session_id": "s"}', "input: an empty prompt.*skip_empty=true"),
        (b'{"timestamp": 1, "inp', "not a JSON object"),
    ],
)
def test_a_bad_agent_line_names_file_line_and_field(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(_agent_lines("s", 1, ["a"]) + line)
    with pytest.raises(WorkloadError, match=rf"s\.jsonl:2: .*{message}"):
        build("agent_text", {"path": str(path)})


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    path.write_bytes(b"no archive")
    with pytest.raises(WorkloadError, match=r"a\.tar\.xz: cannot be read"):
        build("agent_text", {"path": str(path)})


def test_the_recorded_agents_are_read_whole_and_share_their_prefixes(traces: Path) -> None:
    path = traces / "lmcache-agent-trace_text.tar.xz"
    if not path.exists():
        pytest.skip(f"no {path.name} among the traces")
    with pytest.raises(WorkloadError, match="an empty prompt"):
        build("agent_text", {"path": str(path)})
    requests = build("agent_text", {"path": str(path), "skip_empty": True})
    assert len(requests) == 1566, "1,619 recorded calls, 53 of them with an empty prompt"
    last: dict[str, str] = {}
    shared = total = 0
    for request in requests:
        text = str(request.prompt)
        shared += common_prefix(last.get(request.session, ""), text)
        total += len(text)
        last[request.session] = text
    assert shared / total > 0.5, f"{shared} of {total} characters repeat their session's call before"
