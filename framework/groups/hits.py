"""The hit rule over groups: the longest prefix at which every group still has what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framework.groups.kinds import KVGroup, alignment

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
    """

    tokens: int
    could: tuple[int, ...]
    lost: tuple[int, ...]
    cut_by: int | None
    junction: int


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
