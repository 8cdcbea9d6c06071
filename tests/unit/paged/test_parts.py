"""Tables with room for a part of the prompt, and tokens promised before they are committed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_helpers import NS, info, make, serve, table, tokens

from framework.errors import InvalidArgument
from framework.types import RequestId

PROMPT = tokens(*range(11))


def part(allocator: Any, number: int, num_tokens: int, prompt: Any = PROMPT) -> int:
    hit = allocator.lookup(prompt, NS)
    allocator.allocate(info(number), prompt, hit, num_tokens)
    return hit.num_tokens


def test_a_part_has_the_blocks_of_its_tokens_and_grows_by_extend() -> None:
    allocator = make(8, 2)
    part(allocator, 1, 5)
    assert len(table(allocator, 1)) == 3
    allocator.commit(RequestId(1), PROMPT[:5])
    allocator.extend(RequestId(1), 9)
    assert len(table(allocator, 1)) == 5
    allocator.commit(RequestId(1), PROMPT[:9])
    allocator.check()
    assert allocator.lookup(PROMPT, NS).num_tokens == 8
    assert allocator.stats().prompt_tokens == 11, "the whole prompt counts, once"


def test_a_part_shares_what_is_cached() -> None:
    allocator = make(8, 2)
    serve(allocator, 1, PROMPT[:7])
    assert part(allocator, 2, 8) == 6
    assert len(table(allocator, 2)) == 4
    allocator.promise(RequestId(2), PROMPT[:8])
    allocator.check()


@pytest.mark.parametrize("num_tokens", [0, 6, 12])
def test_a_part_is_more_than_the_hit_and_at_most_the_prompt(num_tokens: int) -> None:
    allocator = make(8, 2)
    serve(allocator, 1, PROMPT[:7])
    before = allocator.stats()
    with pytest.raises(InvalidArgument, match=rf"room for {num_tokens} tokens"):
        part(allocator, 2, num_tokens)
    assert allocator.stats() == before
    allocator.check()


def test_a_generated_token_that_was_promised_is_known() -> None:
    allocator = make(8, 2)
    part(allocator, 1, 11)
    allocator.commit(RequestId(1), PROMPT)
    longer = np.append(PROMPT, np.int32(99)).astype(np.int32)
    allocator.extend(RequestId(1), 12)
    allocator.promise(RequestId(1), longer)
    with pytest.raises(InvalidArgument, match="token 11 is 98"):
        allocator.commit(RequestId(1), np.append(PROMPT, np.int32(98)).astype(np.int32))
    allocator.commit(RequestId(1), longer)
    allocator.check()
