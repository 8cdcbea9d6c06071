"""A whole file, decompressed."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

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


@pytest.mark.parametrize("number", range(5))
def test_a_whole_gzip_file_is_what_its_lines_are(number: int, tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(packed()[number])
    assert whole_file(path, MOST) == BODY
    assert b"\n".join(line for _, line in read_lines(path)) + b"\n" == BODY
    assert whole_file(path, len(BODY)) == BODY
    assert whole_file(path, len(BODY) - 1) is None, "more than is to be held at once"


def test_a_damaged_file_is_left_to_the_lines_which_say_where(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(packed()[2][:-9])
    assert whole_file(path, MOST) is None
    with pytest.raises(WorkloadError, match=r"t\.gz:\d+: compressed content is damaged or cut short"):
        list(read_lines(path))
