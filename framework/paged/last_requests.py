"""The last request that used each block, for policies that read `BlockView.last_request`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from framework.types import UNKNOWN_REQUEST, RequestFacts, RequestInfo

MOST_PROMPTS = 1 << 18
"""Prompts remembered for inferring turns: a few tens of MB. A conversation that pauses for longer starts anew."""


class PromptEnds:
    """Block hashes of the last full blocks of the prompts seen, by which a later prompt is known to extend them."""

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self._most = most
        self._ends: dict[Hashable, None] = {}

    def turn_of(self, hashes: Sequence[Hashable]) -> int:
        """How many earlier prompts this one extends, prompts of equal full blocks counted once; remembers it.

        Args:
            hashes: of the prompt's full blocks, in order. One without any extends nothing and is not remembered.
        """
        if not hashes:
            return 0
        ends, last = self._ends, hashes[-1]
        turn = sum(block_hash in ends for block_hash in hashes[:-1])
        ends.pop(last, None)
        ends[last] = None
        if len(ends) > self._most:
            del ends[next(iter(ends))]
        return turn


class LastRequests:
    """The column `last_request` of `num_rows` blocks: 8 bytes a block, and a record a request that some block names."""

    def __init__(self, num_rows: int) -> None:
        self.column: list[RequestFacts] = [UNKNOWN_REQUEST] * num_rows
        self._prompts = PromptEnds()

    def admitted(
        self, request: RequestInfo, num_tokens: int, hashes: Sequence[Hashable], hit_blocks: int, block_size: int
    ) -> RequestFacts:
        """What is known of a request that is admitted with `num_tokens` tokens, `hit_blocks` blocks of them found.

        Args:
            hashes: of its full blocks, in order.
        """
        prompt = num_tokens if request.prompt_tokens is None else request.prompt_tokens
        turn = self._prompts.turn_of(hashes[: prompt // block_size])
        new = max(0, -(-prompt // block_size) - hit_blocks)
        return facts_of(request, prompt, new, turn if request.turn is None else request.turn)

    def forked(self, parent: RequestFacts, child: RequestInfo) -> RequestFacts:
        """What is known of a sample or beam that goes on from `parent`'s blocks."""
        return replace(parent, hint=child.hint, tenant=child.tenant or None)

    def ended(self, blocks: Iterable[int], facts: RequestFacts, num_tokens: int) -> None:
        """The request of these facts, which has `num_tokens` tokens by now, releases its blocks."""
        self.used(blocks, replace(facts, output_tokens=max(0, num_tokens - (facts.prompt_tokens or 0))))

    def used(self, blocks: Iterable[int], facts: RequestFacts) -> None:
        """The request of these facts published or releases these blocks."""
        column = self.column
        for block in blocks:
            column[block] = facts


def facts_of(request: RequestInfo, prompt_tokens: int, new_blocks: int, turn: int) -> RequestFacts:
    """The record of a request; an empty tenant is an unknown one."""
    return RequestFacts(
        turn=turn,
        prompt_tokens=prompt_tokens,
        new_blocks=new_blocks,
        arrival=request.arrival,
        session=request.session,
        category=request.category,
        tenant=request.tenant or None,
        hint=request.hint,
    )
