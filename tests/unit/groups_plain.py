"""A plain model of groups: the hit rule in single tokens, by brute force."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framework.interfaces.groups import KVGroup


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


class Rule:
    """vLLM's retention 0 without a bound of memory, over prefixes as tuples; `ends`: with the end of each request."""

    def __init__(self, groups: Sequence[KVGroup], *, ends: bool = False) -> None:
        self.size, self.ends = int(np.lcm.reduce([each.block_tokens for each in groups])), ends
        self.groups = [each for each in groups if each.kind != "full"]
        self.seen, self.kept = set[tuple[int, ...]](), set[tuple[int, tuple[int, ...]]]()

    def needs(self, prefix: tuple[int, ...]) -> set[tuple[int, tuple[int, ...]]]:
        return {(g, prefix[: (number + 1) * each.block_tokens]) for g, each in enumerate(self.groups)
                for number in each.needs(len(prefix))}  # fmt: skip

    def hit(self, prompt: Sequence[int], computed: Sequence[int]) -> int:
        """Serves a prompt, of which `computed` is computed in the end, its answer included; returns its hit."""
        prefixes = [tuple(prompt[:end]) for end in range(0, len(prompt), self.size)]  # all but the last token's
        shared = max((one for one in prefixes if not one or one in self.seen), key=len)
        hit = max(len(one) for one in prefixes if len(one) <= len(shared) and self.needs(one) <= self.kept)
        ends = [prefixes[-1], *([shared] if len(shared) > hit else [])]
        ends += [tuple(computed[: len(computed) // self.size * self.size])] if self.ends else []
        self.kept |= {one for end in ends for one in self.needs(end)}
        self.seen |= {tuple(computed[:end]) for end in range(self.size, len(computed) + 1, self.size)}
        return hit
