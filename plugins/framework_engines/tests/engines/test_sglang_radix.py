"""SGLang's own RadixCache, with answers and nodes of many pages, against our `radix` allocator in a replay."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from engine_stand_ins import Node
from installed_engines import SGLANG, executed

from experiments.fidelity import our_side, sglang_side
from experiments.fidelity.streams import Outcome, Talk, grown
from framework.errors import Unsupported
from framework_engines import as_sglang, one_page_nodes
from framework_kv_events import zeromq
from framework_kv_events.index import BlockIndex
from framework_kv_events.workload import RequestFinder

BLOCKS = {1: 260, 16: 60}


@pytest.fixture(scope="module")
def sglang() -> Iterator[dict[str, Any]]:
    with executed(SGLANG) as modules:
        yield modules


def stream(page: int) -> list[Talk]:
    return grown(120, block_size=4) if page == 1 else grown(150)


def in_sglang(sglang: dict[str, Any], page: int, eviction: str | None, *, pages: bool) -> Outcome:
    strategy = None if eviction is None else as_sglang(eviction, num_blocks=BLOCKS[page])
    radix = sglang_side.Radix(sglang, BLOCKS[page], page, strategy, one_page_nodes if pages else None)
    outcome = sglang_side.run(stream(page), radix)
    radix.tree.evict(radix.base.EvictParams(num_tokens=10**9))
    assert radix.free == BLOCKS[page], "pages leaked"
    return outcome


def in_replay(page: int, eviction: str) -> Outcome:
    allocator = {"name": "radix", "page_size": page, "leaf_only": True, "watermark": 0.0}
    settings = our_side.Settings(
        num_blocks=BLOCKS[page], block_size=page, max_batch_requests=1, eviction=eviction, allocator=allocator
    )
    return our_side.run(stream(page), settings)


@pytest.mark.parametrize("page", BLOCKS)
@pytest.mark.parametrize("eviction", [None, "lru", "mru", "fifo", "leaf_lru"])
def test_with_nodes_of_one_page_the_tree_hits_and_evicts_what_our_radix_does(
    eviction: str | None, page: int, sglang: dict[str, Any]
) -> None:
    theirs, ours = in_sglang(sglang, page, eviction, pages=True), in_replay(page, eviction or "lru")
    assert len(ours.evicted) > 500
    assert theirs.hits == ours.hits
    assert theirs.evicted[: len(ours.evicted)] == ours.evicted


@pytest.mark.parametrize("page", BLOCKS)
def test_nodes_of_many_pages_are_why_the_tree_hits_less(page: int, sglang: dict[str, Any]) -> None:
    nodes, pages = in_sglang(sglang, page, None, pages=False), in_sglang(sglang, page, None, pages=True)
    assert sum(nodes.hits.values()) < sum(pages.hits.values())


@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("eviction", ["lfu", "s3fifo", "arc", "sieve", "gdsf", "w_tinylfu", "length_aware", "hazard"])
def test_every_policy_runs_while_nodes_are_split_below_it(eviction: str, pages: bool, sglang: dict[str, Any]) -> None:
    assert sum(in_sglang(sglang, 16, eviction, pages=pages).hits.values()) > 1000


def test_one_page_nodes_are_asked_for_before_the_first_insert(sglang: dict[str, Any]) -> None:
    radix = sglang_side.Radix(sglang, 60, 16)
    radix.request(0, grown(1)[0])
    radix.request(1, grown(3)[2])
    with pytest.raises(Unsupported, match="before its first insert"):
        one_page_nodes(radix.tree)


@pytest.mark.parametrize("page", BLOCKS)
def test_an_index_of_the_trees_kv_events_is_the_tree_after_every_request(page: int) -> None:
    with executed((*SGLANG, "sglang.srt.disaggregation.kv_events")) as modules:
        kv_events, recorder = modules["kv_events"], modules["events"].KVCacheEventRecorder(enabled=True, page_size=page)
        radix = sglang_side.Radix(modules, BLOCKS[page], page, None, lambda tree: setattr(tree, "kv_events", recorder))
        as_number = modules["utils"].hash_str_to_int64
        modules["utils"].get_native_hash = chained  # SGLang's own is compiled at its first use
        index, finder = BlockIndex(), RequestFinder()
        hits = stored = 0
        for number, talk in enumerate(stream(page)):
            before = finder.counts.stored_blocks
            radix.request(number, talk)
            message = msgspec.msgpack.encode(kv_events.KVEventBatch(ts=100.0 * number, events=radix.tree.take_events()))
            batch = zeromq.decode(message)
            index.apply(batch.events)
            assert index.copies.get(("GPU", None), {}) == dict.fromkeys(pages_of(radix, recorder, as_number), 1)
            list(finder.take(batch))
            if finder.counts.stored_blocks > before:
                hits += radix.outcome.hits[number] // page
                stored += 1
        list(finder.finish())
        assert index.num_unknown_removals == 0
        assert len(radix.outcome.evicted) > 500
        assert finder.counts.lost_blocks > 0
        assert (finder.counts.num_requests, finder.counts.hit_blocks) == (stored, hits), (
            "of those that stored something"
        )


def chained(key: Any, above: bytes | None, page: int) -> list[str]:
    """Hexadecimal SHA-256 of each page's tokens and all before them."""
    tokens, digest, names = [*key.token_ids], above or b"", []
    for start in range(0, len(tokens), page):
        digest = hashlib.sha256(digest + repr(tokens[start : start + page]).encode()).digest()
        names.append(digest.hex())
    return names


def pages_of(radix: sglang_side.Radix, recorder: Any, as_number: Any) -> list[int]:
    """The hash of every page in the tree, as its events have it."""
    left, found = [*radix.tree.root_node.children.values()], list[int]()
    while left:
        node = left.pop()
        left += node.children.values()
        found += map(as_number, recorder._node_event_hash_values(node))
    return found


def test_a_node_has_the_facts_our_strategy_reads(sglang: dict[str, Any]) -> None:
    real, ours = sglang["radix_cache"].TreeNode(), Node(None, "", 0.0)
    lacking = [fact for fact in vars(ours) if not hasattr(real, fact)]
    assert not lacking, f"SGLang's TreeNode has no {lacking}"
    assert sglang["evict_policy"].EvictionStrategy.__abstractmethods__ == {"get_priority"}
