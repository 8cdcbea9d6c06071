"""JSON lines: strict, finite, and forgiving only of a killed writer's last line."""

import gzip
import json
import math
import warnings
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from framework.errors import InvalidArgument, RunDirectoryError, WorkloadError
from framework.files.atomic import write_json
from framework.files.jsonl import dump_line, to_plain
from framework_workloads.lines import PartialLineWarning, iter_objects, read_jsonl

LINES = b'{"a":1,"s":"\xc3\xa4"}\n{"a":2,"s":"x"}\n{"a":3,"s":"y"}\n'


class _Colour(Enum):
    RED = "red"


@dataclass
class _Point:
    x: float
    y: tuple[int, ...]


def test_numbers_that_json_cannot_name_become_null_at_any_depth() -> None:
    record = {"nan": math.nan, "deep": [{"inf": math.inf}], "np": np.float32("nan"), "array": np.array([1.0, -np.inf])}
    plain = json.loads(dump_line(record))
    assert plain == {"nan": None, "deep": [{"inf": None}], "np": None, "array": [1.0, None]}


def test_the_usual_python_values_become_plain() -> None:
    value = {
        "e": _Colour.RED,
        "d": _Point(np.float64(1.5), (1, 2)),
        "p": Path("a/b"),
        3: {2, 1},
        "b": b"\x0f",
        "t": True,
    }
    assert to_plain(value) == {"e": "red", "d": {"x": 1.5, "y": [1, 2]}, "p": "a/b", "3": [1, 2], "b": "0f", "t": True}
    assert type(to_plain(np.int64(3))) is int
    assert type(to_plain(np.bool_(True))) is bool


def test_a_value_json_cannot_hold_is_refused_with_its_type() -> None:
    with pytest.raises(InvalidArgument, match="object"):
        to_plain({"x": object()})


def test_each_cut_of_the_last_line_is_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    start = LINES.rindex(b"{")
    for end in range(start + 1, len(LINES) - 1):
        path.write_bytes(LINES[:end])
        with pytest.warns(PartialLineWarning, match=r"m\.jsonl:3"):
            records = read_jsonl(path)
        assert [record["a"] for record in records] == [1, 2], f"cut at byte {end}: {records}"
    path.write_bytes(LINES[:-1])
    assert len(read_jsonl(path)) == 3, "a last line that is whole but for its line end is whole"


def test_every_damaged_byte_of_an_earlier_line_is_an_error_or_another_value_but_never_a_lost_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.jsonl"
    second = range(LINES.index(b"\n") + 1, LINES.rindex(b"{") - 1)
    for position in second:
        path.write_bytes(LINES[:position] + b"\0" + LINES[position + 1 :])
        with pytest.raises(RunDirectoryError, match=r"m\.jsonl:2: "):
            read_jsonl(path)


def test_a_workload_forgives_no_partial_line(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_bytes(LINES[:-4])
    with pytest.raises(WorkloadError, match=r"w\.jsonl:3: not a JSON object"):
        list(iter_objects(path, WorkloadError))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"[1]", "list"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_a_bad_line_names_file_line_and_reason(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a":1}\n' + line + b'\n{"a":1}\n')
    with pytest.raises(RunDirectoryError, match=rf"m\.jsonl:2: .*{what}"):
        read_jsonl(path)


def test_line_ends_marks_blank_lines_and_long_lines_of_other_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    long = json.dumps({"text": "x" * 2**20}).encode()
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\r\n' + long + b'\r\n{"a":3}\r\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = read_jsonl(path)
    assert [list(record) for record in records] == [["a"], ["text"], ["a"]]


def test_a_cut_gzip_file_names_the_line_it_breaks_off_at(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a":1}\n' * 1000, mtime=0)[:-12])
    with pytest.raises(WorkloadError, match=r"m\.jsonl\.gz:\d+: cannot be read"):
        list(iter_objects(path, WorkloadError))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"gone\.jsonl"):
        read_jsonl(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("text", ["\ud800", "é\udfff", {"\udc00": 1}, ["a", "\ud83d"]])
def test_half_of_a_surrogate_pair_is_written_as_an_escape_and_read_back(tmp_path: Path, text: object) -> None:
    line = dump_line({"x": text, "ü": 1})
    assert json.loads(line) == {"x": text, "ü": 1}
    assert line.isascii()
    assert "ü".encode() in dump_line({"ü": 1}), "other text stays readable"
    write_json(tmp_path / "a.json", {"x": text})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"x": text}
