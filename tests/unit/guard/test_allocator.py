"""What an allocator answers: blocks that cannot be, hits of too much, counts that do not add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engines import drive, fake_engine, tokens_of
from paged_helpers import NS, admit, info, make, tokens

from framework import registry
from framework.errors import PluginError
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.allocator import Hit
from framework.sampling import Sampling
from framework.types import BlockCopy, BlockId, RequestId, TableChange

ONE = RequestId(1)
PROMPT = tokens(1, 2, 3, 4)


def hit(num_tokens: int) -> Hit:
    return Hit(num_tokens, tuple(map(BlockId, range(1, num_tokens // 2 + 1))))


def copies(source: int, destination: int) -> TableChange:
    return TableChange(0, (BlockCopy(BlockId(source), BlockId(destination)),))


def blocks(*ids: int) -> Any:
    return np.array(ids, dtype=np.int32)


CALLS: dict[str, Any] = {
    "lookup": lambda guarded: guarded.lookup(PROMPT, NS),
    "extend": lambda guarded: guarded.extend(ONE, 4),
    "commit": lambda guarded: guarded.commit(ONE, PROMPT),
    "fork": lambda guarded: guarded.fork(ONE, info(2), 2),
    "table": lambda guarded: guarded.table(ONE, num_tokens=4),
    "unref_leading": lambda guarded: guarded.unref_leading(ONE, 5),
}
SOUND: list[tuple[str, Any]] = [
    ("lookup", hit(2)), ("lookup", Hit(3)), ("unref_leading", 2), ("unref_leading", 0),
    *((hook, copies(1, 8)) for hook in ("extend", "commit", "fork")),
    ("table", blocks(1, 8)), ("table", blocks(1, 2, 3, 4)),
]  # fmt: skip
WRONG: list[tuple[str, Any]] = [
    ("lookup", hit(4)), ("lookup", hit(6)), ("lookup", Hit(-2)),
    *((hook, copies(*pair)) for hook in ("extend", "commit", "fork") for pair in ((1, 0), (0, 1), (1, 9), (9, 1))),
    ("table", blocks(0, 1)), ("table", blocks(1, 9)), ("table", blocks(-1, 1)),
    ("table", blocks(1)), ("table", blocks(1, 2).astype(np.int64)), ("table", blocks(*range(1, 9), 1)),
    ("unref_leading", 3), ("unref_leading", -1), ("unref_leading", True),
]  # fmt: skip


def answering(hook: str, answer: Any) -> GuardedAllocator:
    """Around 8 blocks of 2, tables of at most 4; `hook` gives `answer`."""
    plugin: Any = make(8, 2)
    admit(plugin, 1, PROMPT)
    setattr(plugin, hook, lambda *args: answer)
    return GuardedAllocator(plugin, 4)


@pytest.mark.parametrize(("hook", "answer"), SOUND)
def test_what_can_be_is_passed_on(hook: str, answer: Any) -> None:
    assert CALLS[hook](answering(hook, answer)) is answer


@pytest.mark.parametrize(("hook", "answer"), WRONG)
def test_what_cannot_be_is_refused_and_named(hook: str, answer: Any) -> None:
    with pytest.raises(PluginError, match=rf"PrefixCowAllocator\.{hook}: must "):
        CALLS[hook](answering(hook, answer))


def test_of_a_table_longer_than_the_longest_sequence_executors_get_what_they_have_room_for() -> None:
    guarded = answering("table", blocks(1, 2, 3, 4, 5, 6))
    assert guarded.table(ONE, num_tokens=8).tolist() == [1, 2, 3, 4]
    plugin: Any = guarded.plugin
    for hook, call in (("extend", lambda: guarded.extend(ONE, 8)), ("commit", lambda: guarded.commit(ONE, PROMPT))):
        setattr(plugin, hook, lambda *args: TableChange(6))
        assert call() == TableChange(4), hook
    plugin.fork = lambda *args: copies(1, 8)
    assert guarded.fork(ONE, info(2), 2) == copies(1, 8)


class Doubles(registry.load("allocator", "cow")):  # type: ignore[misc]
    """A request that grows gets as many blocks again as it has."""

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        before = len(self.tables[request].blocks)
        change: TableChange = super().extend(request, num_tokens)
        blocks = self.tables[request].blocks
        if len(blocks) > before:
            blocks.fromlist(self.cache.take(min(len(blocks), self.cache.available())))
        return change


def test_tables_longer_than_the_longest_sequence_are_served() -> None:
    lengths, found = list[int](), []
    for allocator in (Doubles, "cow"):
        engine = fake_engine(allocator, num_blocks=64, max_model_len=24)
        plugin: Any = engine.state.guarded.plugin
        requests = [engine.submit([1, 2, 3], Sampling(max_tokens=21)) for _ in range(2)]

        def note(engine: Any, plugin: Any = plugin) -> None:
            lengths.extend(len(table.blocks) for table in plugin.tables.values())

        drive(engine, note)
        assert [request.status.value for request in requests] == ["finished"] * 2, engine.state.summary()
        found.append([tokens_of(request) for request in requests])
    assert max(lengths) * 4 > 24, "no table was longer than the longest sequence"
    assert found[0] == found[1]


def test_leading_blocks_that_were_unreferenced_are_null_in_a_fork_too_and_forgotten_at_the_end() -> None:
    guarded = answering("table", blocks(0, 0, 3, 4))
    plugin: Any = guarded.plugin
    plugin.unref_leading, plugin.fork = lambda *args: 2, lambda *args: TableChange(0)
    assert guarded.unref_leading(ONE, 5) == 2
    guarded.fork(ONE, info(2), 4)
    for request in (ONE, RequestId(2)):
        assert guarded.table(request).tolist() == [0, 0, 3, 4]
    plugin.table = lambda *args: blocks(5, 0, 3, 4)
    with pytest.raises(PluginError, match="must begin with 2 null blocks"):
        guarded.table(ONE)
    plugin.table = lambda *args: blocks(0, 0, 3, 4)
    guarded.free(ONE)
    with pytest.raises(PluginError, match="must name blocks 1 to 8"):
        guarded.table(ONE)


@pytest.mark.parametrize(
    "change",
    [
        {"free_blocks": 3},
        {"used_blocks": -1, "free_blocks": 65},
        {"cached_blocks": -1, "free_blocks": 65},
        {"free_blocks": -1, "cached_blocks": 65},
        {"free_blocks": 64.0},
        {"external_blocks": "a"},
    ],
)
def test_counts_that_do_not_add_up_are_refused_at_once(change: dict[str, Any]) -> None:
    engine = fake_engine(_with(change))
    with pytest.raises(PluginError, match=r"Odd\.stats: "):
        GuardedAllocator(engine.allocator).stats()


@pytest.mark.parametrize("value", ["many", float("nan"), None, 1.5])
def test_a_count_that_is_none_is_refused_by_name_and_what_was_counted_before_is_kept(value: Any) -> None:
    engine = fake_engine(_with({"evictions": value}))
    engine.submit([1, 2, 3], Sampling(max_tokens=2))
    drive(engine)
    with pytest.raises(PluginError, match=r"Odd\.stats: must return AllocatorStats of ints"):
        engine.state.summary()
    assert engine.state.summary(complete=False)["num_finished"] == 1


def _with(change: dict[str, Any]) -> type:
    base: Any = registry.load("allocator", "prefix_cow")
    return type("Odd", (base,), {"stats": lambda self: replace(base.stats(self), **change)})
