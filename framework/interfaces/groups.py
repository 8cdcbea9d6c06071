"""Kinds of KV that a request keeps side by side, and the longest prefix at which all still have what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, lcm
from typing import Literal

from framework.errors import InvalidArgument

Kind = Literal["full", "window", "chunk", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers of one kind that share a block table.

    Attributes:
        name: how results call it; letters, digits and underscores.
        kind: `full` attention to all tokens before; a sliding `window`; a `chunk` of fixed places, attended within;
            a recurrent `state`, of which a block is one snapshot.
        block_tokens: tokens a block; for a state the distance of the places at which one may be kept.
        block_bytes: of a block, over all layers of the group.
        length: tokens of the window, the last one included, or of the chunk; 0 for the others.
        lookahead_drop: a draft model reads one block more than a hit gives: the last block found is computed again.

    Raises:
        InvalidArgument: a value outside its range, a chunk that does not divide into blocks, a state with a drop.
    """

    name: str
    kind: Kind
    block_tokens: int
    block_bytes: int
    length: int = 0
    lookahead_drop: bool = False

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.block_bytes < 1:
            raise InvalidArgument(f"{self.name}: a block has at least 1 token and 1 byte, found {self}")
        if (self.length > 1) != (self.kind in ("window", "chunk")):
            raise InvalidArgument(
                f"{self.name}: windows and chunks have a length above 1, others 0, found {self.length}"
            )
        if self.kind == "chunk" and self.length % self.block_tokens:
            raise InvalidArgument(f"{self.name}: a chunk of {self.length} tokens is no multiple of {self.block_tokens}")
        if self.lookahead_drop and self.kind in ("chunk", "state"):
            raise InvalidArgument(f"{self.name}: draft models have no layers of kind {self.kind}, so no lookahead")

    def sized(self, block_tokens: int) -> KVGroup:
        """The group with blocks of so many tokens, a multiple of what they have.

        Raises:
            InvalidArgument: no such multiple.
        """
        times, rest = divmod(block_tokens, self.block_tokens)
        if rest or times < 1:
            raise InvalidArgument(f"{self.name}: blocks of {block_tokens} tokens are no multiple of the "
                                  f"{self.block_tokens} of full attention, by which contents are named")  # fmt: skip
        size = self.block_bytes * (1 if self.kind == "state" else times)
        return replace(self, block_tokens=block_tokens, block_bytes=size)

    def first(self, num_tokens: int) -> int:
        """The first block that still is read once `num_tokens` are computed; all before it may go."""
        if self.kind == "full":
            return 0
        if self.kind == "window":
            return max(0, num_tokens - self.length + 1) // self.block_tokens
        if self.kind == "chunk":
            return num_tokens // self.length * self.length // self.block_tokens
        return max(0, num_tokens - 1) // self.block_tokens

    def passed_at(self, block: int) -> float:
        """Tokens computed from which on this block is not read: `first(n) > block` where `n >= passed_at(block)`."""
        if self.kind == "full":
            return inf
        if self.kind == "chunk":
            return (block * self.block_tokens // self.length + 1) * self.length
        return (block + 1) * self.block_tokens + (self.length - 1 if self.kind == "window" else 1)

    def needs(self, num_tokens: int) -> range:
        """The blocks that must be resident to go on after `num_tokens`, a multiple of `block_tokens`."""
        if num_tokens == 0:
            return range(0)
        return range(self.first(num_tokens), num_tokens // self.block_tokens + self.lookahead_drop)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """One group of KV of a model that is served.

    Attributes:
        layers: numbers among the layers with attention; of a state among the recurrent ones.
        num_blocks: usable blocks. memory: its number: groups of one memory lie in the same tensors.
        per_page: blocks of this group that a page of the memory has.
    """

    group: KVGroup
    layers: tuple[int, ...]
    num_blocks: int = 0
    memory: int = 0
    per_page: int = 1

    @property
    def memory_bytes(self) -> int:
        """Of its memory's pages, that of the null block among them."""
        return (self.num_blocks + self.per_page) * self.group.block_bytes


def equal_layers(counts: Sequence[int]) -> int:
    """Layers a group where those of each kind, so many, are split into groups of equally many.

    Source: vLLM 0.33, v1/core/kv_cache_utils.py: as many as the kind with the fewest has, or, where that is more than
    two thirds of the most, the kind with the most.
    """
    fewest, most = min(counts), max(counts)
    return most if most < 1.5 * fewest else fewest


def alignment(groups: Sequence[KVGroup]) -> int:
    """Tokens of which every hit is a multiple: the least common multiple of the groups' blocks."""
    return lcm(*(group.block_tokens for group in groups))


Present = Callable[[int, int], bool]
"""Whether block `b` of group `g` is resident: `present(g, b)`. Pure; False beyond what the request has."""


@dataclass(frozen=True, slots=True)
class GroupHit:
    """What a prompt may resume from. Tokens; G groups in their order.

    Attributes:
        tokens: the hit: every group can go on from here.
        could: (G,) what each group could give by itself.
        lost: (G,) tokens by which each group shortened the hit; with `tokens` they sum to the longest hit allowed.
        cut_by: the group that shortened it last, None where none did.
        junction: what the full-attention groups share beyond the hit (without any: the group that could give most):
            prefix that others have computed and that cannot be resumed from.
        seen: tokens of the prompt's beginning that an earlier request had; None where the caller does not know.
    """

    tokens: int
    could: tuple[int, ...]
    lost: tuple[int, ...]
    cut_by: int | None
    junction: int
    seen: int | None = None


def resumable(group: KVGroup, present: Callable[[int], bool], limit: int, step: int) -> int:
    """The longest multiple of `step` up to `limit` at which this group has what it needs.

    A block that is missing rules out every length that needs it, so the search goes on below the leftmost one.
    """
    tokens = limit // step * step
    while tokens > 0:
        missing = next((block for block in group.needs(tokens) if not present(block)), None)
        if missing is None:
            return tokens
        tokens = (missing - group.lookahead_drop) * group.block_tokens // step * step
    return 0


def find_hit(groups: Sequence[KVGroup], present: Present, limit: int) -> GroupHit:
    """The longest hit of at most `limit` tokens, a multiple of the groups' alignment.

    As in vLLM: full attention first, whose residence is closed downwards, then the others by turns, each of which may
    only shorten it, until none does.
    """
    step = alignment(groups)
    longest = tokens = limit // step * step
    order = sorted(range(len(groups)), key=lambda g: groups[g].kind != "full")
    lost, cut_by, before = [0] * len(groups), None, -1
    while before != tokens:
        before = tokens
        for g in order:
            shorter = resumable(groups[g], lambda block, g=g: present(g, block), tokens, step)  # type: ignore[misc]
            if shorter < tokens:
                lost[g], cut_by, tokens = lost[g] + tokens - shorter, g, shorter
    if tokens == longest:
        return GroupHit(tokens, (tokens,) * len(groups), tuple(lost), cut_by, 0)
    could = tuple(
        resumable(group, lambda block, g=g: present(g, block), longest, step)  # type: ignore[misc]
        for g, group in enumerate(groups)
    )
    full = [could[g] for g in order if groups[g].kind == "full"]
    return GroupHit(tokens, could, tuple(lost), cut_by, (min(full) if full else max(could)) - tokens)
