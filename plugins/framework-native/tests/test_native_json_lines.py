"""A trace that the native allocator reads is the trace that its lines say, and no line is read that they refuse."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import FrameworkError
from framework.interfaces.json_lines import LineField
from framework.replay.cores import line_reader
from framework.replay.path_cache import read_paths
from framework.replay.paths import build_paths
from framework.testing.json_lines import slowly
from framework.testing.trace import damaged, plain_columns, requests_as_columns
from framework.workload.traces import open_trace
from framework.workload.traces.block_columns import mooncake_columns
from framework_native._core import json_lines

TRACES = Path(os.environ.get("KVLAB_TRACES", Path(__file__).parents[4] / "shared/traces"))
GOOD = (
    b'{"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2], "session_id": "s", "turn": 1,'
    b' "type": "x", "tenant": "t", "priority": 3}\n'
    b'{"timestamp": 1.5, "input_length": 1300, "output_length": 52, "hash_ids": [0,1, 2], "type": null, "turn": null}\n'
    b'{"timestamp":2,"input_length":13,"output_length":0,"hash_ids":[]}\n'
    b'{"hash_ids": [5, 6], "output_length": 0, "input_length": 1024, "timestamp": 2.25, "tenant": "", "type": ""}\n'
)
PUT_IN = (
    b"1.0", b"-0", b"-1", b"1e2", b"true", b"null", b'"5"', b"[]", b"{}", b"[[1]]", b"  ", b"\r", b"\n", b"\t", b"01",
    b"NaN", b"0.1234567891", b"9007199254740993", b"99999999999999999999", b'"\\ud800"', b",", b"4611686018427387904",
    b"\xff", b"\\", b'"', b'"\xc3\xa9"', b"\x00",
)  # fmt: skip


def changed(good: bytes) -> Iterator[bytes]:
    """The content with each word replaced, left out, doubled, or with something odd before it."""
    for word in re.finditer(rb'-?[0-9.]+|"[^"]*"|\[[^\]]*\]|null|[:,{}\[\] ]', good):
        for other in (*PUT_IN, word.group() * 2):
            yield good[: word.start()] + other + good[word.end() :]
            yield good[: word.start()] + other + good[word.start() :]
        yield good[: word.start()] + good[word.end() :]
    for line_end in (b"\r\n", b"\n\n", b" ", b" \n", b"\n "):
        yield good.replace(b"\n", line_end)
    yield b"\xef\xbb\xbf" + good
    yield good.rstrip(b"\n")
    yield from damaged(good, Random(5), 2000)


def test_whatever_is_changed_the_native_reader_reads_what_the_lines_say(tmp_path: Path) -> None:
    path, native, num_read = tmp_path / "t.jsonl", line_reader("native"), 0
    for content in (GOOD, *changed(GOOD)):
        plain = None
        if native(content, _mooncake_fields()) is not None:
            plain = mooncake_columns(content, 512, native)
        if plain is None:
            assert content != GOOD, "the plain file is read"
            continue
        num_read += 1
        path.write_bytes(content)
        try:
            wanted = list(open_trace(path, format="mooncake"))
        except FrameworkError as error:
            raise AssertionError(f"read although {error}: {content!r}") from error
        assert plain_columns(plain) == requests_as_columns(wanted), content
        other = mooncake_columns(content, 512)
        assert other is not None, content
        for field in fields(plain):
            assert np.array_equal(getattr(plain, field.name), getattr(other, field.name)), (field.name, content)
    assert num_read > 300, num_read


def _mooncake_fields() -> list[LineField]:
    asked: list[list[LineField]] = []
    mooncake_columns(GOOD, 512, lambda content, fields: asked.append(list(fields)))
    return asked[0]


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    from framework.errors import WorkloadError

    path = tmp_path / "t.jsonl"
    path.write_bytes(GOOD + b'{"timestamp": 3, "input_length": 1, "output_length": 0, "hash_ids": [1, 2, 3]}\n')
    with pytest.raises(WorkloadError, match=r"t\.jsonl:5: hash_ids"):
        read_paths(open_trace(path), None, False, "native")


@given(st.floats(0, 1e15) | st.integers(0, 10**16) | st.decimals(0, 10**6, places=9) | st.decimals(0, 10**9, places=4))
def test_numbers_are_the_nearest_doubles(number: object) -> None:
    text = f"{number}"
    content = f'{{"x": {text}}}'.encode()
    found = json_lines(content, [LineField("x", "number")])
    if found is None:
        assert "e" in text.lower() or len(text) > 15, text
    else:
        assert found[0].tolist() == [float(text)], text


@pytest.mark.parametrize("file", ["mooncake_conversation_trace.jsonl.gz"])
def test_a_whole_trace_has_the_same_paths(file: str) -> None:
    if not (TRACES / file).exists():
        pytest.skip(f"no {file} in {TRACES}")
    content = gzip.decompress((TRACES / file).read_bytes())
    assert json_lines(content, _mooncake_fields()) is not None
    trace = open_trace(TRACES / file)
    found, wanted = read_paths(trace, None, False, "native"), build_paths(iter(trace))
    for name in ("nodes", "starts", "parents", "depths", "input_tokens", "tenants"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other), name
    assert found.known == wanted.known


def test_columns_of_long_files_outlive_their_content() -> None:
    content = b"".join(b'{"id": %d, "ids": [%d, 1], "name": "n%d"}\n' % (at, at, at) for at in range(3000))
    asked = [LineField("id", "integer", True, 0, 9999), LineField("ids", "integers", True, 0, 9999)]
    asked.append(LineField("name", "text"))
    found = json_lines(content, asked)
    wanted = slowly(content, asked)
    del content
    assert found is not None
    assert wanted is not None
    assert found[0].tolist() == list(range(3000))
    assert [part.tolist() for part in found[1]] == [part.tolist() for part in wanted[1]]  # type: ignore[union-attr]
    assert found[2] == [f"n{at}" for at in range(3000)]


@pytest.mark.parametrize("asked", [[], [("x", "bool", True, 0, 0)], [("x", "number", False, 0, 0)]])
def test_fields_of_no_known_kind_are_refused(asked: list[tuple[str, str, bool, int, int]]) -> None:
    with pytest.raises(ValueError, match="reader of JSON lines"):
        json_lines(b"{}", asked)
