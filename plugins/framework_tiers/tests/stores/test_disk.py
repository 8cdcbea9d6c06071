"""Blocks on disk: whole or a miss, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError, StoreFailed
from framework.types import BlockHash
from framework_tiers.stores.disk import Disk
from framework_tiers.stores.host import Host
from framework_tiers.testing.store import FORMAT

KEY, OTHER = BlockHash(b"\x01" * 32), BlockHash(b"\x02" * 32)
DATA = bytes(range(192))


def opened(path: Path, format: Any = FORMAT, **options: Any) -> Disk:
    disk = Disk(path=path, **options)
    disk.open(format, 64)
    return disk


def read(disk: Disk, key: BlockHash = KEY) -> bytes | None:
    into = bytearray(FORMAT.block_bytes)
    return bytes(into) if disk.read(key, memoryview(into)) else None


def file_of(disk: Disk, path: Path) -> Path:
    (found,) = path.rglob("*.kv")
    return found


def test_every_truncation_and_every_flipped_bit_is_a_miss(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    disk.write(KEY, memoryview(DATA))
    place = file_of(disk, tmp_path)
    whole = place.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))] + [whole + b"x"]
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for content in damaged:
        place.write_bytes(content)
        assert read(disk) is None
        assert not place.exists(), "what is damaged is removed"
    place.write_bytes(whole)
    assert read(disk) == DATA


def test_swapped_files_and_those_of_another_format_are_misses(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    disk.write(KEY, memoryview(DATA))
    disk.write(OTHER, memoryview(DATA[::-1]))
    first, second = sorted(tmp_path.rglob("*.kv"))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert read(disk, KEY) is None
    assert read(disk, OTHER) is None
    other = opened(tmp_path, replace(FORMAT, model="b"))
    other.write(KEY, memoryview(DATA))
    file_of(other, tmp_path).rename(disk._place(KEY))
    assert read(disk, KEY) is None


def test_a_full_disk_fails_the_write_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = opened(tmp_path)
    disk.write(KEY, memoryview(DATA))

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreFailed, match="No space left on device"):
        disk.write(OTHER, memoryview(DATA))
    monkeypatch.undo()
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".kv"]
    assert read(disk) == DATA
    disk.write(OTHER, memoryview(DATA))
    assert read(disk, OTHER) == DATA


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="choose another path"):
        opened(tmp_path / "file")
    with pytest.raises(ConfigError, match="max_bytes must be at least 1"):
        Disk(path=tmp_path, max_bytes=0)


def test_its_size_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    size = len(DATA) + 34 + 32
    disk = opened(tmp_path, max_bytes=100 * size)
    keys = [BlockHash(number.to_bytes(32, "big")) for number in range(400)]
    for number, key in enumerate(keys):
        disk.write(key, memoryview(DATA))
        os.utime(disk._place(key), (number, number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 164 * size
    read(disk, keys[-80])  # counts as used
    opened(tmp_path, max_bytes=50 * size)
    left = {path.stem for path in tmp_path.rglob("*.kv")}
    assert left == {keys[-80].hex(), *(key.hex() for key in keys[-49:])}


def test_what_a_dead_process_began_is_removed_when_it_is_old(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    old, young = disk._folder / "1-2-3.tmp", disk._folder / "1-2-4.tmp"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    opened(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


WRITER = """
import sys
from framework_tiers.testing.store import FORMAT
from framework_tiers.stores.disk import Disk
disk = Disk(path=sys.argv[1], max_bytes=40 * (192 + 66))
disk.open(FORMAT, 64)
print("ready", flush=True)
number = int(sys.argv[2])
while True:
    number += 1
    disk.write((number % 64).to_bytes(32, "big"), memoryview(bytes([number % 64]) * 192))
"""


def begun(path: Path, first: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_processes_share_a_folder_and_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    draw, hits = random.Random(1), 0
    for _ in range(2):
        processes = [begun(tmp_path, 0), begun(tmp_path, 32)]
        disk = opened(tmp_path)
        end = time.monotonic() + 0.1 + 0.2 * draw.random()
        while time.monotonic() < end:
            number = draw.randrange(64)
            found = read(disk, BlockHash(number.to_bytes(32, "big")))
            assert found in (None, bytes([number]) * 192), "wrong bytes"
            hits += found is not None
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        listed = list(disk.keys())
        assert all(read(disk, key) == bytes([key[-1]]) * 192 for key in listed), "whole, or not there"
        hits += len(listed)
    assert hits > 20


def test_host_memory_that_is_not_there_and_blocks_that_do_not_fit_are_store_failures() -> None:
    host = Host()
    with pytest.raises(StoreFailed, match="lower num_blocks"):
        host.open(replace(FORMAT, block_bytes=2**40), 2**40)
    host.open(FORMAT, 1)
    host.write(KEY, memoryview(DATA))
    with pytest.raises(StoreFailed, match="all 1 blocks"):
        host.write(OTHER, memoryview(DATA))
    host.write(KEY, memoryview(DATA[::-1]))
    into = bytearray(192)
    assert host.read(KEY, memoryview(into))
    assert into == DATA[::-1]
