"""radix: a hit ends at any token, what it took is copied before it is written, and prefix never hits more."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from fake_engines import make_engine

from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.errors import InvalidArgument, InvariantViolation
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework.types import (
    ROOT_NAMESPACE,
    BlockCopy,
    BlockId,
    Namespace,
    RequestId,
    RequestInfo,
    TableChange,
    as_tokens,
)
from framework_builtin.allocator.radix import RadixAllocator


def make(num_blocks: int = 20, block_size: int = 4, **options: object) -> RadixAllocator:
    built = build_allocator(
        {"name": "radix", **options}, "lru", "sha256",
        num_blocks=num_blocks, block_size=block_size, max_model_len=100,
    )  # fmt: skip
    assert isinstance(built, RadixAllocator)
    return built


def admit(allocator: RadixAllocator, number: int, tokens: list[int]) -> int:
    """Look up, allocate, copy, compute and commit a whole prompt; returns the tokens hit."""
    prompt = as_tokens(tokens)
    hit = allocator.lookup(prompt, ROOT_NAMESPACE)
    allocator.allocate(RequestInfo(id=RequestId(number), max_total_tokens=len(tokens)), prompt, hit)
    allocator.check()
    allocator.extend(RequestId(number), len(tokens))
    allocator.commit(RequestId(number), prompt)
    allocator.check()
    return hit.num_tokens


def hit_of(allocator: RadixAllocator, tokens: list[int], namespace: Namespace = ROOT_NAMESPACE) -> int:
    return allocator.lookup(as_tokens(tokens), namespace).num_tokens


def test_a_hit_ends_at_the_last_common_token() -> None:
    allocator = make()
    assert admit(allocator, 1, [1, 2, 3, 4, 5, 6, 7, 8]) == 0
    for common in range(9):
        probe = [*range(1, common + 1), *range(50, 58)]
        assert hit_of(allocator, probe) == common, probe
    assert hit_of(allocator, [1, 2, 3, 4, 5, 6, 7, 8]) == 7, "one token is left to compute"
    assert hit_of(allocator, [1, 2, 3]) == 2
    assert hit_of(allocator, [1]) == 0
    assert hit_of(allocator, [1, 2, 3, 9], Namespace(salt="other")) == 0


def test_the_longest_of_several_siblings_is_found() -> None:
    allocator = make(block_size=4)
    for number, tail in enumerate(([1, 2, 3, 4], [1, 2, 9, 9], [1, 7, 7, 7], [2, 2, 2, 2]), start=1):
        admit(allocator, number, [0, 0, 0, 0, *tail])
    probes = ([1, 2, 3, 5], [1, 2, 9, 8], [1, 7, 7, 1], [2, 2, 1, 1], [3, 3, 3, 3], [1, 2, 0, 0])
    found = [hit_of(allocator, [0, 0, 0, 0, *probe, 5, 5]) - 4 for probe in probes]
    assert found == [3, 3, 3, 2, 0, 2], found


@pytest.mark.parametrize("page_size", [1, 2, 4, 8])
def test_hits_are_whole_pages(page_size: int) -> None:
    allocator = make(block_size=8, page_size=page_size)
    admit(allocator, 1, list(range(16)))
    for common in range(17):
        expected = common - common % page_size
        assert hit_of(allocator, [*range(common), *[99] * 9]) == expected, common


def test_the_partial_block_is_copied_before_it_is_written_and_its_owner_keeps_it() -> None:
    allocator = make()
    admit(allocator, 1, [1, 2, 3, 4, 5, 6, 7, 8])
    source = int(allocator.table(RequestId(1))[1])
    prompt = as_tokens([1, 2, 3, 4, 5, 6, 9, 9, 9])
    hit = allocator.lookup(prompt, ROOT_NAMESPACE)
    assert (hit.num_tokens, hit.blocks[1]) == (6, source)
    allocator.allocate(RequestInfo(id=RequestId(2), max_total_tokens=9), prompt, hit)
    change = allocator.extend(RequestId(2), 9)
    own = BlockId(int(allocator.table(RequestId(2))[1]))
    assert change == TableChange(1, (BlockCopy(BlockId(source), own),))
    assert own != source
    assert allocator.extend(RequestId(2), 9) == TableChange(3)
    allocator.commit(RequestId(2), prompt)
    allocator.free(RequestId(1))
    allocator.check()
    assert hit_of(allocator, [1, 2, 3, 4, 5, 6, 7, 8, 0]) == 8
    assert hit_of(allocator, [1, 2, 3, 4, 5, 6, 9, 9, 0]) == 8
    assert allocator.stats().copied_blocks == 1


def test_without_a_block_for_the_copy_the_hit_ends_at_a_full_block() -> None:
    allocator = make(num_blocks=3)
    admit(allocator, 1, [1, 2, 3, 4, 5, 6, 7, 8])
    allocator.free(RequestId(1))
    assert hit_of(allocator, [1, 2, 3, 4, 5, 9, 9, 9]) == 5, "two blocks and a copy"
    assert hit_of(allocator, [1, 2, 3, 4, 5, 9, 9, 9, 9, 9]) == 4, "three blocks and no room for a copy"
    assert admit(allocator, 2, [1, 2, 3, 4, 5, 9, 9, 9, 9, 9]) == 4


@pytest.mark.parametrize("page_size", [0, 3, 8])
def test_a_page_that_does_not_divide_a_block_is_refused(page_size: int) -> None:
    with pytest.raises(InvalidArgument, match="page_size"):
        make(block_size=4, page_size=page_size)


def test_check_sees_a_sibling_that_is_not_published() -> None:
    allocator = make()
    admit(allocator, 1, [1, 2, 3, 4])
    allocator._tree._siblings.clear()
    with pytest.raises(InvariantViolation, match="published or listed as siblings"):
        allocator.check()


def served(allocator: str, prompts: list[list[int]], **options: object) -> tuple[int, int]:
    """(hit tokens, output tokens) of an engine that serves these prompts, checked after each step."""
    built = build_allocator(
        {"name": allocator, **options}, "lru", "xxh64", num_blocks=40, block_size=8, max_model_len=120
    )
    engine = make_engine(
        built, ReplayExecutor(constant_step(0.01)), max_model_len=120, preempt_every=7, max_batch_requests=4
    )
    for prompt in prompts:
        engine.submit(np.array(prompt, dtype=np.int32), Sampling(max_tokens=6, ignore_eos=True, n=1))
        engine.run(lambda engine: engine.allocator.check())
    engine.check()
    return engine.metrics.hit_tokens, engine.metrics.num_output_tokens


def test_radix_hits_at_least_what_prefix_does_and_page_size_is_a_dial() -> None:
    rng = Random(5)
    heads = [[rng.randrange(9) for _ in range(rng.randint(10, 40))] for _ in range(4)]
    prompts = [heads[rng.randrange(4)][: rng.randint(5, 40)] + [rng.randrange(9) for _ in range(5)] for _ in range(60)]
    prefix, outputs = served("prefix_cow", prompts)
    found = [served("radix", prompts, page_size=size) for size in (8, 4, 2, 1)]
    assert found[0] == (prefix, outputs), "pages of a block are prefix_cow"
    hits = [hit for hit, _ in found]
    assert hits == sorted(hits), hits
    assert hits[-1] > 1.1 * prefix, (hits, prefix)
