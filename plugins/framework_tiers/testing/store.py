"""Conformance kit of stores: what was written comes back, bit for bit, or not at all.

`store_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh store, of the same place where it
has one. Keys are new in each check, so what an earlier one left does not matter. A store of keys only
(`holds_kv = False`) must answer False to every read.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from framework.errors import StoreFailed
from framework.types import BlockHash
from framework_testing.driver import Violation
from framework_testing.rules import checks_of, need
from framework_tiers.store import BlockFormat, Store

Make = Callable[[], Store]

FORMAT = BlockFormat(model="kit", dtype="float32", layout="NHD", block_size=4, hash="sha256", block_bytes=192)
_BLOCKS = 8


@contextmanager
def _opened(make: Make, format: BlockFormat = FORMAT, *, memory: bool = False) -> Iterator[Store]:
    store = make()
    if memory:
        store.use_memory(lambda num_bytes: memoryview(bytearray(b"\x5a" * num_bytes)))
    store.open(format, _BLOCKS)
    try:
        yield store
    finally:
        store.close()


def _key(size: int = 32) -> BlockHash:
    return BlockHash(os.urandom(size))


def _bytes(seed: int, size: int = FORMAT.block_bytes) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


def _write(store: Store, key: BlockHash, data: bytearray) -> None:
    store.write(key, memoryview(data).toreadonly())


def _read(store: Store, key: BlockHash, size: int = FORMAT.block_bytes) -> bytes | None:
    into = bytearray(b"\xa5" * size)
    held = store.read(key, memoryview(into))
    need(store, type(held) is bool, "read must return a bool", repr(held))
    need(store, len(into) == size, "read changed the buffer's size", len(into))
    need(store, not held or store.holds_kv, "a store of keys only must not find a block", key)
    return bytes(into) if held else None


def _expect(store: Store, key: BlockHash, data: bytearray, rule: str) -> None:
    need(store, _read(store, key) == (bytes(data) if store.holds_kv else None), rule, key)


def check_what_was_written_comes_back(make: Make) -> None:
    """Keys of 1 to 64 bytes, each with its own bytes; what was never written is not found."""
    with _opened(make) as store:
        need(store, _read(store, _key()) is None, "found a block that was never written")
        for size in (1, 8, 32, 64):
            key, data = _key(size), _bytes(size)
            _write(store, key, data)
            _expect(store, key, data, f"a block under a key of {size} bytes did not come back as it was written")
            store.remove(key)


def check_nothing_of_the_caller_is_kept(make: Make) -> None:
    """The buffer may change after `write`."""
    with _opened(make) as store:
        key, data = _key(), _bytes(1)
        expected = bytearray(data)
        _write(store, key, data)
        data[:] = bytes(len(data))
        _expect(store, key, expected, "the caller's buffer was kept instead of its bytes")
        store.remove(key)


def check_the_last_write_counts(make: Make) -> None:
    """A key that is written again has the new bytes, and takes no second place."""
    with _opened(make) as store:
        key, others = _key(), [_key() for _ in range(_BLOCKS - 1)]
        for seed in range(3 * _BLOCKS):
            _write(store, key, _bytes(seed))
        for other in others:
            _write(store, other, _bytes(99))
        _expect(store, key, _bytes(3 * _BLOCKS - 1), "an overwritten block did not come back as it was last written")
        for other in (key, *others):
            store.remove(other)


def check_what_was_removed_is_gone(make: Make) -> None:
    """Removed is not found, and its place can be used again; removing what is not there does nothing."""
    with _opened(make) as store:
        store.remove(_key())
        for seed in range(3 * _BLOCKS):
            key = _key()
            _write(store, key, _bytes(seed))
            store.remove(key)
            store.remove(key)
            need(store, _read(store, key) is None, "found a block that was removed", key)


def check_all_blocks_fit(make: Make) -> None:
    """`num_blocks` blocks at a time, in random order of writes, reads and removals."""
    with _opened(make) as store:
        draw, written = random.Random(5), dict[BlockHash, bytearray]()
        for step in range(400):
            if len(written) == _BLOCKS or (written and draw.random() < 0.3):
                key = draw.choice(list(written))
                _expect(store, key, written.pop(key), f"step {step}: a block did not come back")
                store.remove(key)
            else:
                key = BlockHash(draw.randbytes(32))
                written[key] = _bytes(step)
                _write(store, key, written[key])
        for key, data in written.items():
            _expect(store, key, data, "a block did not come back at the end")
            store.remove(key)


def check_formats_do_not_mix(make: Make) -> None:
    """A block written in one format is not found in another, whichever field differs; nor wrong after opening again."""
    key, data = _key(), _bytes(3)
    with _opened(make) as store:
        _write(store, key, data)
    changes: tuple[dict[str, object], ...] = (
        {"model": "other"}, {"dtype": "float16"}, {"layout": "HND"}, {"block_size": 8}, {"hash": "xxh64"},
        {"block_bytes": 384},
    )  # fmt: skip
    for change in changes:
        other = replace(FORMAT, **change)  # type: ignore[arg-type]
        with _opened(make, other) as store:
            value = _read(store, key, other.block_bytes)
            need(store, value is None, f"found a block of another format, {change} differs")
            need(store, key not in set(store.keys()), f"lists a block of another format, {change} differs")
    with _opened(make) as store:
        value = _read(store, key)
        need(store, value in (None, bytes(data)), "opened again, it gave other bytes than were written")
        need(store, (value is not None) == (key in set(store.keys())), "keys() and read disagree on what outlived")
        store.remove(key)


def check_only_store_failures_leave_it(make: Make) -> None:
    """A store that is full, or takes no such key, says so by StoreFailed and stays usable."""
    with _opened(make) as store:
        keys = [_key(200 if number % 4 == 3 else 32) for number in range(3 * _BLOCKS)]
        kept = dict[BlockHash, bytearray]()
        for number, key in enumerate(keys):
            try:
                _write(store, key, _bytes(number))
                kept[key] = _bytes(number)
            except StoreFailed:
                continue
            except Exception as error:
                raise Violation(f"{type(store).__name__}: write raised {error!r}, no StoreFailed") from error
        for key, data in kept.items():
            value = _read(store, key)
            need(store, value in (None, bytes(data)), "wrong bytes after more writes than it has blocks", key)
        for key in kept:
            store.remove(key)


def check_places_are_blocks(make: Make) -> None:
    """What is written where `reserve` says is what `read` and `view` find, and `view` finds what `write` wrote."""
    with _opened(make, memory=True) as store:
        written = dict[BlockHash, bytearray]()
        for seed in range(_BLOCKS):
            key, data = _key(), _bytes(seed)
            place = store.reserve(key) if seed % 2 else None
            if place is None:
                _write(store, key, data)
            else:
                need(store, place.nbytes == len(data), "reserve gave a place of another size than a block's", key)
                place[:] = data
            written[key] = data
        for key, data in written.items():
            _expect(store, key, data, "a block did not come back as it was written into its place")
            place = store.view(key)
            need(store, place is None or bytes(place) == bytes(data), "view shows other bytes than were written", key)
            store.remove(key)
            need(store, store.view(key) is None, "view shows a block that was removed", key)
            need(store, _read(store, key) is None, "found a block that was removed", key)


store_checks = checks_of(globals())
