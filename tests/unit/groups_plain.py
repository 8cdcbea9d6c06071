"""Plain models of groups: the hit rule in single tokens, by brute force, and short traces made for the replay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from framework.groups.kinds import KVGroup
from framework.groups.memory import Memory, OnePool, PoolPerGroup, TwoLevel
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_component
from framework.replay.paths import RequestPaths, build_paths
from framework.workload.traces.own_format import as_trace


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


def lru() -> EvictionPolicy:
    policy: EvictionPolicy = build_component("eviction", "lru", {})
    return policy


def paths_of(prompts: Iterable[Sequence[int]], unit: int = 4) -> RequestPaths:
    requests = (WorkloadRequest(prompt=np.array(prompt, dtype=np.int32), arrival_s=float(i))
                for i, prompt in enumerate(prompts))  # fmt: skip
    return build_paths(as_trace(requests, unit), full_blocks_only=True)


def branching(count: int, seed: int, *, longest: int = 60) -> list[list[int]]:
    """Prompts that go on from any place of earlier ones, with tokens of their own."""
    draw, made = random.Random(seed), list[list[int]]()
    for number in range(count):
        base = draw.choice(made)[: draw.randrange(longest)] if made and draw.random() < 0.8 else [draw.randrange(3)] * 6
        made.append((base + [100 + number] * draw.randrange(1, 14))[:longest])
    return made


def memories(groups: Sequence[KVGroup], num_bytes: int, paths: RequestPaths,
             policy: Callable[[], EvictionPolicy] = lru) -> dict[str, Memory]:  # fmt: skip
    """The three ways to share, fresh; those that refuse the groups are left out."""
    given = {"num_bytes": num_bytes, "parents": paths.parents.tolist(), "unit": paths.block_tokens}
    made: dict[str, Memory] = {"one pool": OnePool(groups, policy, **given)}
    if len({each.block_tokens for each in groups}) == 1 and any(each.kind == "full" for each in groups):
        shares = [1 / len(groups)] * len(groups)
        made["pool per group"] = PoolPerGroup(groups, policy, shares=shares, **given)
    return {**made, "two levels": TwoLevel(groups, policy, **given)}


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
