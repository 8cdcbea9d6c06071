"""Traces of block ids read at once: the requests of their lines, and nothing that a line would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.errors import FrameworkError, PluginError
from framework.testing.trace import plain_columns, requests_as_columns
from framework.workload.traces import block_ids, reader
from framework.workload.traces.reader import Trace

MOONCAKE = (
    b'{"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2], "session_id": "s", "turn": 1,'
    b' "type": "x", "tenant": "t", "priority": 3}\n'
    b'{"timestamp": 1.5, "input_length": 1300, "output_length": 52, "hash_ids": [0,1, 2]}\n'
    b'{"timestamp": 2, "input_length": 13, "output_length": 0, "hash_ids": []}\n'
)
RUNS = (
    b'{"timestamp": 0, "input_length": 650, "output_length": 3, "hash_ids": [], "runs": [[1, 8], [20, 2]], "scope":'
    b' "a", "model": "m", "sub": false}\n'
    b'{"timestamp": 9000, "input_length": 700, "output_length": 4, "runs": [[1, 10]]}\n'
    b'{"timestamp": 9000, "input_length": 7, "output_length": 4, "hash_ids": [], "runs": [], "scope": "b", "sub": 1}\n'
)
PUT_IN = (
    b"1.0", b"-0", b"1e2", b"true", b"null", b'"5"', b"[]", b"{}", b"[[1]]", b"  ", b"\r", b"\n", b"\t", b"01", b"NaN",
    b"99999999999999999999", b'"\\ud800"', b",", b"4611686018427387904", b"\xff", b"\\",
)  # fmt: skip


class Mooncake(block_ids.Mooncake):
    """As installed."""


class HalfTheTokens(block_ids.Mooncake):
    """Changes what a line means and nothing else."""

    def parse(self, record: Any) -> Any:
        return super().parse({**record, "input_length": record["input_length"] // 2, "hash_ids": []})


class Broken(block_ids.Mooncake):
    def read_columns(self, content: bytes) -> Any:
        raise KeyError("column")


def opened(kind: type[Any], path: Path) -> Trace:
    return Trace(path, "own", kind, kind.block_tokens, kind.block_tokens, "raise")


def damaged(good: bytes) -> Iterator[bytes]:
    """The content with each word replaced, left out, or with something before it; and with other ends of lines."""
    for word in re.finditer(rb'-?[0-9.]+|"[^"]*"|\[[^\]]*\]|false|[:,{}\[\] ]', good):
        for other in PUT_IN:
            yield good[: word.start()] + other + good[word.end() :]
            yield good[: word.start()] + other + good[word.start() :]
        yield good[: word.start()] + good[word.end() :]
    for line_end in (b"\r\n", b"\n\n", b" "):
        yield good.replace(b"\n", line_end)
    yield b"\xef\xbb\xbf" + good
    yield good.replace(b', "out', b'\n, "out', 1)  # one object on two lines
    yield good.rstrip(b"\n")


@pytest.mark.parametrize(("kind", "good"), [(block_ids.Mooncake, MOONCAKE), (block_ids.Runs, RUNS)])
def test_what_is_read_at_once_is_what_the_lines_say_whatever_is_changed(
    kind: type[Any], good: bytes, tmp_path: Path
) -> None:
    path, num_read = tmp_path / "t.jsonl", 0
    for content in (good, *damaged(good)):
        path.write_bytes(content)
        trace = opened(kind, path)
        found = trace.read_columns()
        if found is None:
            assert content != good, "the plain file is read at once"
            continue
        num_read += 1
        counted = trace.num_requests
        try:
            wanted = list(trace)
        except FrameworkError as error:
            raise AssertionError(f"read at once although {error}: {content!r}") from error
        assert plain_columns(found) == requests_as_columns(wanted), content
        assert counted == trace.num_requests, content
    assert num_read > 100, num_read


def test_a_reader_that_changes_what_a_line_means_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(MOONCAKE.splitlines(keepends=True)[2])
    assert opened(Mooncake, path).read_columns() is not None
    assert opened(HalfTheTokens, path).read_columns() is None
    assert [request.input_tokens for request in opened(HalfTheTokens, path)] == [6]


def test_a_reader_that_raises_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(MOONCAKE)
    with pytest.raises(PluginError, match=r"trace reader Broken.read_columns: raised KeyError"):
        opened(Broken, path).read_columns()


def test_a_file_larger_than_what_is_held_at_once_is_read_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    plain, packed, parts = (tmp_path / name for name in ("t.jsonl", "t.jsonl.gz", "two.gz"))
    plain.write_bytes(MOONCAKE)
    packed.write_bytes(gzip.compress(MOONCAKE))
    first, rest = MOONCAKE[:100], MOONCAKE[100:]
    parts.write_bytes(gzip.compress(first) + gzip.compress(rest))
    assert [opened(Mooncake, path).read_columns() is None for path in (plain, packed, parts)] == [False] * 3
    assert len(list(opened(Mooncake, parts))) == 3
    packed.write_bytes(gzip.compress(MOONCAKE)[:-9])
    assert opened(Mooncake, packed).read_columns() is None
    packed.write_bytes(gzip.compress(MOONCAKE))
    monkeypatch.setattr(reader, "_MOST_AT_ONCE", len(MOONCAKE) - 1)
    assert [opened(Mooncake, path).read_columns() for path in (plain, packed)] == [None, None]
