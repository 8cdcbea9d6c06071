"""A plain model of groups: the hit rule in single tokens, by brute force."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framework.groups.kinds import KVGroup


def group(kind: str, length: int = 0, *, block: int = 4, size: int = 4, drop: bool = False, name: str = "") -> KVGroup:
    return KVGroup(name=name or kind, kind=kind, block_tokens=block, block_bytes=size, length=length,  # type: ignore[arg-type]
                   lookahead_drop=drop)  # fmt: skip


LAYOUTS: dict[str, tuple[KVGroup, ...]] = {
    "full": (group("full"),),
    "window": (group("full"), group("window", 10)),
    "windows": (group("full"), group("window", 5, name="narrow"), group("window", 14, name="wide")),
    "state": (group("full"), group("state")),
    "chunk": (group("full"), group("chunk", 8)),
    "lookahead": (group("full", drop=True), group("window", 9, drop=True)),
    "all": (group("full"), group("window", 9), group("chunk", 12), group("state")),
}


def brute_hit(groups: Sequence[KVGroup], have: Sequence[set[int]], limit: int, step: int = 1) -> int:
    """The longest hit: every length is tried, and every token that attention would read is looked for.

    Args:
        have: of each group, the numbers of the blocks that are resident on the prompt's path.
        step: of which the hit is a multiple, as of all blocks.
    """
    step = int(np.lcm.reduce([step, *(each.block_tokens for each in groups)]))
    for tokens in range(limit // step * step, 0, -step):
        if all(_can_resume(each, blocks, tokens) for each, blocks in zip(groups, have, strict=True)):
            return tokens
    return 0


def _can_resume(each: KVGroup, blocks: set[int], tokens: int) -> bool:
    if each.kind == "state":
        return tokens // each.block_tokens - 1 in blocks
    reads = {  # what the query at position `tokens` attends to
        "full": lambda at: True,
        "window": lambda at: at > tokens - each.length,
        "chunk": lambda at: at // each.length == tokens // each.length,
    }[each.kind]
    reached = tokens + each.block_tokens * each.lookahead_drop
    return all(at // each.block_tokens in blocks for at in range(reached) if reads(at))
