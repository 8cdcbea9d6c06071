"""Each known-bad tiering rule and store must be caught, by a check that is named here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from framework.errors import StoreFailed
from framework_testing import store_checks, tiering_checks
from framework_testing.driver import Violation
from framework_tiers.rules import Never, OnEviction, OnSecondHit, WriteThrough
from framework_tiers.store import Store
from framework_tiers.stores.disk import Disk
from framework_tiers.stores.host import Host, Null
from framework_tiers.testing import store as store_kit
from framework_tiers.testing import tiering as tiering_kit
from framework_tiers.tiering import Tiering


@pytest.mark.parametrize("check", tiering_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "make",
    [Never, OnEviction, lambda: OnEviction(exclusive=False), WriteThrough, OnSecondHit, lambda: OnSecondHit(uses=8)],
)
def test_a_sound_rule_passes(make: Callable[[], Tiering], check: Any) -> None:
    check(make)


_shared = itertools.count()


class ForgetsAtEviction(Tiering):
    """Counts uses itself; an eviction forgets them, so content that is evicted each time is never stored."""

    def __init__(self):
        self.counts = {}

    def store(self, block, event, now):
        if event == "evicted":
            self.counts.pop(block.key, None)
            return False
        self.counts[block.key] = self.counts.get(block.key, 0) + 1
        return self.counts[block.key] >= 2


def wrong(name, check, base, **members):
    """A sound rule or store with these members in place of its own, and the check that must catch it."""
    return type(name, (base,), members), check


RULES = {
    ForgetsAtEviction: "check_content_used_often_is_stored",
} | dict([
    wrong("Truthy", "check_answers_are_bools", OnEviction,
          store=lambda self, block, event, now: 1 if event == "evicted" else None),
    wrong("CountsForAll", "check_equal_histories_get_equal_answers", OnEviction,  # its instances share a counter
          store=lambda self, block, event, now: next(_shared) % 7 < 3),
    # A frequency gate above any frequency, beside an exception for prompts' second blocks.
    wrong("GateNeverReached", "check_content_used_often_is_stored", OnSecondHit, store=lambda self, block, event, now:
          event == "written" and (block.depth == 1 or block.uses >= 10**6)),
    wrong("LoadsTooMuch", "check_loads_are_part_of_the_offer", OnEviction,
          load=lambda self, offer, now: len(offer.tiers) + 1),
    wrong("PrefetchesTooMuch", "check_prefetches_are_part_of_the_offer", OnEviction,
          prefetch=lambda self, offer, now: len(offer.tiers) + 1),
])  # fmt: skip


@pytest.mark.parametrize(("mutant", "check"), RULES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_bad_rule_is_caught(mutant: type[Tiering], check: str) -> None:
    with pytest.raises((Violation, TypeError)):
        getattr(tiering_kit, check)(mutant)


@pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["host", "null", "disk"])
def test_a_sound_store_passes(name: str, check: Any, tmp_path: Any) -> None:
    check({"host": Host, "null": Null, "disk": lambda: Disk(path=tmp_path)}[name])


class Plain(Store):
    """Bytes in a dictionary that all instances share, so that blocks outlive `close`."""

    blocks: dict[Any, bytes]

    def open(self, format, num_blocks):
        self.format, self.num_blocks = format, num_blocks
        self.blocks = _outlives

    def key(self, key):
        return (self.format, key)

    def write(self, key, data):
        self.blocks[self.key(key)] = bytes(data)

    def read(self, key, into):
        found = self.blocks.get(self.key(key))
        if found is None:
            return False
        into[:] = found
        return True

    def remove(self, key):
        self.blocks.pop(self.key(key), None)

    def keys(self):
        return [key for format, key in self.blocks if format == self.format]


_outlives: dict[Any, bytes] = {}


@pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
def test_the_store_that_the_bad_ones_change_passes(check: Any) -> None:
    check(Plain)


STORES = dict([
    wrong("ReservesElsewhere", "check_places_are_blocks", Host,
          reserve=lambda self, key: (Host.reserve(self, key), memoryview(bytearray(self._memory.shape[1])))[1]),
    wrong("MixesFormats", "check_formats_do_not_mix", Plain, key=lambda self, key: (self.format.block_bytes, key),
          keys=lambda self: [key for _, key in self.blocks]),
    wrong("FlipsABit", "check_what_was_written_comes_back", Plain,
          write=lambda self, key, data: Plain.write(self, key, bytes([*data[:-1], data[-1] ^ 1]))),
    wrong("CutsKeys", "check_all_blocks_fit", Plain, key=lambda self, key: (self.format, key[:1])),
    wrong("KeepsTheBuffer", "check_nothing_of_the_caller_is_kept", Plain,
          write=lambda self, key, data: self.blocks.update({self.key(key): data})),
    wrong("KeepsTheFirstWrite", "check_the_last_write_counts", Plain,
          write=lambda self, key, data: self.blocks.setdefault(self.key(key), bytes(data)) and None),
    wrong("RemoveTwiceFails", "check_what_was_removed_is_gone", Plain,
          remove=lambda self, key: self.blocks.__delitem__(self.key(key))),
    wrong("RaisesItsOwn", "check_only_store_failures_leave_it", Plain,
          write=lambda self, key, data: {}[key] if len(self.blocks) > 4 else Plain.write(self, key, data)),
    wrong("KeysOnlyButFinds", "check_what_was_written_comes_back", Plain, holds_kv=False),
    wrong("ShowsAnother", "check_places_are_blocks", Host,
          view=lambda self, key: None if Host.view(self, key) is None else self._memory[0].data),
])  # fmt: skip


@pytest.mark.parametrize(("mutant", "check"), STORES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_bad_store_is_caught(mutant: type[Store], check: str) -> None:
    _outlives.clear()
    with pytest.raises((Violation, StoreFailed, KeyError)):
        getattr(store_kit, check)(mutant)
    _outlives.clear()
