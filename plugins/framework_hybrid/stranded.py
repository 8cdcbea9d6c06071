"""What groups of KV keep, and what of it in vain."""

from __future__ import annotations

from framework.groups.memory import Memory
from framework.groups.pool import ROOT, Node


def resident_bytes(memory: Memory) -> list[int]:
    """(G,) bytes of what can be found."""
    sizes = [0] * len(memory.groups)
    for pool in dict.fromkeys(memory.pools):
        for (group, _), blocks in pool.index.items():
            sizes[group] += len(blocks) * memory.groups[group].block_bytes
    return sizes


def stranded_bytes(memory: Memory) -> list[int]:
    """(G,) bytes of each group that are needed at no place from which a request could go on.

    A content that is resident twice counts once. O(prefixes of what is resident + resident blocks times those of the
    widest window).
    """
    groups, parents, unit = memory.groups, memory.parents, memory.unit
    have: list[set[Node]] = [set() for _ in groups]
    for g, node in memory.resident():
        have[g].add(node)
    depths: dict[Node, int] = {ROOT: 0}  # units up to and including each node
    for node in set().union(*have):
        path = []
        while node not in depths:
            path.append(node)
            node = parents[node]
        for number, one in enumerate(reversed(path), depths[node] + 1):
            depths[one] = number

    def up(node: Node, units: int) -> Node:
        for _ in range(units):
            node = parents[node]
        return node

    wide = [group.block_tokens // unit for group in groups]
    runs: list[dict[Node, int]] = []  # resident blocks without a gap that end at a node
    for g, held in enumerate(have):
        run: dict[Node, int] = {}
        for node in sorted(held, key=depths.__getitem__):
            run[node] = 1 + run.get(up(node, wide[g]), 0)
        runs.append(run)
    # A draft model's group has a block beyond the place, so places are looked for from there.
    ahead = max((w for w, group in zip(wide, groups, strict=True) if group.lookahead_drop), default=0)
    anchors = [g for g, w in enumerate(wide) if groups[g].kind != "chunk" and w * groups[g].lookahead_drop == ahead]
    useful: list[set[Node]] = [set() for _ in groups]
    for end in min((have[g] for g in anchors), key=len, default=set()):
        place = (depths[end] - ahead) * unit
        needs = [group.needs(place) for group in groups] if place % memory.step == 0 else []
        ends = [up(end, depths[end] - need.stop * wide[g]) for g, need in enumerate(needs)]
        if not needs or any(runs[g].get(ends[g], 0) < len(need) for g, need in enumerate(needs)):
            continue
        for g, need in enumerate(needs):
            node = ends[g]
            for _ in need:
                if groups[g].kind == "full" and node in useful[g]:
                    break
                useful[g].add(node)
                node = up(node, wide[g])
    return [group.block_bytes * len(held - used) for group, held, used in zip(groups, have, useful, strict=True)]
