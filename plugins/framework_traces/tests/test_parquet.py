"""Parquet: rows are lines, whatever the format, in bounded memory; damage and a missing library are said aloud."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workloads import example

from framework import registry
from framework.errors import InvalidArgument, WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework.types import Namespace
from framework_traces.writing import write_trace
from framework_workloads.trace import detect_format, open_trace
from framework_workloads.trace.format import CsvReader

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyarrow.parquet")
NAMES = [
    name for name in registry.names("trace")
    # A file over its lines alone, a stream, and two with a line that is no request first.
    if name not in ("kv_events", "hash_ids", "recording", "own")
]  # fmt: skip


def as_parquet(path: Path) -> Path:
    """The lines of a JSON or CSV file as rows."""
    lines = path.read_text().splitlines()
    if lines[0].startswith("{"):
        rows = [json.loads(line) for line in lines] if len(lines) == 1 or lines[0].endswith("}") else [
            json.loads("".join(lines))]  # fmt: skip
    else:
        header = lines[0].split(",")
        rows = [dict(zip(header, map(_number, line.split(",")), strict=True)) for line in lines[1:]]
    target = path.with_suffix(".parquet")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = {key: [row.get(key) for row in rows] for key in keys}
    pyarrow.parquet.write_table(pyarrow.table({key: _array(values) for key, values in columns.items()}), target)
    return target


def _number(cell: str) -> Any:
    return int(cell) if cell.isdecimal() else float(cell) if cell.replace(".", "").isdecimal() else cell


def _array(values: list[Any]) -> Any:
    if any(isinstance(value, list) and value and max(value) >= 2**63 for value in values if _numbers(value)):
        return pyarrow.array(values, pyarrow.list_(pyarrow.uint64()))
    return pyarrow.array(values)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int) for one in value)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_s_columns_are_read_from_parquet_as_from_lines(name: str, tmp_path: Path) -> None:
    path = example(name, tmp_path)
    expected = list(open_trace(path, format=name))
    found = as_parquet(path)
    assert detect_format(found) == name
    assert list(open_trace(found)) == expected


def test_our_own_format_is_written_and_read_as_parquet(tmp_path: Path) -> None:
    requests = [
        WorkloadRequest(arrival_s=0.5, prompt=np.arange(40), output=np.array([3, 4]), session="s", key="a"),
        WorkloadRequest(arrival_s=0.5, input_tokens=33, output_tokens=7, block_ids=np.array([5, 2**61, 9]),
                        block_tokens=16, after=("a",), delay_s=2.0, turn=1, priority=-1),
        WorkloadRequest(arrival_s=1.25, input_tokens=9, output_tokens=0, tenant="t"),
    ]  # fmt: skip
    lines, rows = tmp_path / "own.jsonl", tmp_path / "own.parquet"
    for path in (lines, rows):
        assert write_trace(path, requests, source="test") == 3
    assert detect_format(rows) == "own"
    assert list(open_trace(rows)) == list(open_trace(lines))


def test_contents_are_refused_which_it_has_no_column_for(tmp_path: Path) -> None:
    request = WorkloadRequest(prompt=np.arange(8), output_tokens=1, namespace=Namespace(contents=((1, 4, "cat"),)))
    with pytest.raises(InvalidArgument, match="a Parquet file has no column of contents"):
        write_trace(tmp_path / "t.parquet", [request])


def test_times_of_a_parquet_file_are_times(tmp_path: Path) -> None:
    path = tmp_path / "azure.parquet"
    stamps = pyarrow.array([1_700_000_000_000_000_000, 1_700_000_002_500_000_000], pyarrow.timestamp("ns", "UTC"))
    columns = {"TIMESTAMP": stamps, "ContextTokens": [3, 4], "GeneratedTokens": pyarrow.array([1, 2], pyarrow.int16())}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert [(one.arrival_s, one.input_tokens) for one in open_trace(path)] == [(0.0, 3), (2.5, 4)]


def test_a_row_that_lies_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    columns = {"timestamp": [0, 1], "input_length": [600] * 2, "output_length": [1, 1], "hash_ids": [[1, 2], [3, 4, 5]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(WorkloadError, match=r"m\.parquet:2: hash_ids: 3 block ids for 600 input tokens"):
        list(open_trace(path))
    trace = open_trace(path, on_error="skip")
    assert (len(list(trace)), trace.num_skipped) == (1, 1)
    columns["hash_ids"] = [[1, None], [3, 4]]
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(WorkloadError, match=r"m\.parquet:1: hash_ids: expected a flat list of whole numbers"):
        list(open_trace(path))


def test_a_parquet_file_cut_short_is_damage_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write_trace(path, [WorkloadRequest(input_tokens=9, output_tokens=1, arrival_s=float(at)) for at in range(100)])
    whole = path.read_bytes()
    for count in (5, 40, len(whole) - 9):
        path.write_bytes(whole[:count])
        with pytest.raises(WorkloadError, match=r"m\.parquet:1: cannot be read: damaged or cut short"):
            list(open_trace(path, format="own"))


def test_without_the_library_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.parquet"
    write_trace(path, [WorkloadRequest(input_tokens=9, output_tokens=1)])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WorkloadError, match=r"m\.parquet: a Parquet file; `pip install pyarrow` to read it"):
        open_trace(path)
    with pytest.raises(WorkloadError, match=r"needs pyarrow; `pip install pyarrow` to write it"):
        write_trace(path, [])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.parquet"
        write_trace(path, (
            WorkloadRequest(arrival_s=float(at), input_tokens=1600, output_tokens=1, block_tokens=16,
                            block_ids=np.arange(100 * at, 100 * at + 100)) for at in range(count)
        ))  # fmt: skip
        tracemalloc.start()
        num = sum(1 for _ in open_trace(path))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert num == count
        return found

    peak(500)  # imports
    small, large = peak(1500), peak(9000)
    assert large < 1.2 * small + 2**18, (small, large)


def test_a_csv_format_is_read_from_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "vidur.jsonl"
    row = {"num_prefill_tokens": 40, "num_decode_tokens": 2, "arrived_at": 1.5, "block_hash_ids": [7, 8, 9]}
    path.write_text(json.dumps(row) + "\n")
    (request,) = open_trace(path)
    assert issubclass(registry.load("trace", "vidur"), CsvReader)
    assert (request.arrival_s, request.input_tokens, request.output_tokens) == (1.5, 40, 2)
    assert request.block_ids is not None
    assert request.block_ids.tolist() == [7, 8, 9]
