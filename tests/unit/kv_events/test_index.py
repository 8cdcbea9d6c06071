"""Which blocks a cache holds, from its events."""

from __future__ import annotations

from typing import Any

from framework.kv_events.index import BlockIndex
from framework.kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored


def stored(names: str, parent: str | None = None, medium: str = "GPU", **facts: Any) -> BlockStored:
    return BlockStored(
        block_hashes=[*names], parent_block_hash=parent, token_ids=[], block_size=1, medium=medium, **facts
    )


def removed(names: str, medium: str = "GPU") -> BlockRemoved:
    return BlockRemoved(block_hashes=[*names], medium=medium)


def test_a_content_is_there_until_its_last_copy_is_removed() -> None:
    index = BlockIndex()
    index.apply([stored("ab"), stored("b", "a"), removed("b")])
    assert index.blocks() == {"a", "b"}
    index.apply([removed("b")])
    assert index.blocks() == {"a"}
    index.apply([removed("b")])
    assert index.num_unknown_removals == 1


def test_media_are_kept_apart() -> None:
    index = BlockIndex()
    index.apply([stored("abc"), stored("ab", medium="CPU"), removed("a")])
    assert index.blocks("GPU") == {"b", "c"}
    assert index.blocks("CPU") == {"a", "b"}
    assert index.find("abc") == 3
    assert index.find("abc", "CPU") == 2
    assert index.find("abc", "GPU") == 0
    index.apply([AllBlocksCleared()])
    assert index.blocks() == set()


def test_groups_are_kept_apart() -> None:
    index = BlockIndex()
    index.apply(
        [
            stored("a", group_idx=0),
            stored("a", group_idx=1),
            BlockRemoved(block_hashes=["a"], medium="GPU", group_idx=0),
        ]
    )
    assert index.copies == {("GPU", 0): {}, ("GPU", 1): {"a": 1}}


def test_a_report_of_hits_stores_nothing_where_reports_are_expected() -> None:
    for report, copies in ((True, 1), (False, 2)):
        index = BlockIndex(report_hits=report)
        index.apply([stored("ab"), stored("a")])
        assert index.copies["GPU", None]["a"] == copies
        index.apply([stored("ac"), stored("b", "a")])
        assert index.copies["GPU", None]["b"] == 2, "with a parent, or with something new, it is no report"
