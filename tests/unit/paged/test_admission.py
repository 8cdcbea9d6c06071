"""Policies that decline content: it is free at once."""

from __future__ import annotations

import pytest
from paged_helpers import NS, info, make, tokens

from framework.errors import PluginError
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.allocator.radix import RadixAllocator
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru
from framework_testing import eviction_checks
from framework_testing.driver import Violation
from framework_testing.eviction import check_random_histories


class OddKept(Lru):
    """Keeps blocks of odd depth, and those hit before."""

    def keep(self, block, now):
        return bool(self.blocks.depth[block] % 2 or self.blocks.hits[block])


def admit(allocator, number, prompt):
    ids = tokens(*prompt)
    hit = allocator.lookup(ids, NS)
    allocator.allocate(info(number), ids, hit)
    allocator.commit(info(number).id, ids)
    return hit.num_tokens


@pytest.mark.parametrize("kind", [PrefixAllocator, PrefixCowAllocator, RadixAllocator])
def test_declined_content_is_free_at_once_and_found_no_more(kind):
    allocator = make(kind=kind, eviction=OddKept())
    log = []
    allocator.listen(log.append)
    admit(allocator, 1, [1, 1, 2, 2, 3])
    allocator.free(1)
    stats = allocator.stats()
    assert (stats.cached_blocks, stats.free_blocks, stats.evictions) == (1, 7, 1)
    assert [(event.kind, len(event.blocks)) for event in log] == [("admit", 2), ("evict", 1)]
    assert admit(allocator, 2, [1, 1, 2, 2, 3]) == 0
    allocator.check()


def test_a_declined_block_that_is_hit_while_in_use_is_an_ordinary_hit():
    allocator = make(eviction=OddKept())
    admit(allocator, 1, [1, 1, 2])
    assert admit(allocator, 2, [1, 1, 3]) == 2, "the first request's block is in use, so nobody was asked for it"
    allocator.free(1)
    assert allocator.stats().evictions == 0, "the second request uses it still"
    allocator.free(2)
    assert allocator.stats().cached_blocks == 1, "hit once, it is kept"
    allocator.check()


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_an_answer_that_is_no_bool_is_the_policy_s_fault(answer):
    class Vague(Fifo):
        def keep(self, block, now):
            return answer

    allocator = make(eviction=Vague())
    admit(allocator, 1, [1, 1, 2])
    with pytest.raises(PluginError, match=r"Vague\.keep: must return a bool"):
        allocator.free(1)


def test_the_kit_drives_a_policy_that_declines_and_catches_one_that_answers_wrongly():
    for check in eviction_checks:
        check(lambda: type("Declines", (OddKept,), {"recency_stack": False})())

    class Vague(Fifo):
        def keep(self, block, now):
            return 1

    with pytest.raises(Violation, match="keep: must return a bool"):
        check_random_histories(Vague)
