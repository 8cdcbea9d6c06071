"""A whole file, decompressed: the same content by each library, and never content that zlib refuses."""

from __future__ import annotations

import gzip
import io
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from framework.errors import WorkloadError
from framework.files.lines import read_lines, whole_file

MOST = 5000
BODY = b"".join(b'{"timestamp": %d, "x": %d}\n' % (at, at * at % 997) for at in range(40))


def packed() -> list[bytes]:
    """As gzip files: stored, by both compressors of zlib, with a file's name, and with every optional field."""
    named = io.BytesIO()
    with gzip.GzipFile("name.jsonl", "wb", fileobj=named) as file:
        file.write(BODY)
    plain = gzip.compress(BODY, 9)
    header = plain[:3] + b"\x1e" + plain[4:10] + struct.pack("<H", 3) + b"abc" + b"name\0" + b"comment\0"
    checked = header + struct.pack("<H", zlib.crc32(header) & 0xFFFF) + plain[10:]
    return [*(gzip.compress(BODY, level) for level in (0, 1, 9)), named.getvalue(), checked]


def damaged(good: bytes) -> Iterator[bytes]:
    draw = Random(3)
    for at in (*range(24), *draw.sample(range(24, len(good)), 40), *range(len(good) - 9, len(good))):
        for bit in (1, 16, 32, 64, 128):
            yield good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :]
        yield good[:at]
        yield good[:at] + good[at + 1 :]
    yield from (good + b"\0", good + good, good + b"rest")


def test_no_library_gives_what_zlib_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("isal", reason="ISA-L has no build for this processor, or is not installed")
    path, num_read = tmp_path / "t.gz", 0
    for content in (file for good in packed() for file in (good, *damaged(good))):
        path.write_bytes(content)
        found = whole_file(path, MOST)
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "isal", None)
            wanted = whole_file(path, MOST)
        assert found is None or found == wanted, content
        num_read += found is not None
    assert num_read > 100, num_read


@pytest.mark.parametrize("number", range(5))
def test_a_whole_gzip_file_is_what_its_lines_are(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(packed()[number])
    assert whole_file(path, MOST) == BODY
    assert b"\n".join(line for _, line in read_lines(path)) + b"\n" == BODY
    assert whole_file(path, len(BODY)) == BODY
    assert whole_file(path, len(BODY) - 1) is None, "more than is to be held at once"
    monkeypatch.setitem(sys.modules, "isal", None)
    assert whole_file(path, MOST) == BODY, "without the faster library"


def test_a_damaged_file_is_left_to_the_lines_which_say_where(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(packed()[2][:-9])
    assert whole_file(path, MOST) is None
    with pytest.raises(WorkloadError, match=r"t\.gz:\d+: compressed content is damaged or cut short"):
        list(read_lines(path))
