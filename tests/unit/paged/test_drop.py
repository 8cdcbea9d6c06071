"""Tokens that running requests give up: tables, references and hashes afterwards."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from framework.errors import InvalidArgument, InvariantViolation, OutOfBlocks, UnknownRequest
from framework.registry.components import build_allocator, build_component
from framework.types import ROOT_NAMESPACE, BlockCopy, RequestId, RequestInfo

SIZE = 4


def make(num_blocks: int = 40, allocator: str = "prefix_cow", **options: Any) -> Any:
    policy = build_component("eviction", "lru", {"num_blocks": num_blocks, "block_size": SIZE})
    return build_allocator(
        {"name": allocator, "watermark": 0.0, **options}, policy, "sha256", num_blocks=num_blocks, block_size=SIZE,
        max_model_len=400, seed=0,
    )  # fmt: skip


def info(number: int) -> RequestInfo:
    return RequestInfo(id=RequestId(number), max_total_tokens=100)


def admit(allocator: Any, number: int, tokens: np.ndarray) -> int:
    hit = allocator.lookup(tokens, ROOT_NAMESPACE)
    allocator.allocate(info(number), tokens, hit)
    allocator.extend(number, len(tokens))
    allocator.commit(number, tokens)
    return hit.num_tokens


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 9, count, dtype=np.int32)


def test_whole_blocks_leave_the_table_and_are_found_again() -> None:
    allocator, tokens = make(), ids(18)
    admit(allocator, 1, tokens)
    before = allocator.table(1).tolist()
    change = allocator.drop(1, 10, [1, 3])
    assert change.start == 1
    assert allocator.table(1).tolist() == [before[0], before[2], before[4]]
    assert allocator.stats().used_blocks == 3
    assert allocator.stats().cached_blocks == 2
    allocator.check()
    assert allocator.lookup(tokens, ROOT_NAMESPACE).num_tokens == 16
    allocator.free(1)
    allocator.check()
    assert allocator.stats().cached_blocks == 4


def test_rewritten_blocks_lose_their_hash_and_those_before_keep_it() -> None:
    allocator, tokens = make(), ids(18)
    admit(allocator, 1, tokens)
    before = allocator.table(1).tolist()
    assert allocator.drop(1, 11, [3, 4], rewritten=1).start == 1
    assert allocator.table(1).tolist() == before[:3]
    allocator.check()
    assert allocator.lookup(tokens, ROOT_NAMESPACE).num_tokens == 4  # then a gap


def test_blocks_that_others_refer_to_are_replaced_not_rewritten() -> None:
    allocator, tokens = make(), ids(18)
    admit(allocator, 1, tokens)
    assert admit(allocator, 2, tokens) == 16
    shared = allocator.table(1).tolist()
    allocator.drop(2, 7, [2, 3, 4], rewritten=0)
    assert allocator.table(1).tolist() == shared
    assert not {*allocator.table(2).tolist()} & {*shared}
    allocator.check()
    assert allocator.lookup(tokens, ROOT_NAMESPACE).num_tokens == 16


def test_nothing_is_published_after_a_drop() -> None:
    allocator, tokens = make(), ids(40)
    admit(allocator, 1, tokens[:18])
    allocator.drop(1, 10, [1, 3])
    allocator.extend(1, 40)
    assert len(allocator.table(1)) == 8  # 40 - 8 dropped
    allocator.publish(1, tokens)
    allocator.commit(1, tokens)
    allocator.check()
    assert allocator.lookup(tokens, ROOT_NAMESPACE).num_tokens == 16
    allocator.tables[1].closed = False
    with pytest.raises(InvariantViolation, match="I20: request 1 lost 8 tokens and would publish what it computes"):
        allocator.check()


def test_a_fork_has_what_its_parent_has_left_and_cannot_go_behind_it() -> None:
    allocator, tokens = make(), ids(18)
    admit(allocator, 1, tokens)
    allocator.drop(1, 10, [1, 3])
    with pytest.raises(InvalidArgument, match="which dropped some of its first 18"):
        allocator.fork(1, info(2), 17)
    allocator.fork(1, info(2), 18)
    assert allocator.table(1).tolist() == allocator.table(2).tolist()
    change = allocator.extend(2, 19)
    assert change.copies == (BlockCopy(allocator.table(1)[2], allocator.table(2)[2]),)
    allocator.check()


def test_a_drop_that_finds_no_block_for_a_copy_changes_nothing() -> None:
    allocator, tokens = make(num_blocks=5), ids(18)
    admit(allocator, 1, tokens)
    allocator.fork(1, info(2), 18)
    table = allocator.table(1).tolist()
    with pytest.raises(OutOfBlocks):
        allocator.drop(1, 7, [2, 3, 4], rewritten=0)
    assert allocator.table(1).tolist() == table
    allocator.check()


@pytest.mark.parametrize(("arguments", "error"), [
    ((9, 4, [1]), UnknownRequest), ((1, 0, [1]), InvalidArgument), ((1, 19, [1]), InvalidArgument),
    ((1, 15, [3, 1]), InvalidArgument), ((1, 13, [1, 1]), InvalidArgument), ((1, 14, [5]), InvalidArgument),
    ((1, 14, [-1]), InvalidArgument), ((1, 17, [1]), InvalidArgument), ((1, 14, [1], 5), InvalidArgument),
])  # fmt: skip
def test_a_drop_that_cannot_be_is_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    allocator = make()
    admit(allocator, 1, ids(18))
    with pytest.raises(error):
        allocator.drop(*arguments)
    allocator.check()
    assert len(allocator.table(1)) == 5


@pytest.mark.parametrize("options", [
    {}, {"leaf_only": True}, {"allocator": "prefix"}, {"allocator": "cow"}, {"allocator": "naive"},
    {"duplicates": "keep"},
])  # fmt: skip
def test_any_history_of_drops_keeps_every_invariant(options: dict[str, Any]) -> None:
    for seed in range(15):
        draw, allocator = random.Random(seed), make(num_blocks=24, **options)
        live: dict[int, list[np.ndarray | int]] = {}
        for number in range(60):
            what = draw.choice(["admit", "admit", "grow", "drop", "drop", "fork", "free"])
            chosen = draw.choice([*live]) if live else None
            try:
                if what == "admit":
                    tokens = np.array([draw.randint(0, 1) for _ in range(draw.randint(1, 30))], dtype=np.int32)
                    admit(allocator, number, tokens)
                    live[number] = [tokens, len(tokens)]
                elif chosen is None:
                    continue
                elif what == "grow":
                    more = np.array([draw.randint(0, 1) for _ in range(draw.randint(1, 9))], dtype=np.int32)
                    tokens = np.concatenate([live[chosen][0], more])
                    allocator.extend(chosen, len(tokens))
                    allocator.commit(chosen, tokens)
                    live[chosen] = [tokens, live[chosen][1] + len(more)]
                elif what == "drop":
                    stored, count = int(live[chosen][1]), len(allocator.table(chosen))
                    if draw.random() < 0.5:
                        left = draw.randint(1, stored)
                        blocks = -(-left // SIZE)
                        allocator.drop(chosen, left, range(blocks, count), draw.choice([None, draw.randint(0, blocks)]))
                    else:
                        full = min(stored // SIZE, count - 1)
                        gone = sorted(draw.sample(range(full), draw.randint(0, full)))
                        left = stored - SIZE * len(gone)
                        allocator.drop(chosen, left, gone)
                    live[chosen][1] = left
                elif what == "fork":
                    allocator.fork(chosen, info(number), len(live[chosen][0]))
                    live[number] = list(live[chosen])
                else:
                    allocator.free(chosen)
                    del live[chosen]
            except OutOfBlocks:
                pass
            allocator.check()
        for number in live:
            allocator.free(number)
        allocator.check()
        assert allocator.stats().used_blocks == 0
