"""A bound of the hits over groups of KV: what no choice of checkpoints and blocks could exceed.

Rules. A request is one atomic access: it hits the longest prefix at which every group has what it needs, computes the
rest, and then any of what it computed and of what was resident stays, at every place that is a multiple of the groups'
alignment, as long as the bytes fit the budget; while it runs it may exceed it. Blocks of any size fit anywhere. A state
or window left of the hit is not computed again. Only prompts are cached. No way to share memory, no checkpoint rule and
no order of eviction hits more under a budget of the same bytes, requests one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from framework.errors import InvalidArgument
from framework.interfaces.groups import KVGroup, alignment
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import RequestPaths


def bound_tokens(paths: RequestPaths, groups: Sequence[KVGroup], num_bytes: int) -> int:
    """At least as many tokens as any schedule can hit, for whole traces. The smaller of two bounds:

    * of full attention alone, where there is any: the exact optimum of its blocks, when all other groups are free, and
      a prompt's last token is always computed;
    * of space and time: what a hit needs lies idle since its node was last asked for, in disjoint intervals for any two
      requests, and all intervals together have no more than the budget times the gaps between requests. Each request
      takes one place; fractions of places are allowed, so that the best choice is greedy.

    Raises:
        InvalidArgument: the paths' unit is not the groups' alignment, or a draft's lookahead.

    O(references of the trace times the blocks of the widest window), then a sort.
    """
    step = alignment(groups)
    if paths.block_tokens != step or any(group.lookahead_drop for group in groups):
        raise InvalidArgument(f"the bound is for paths of the groups' alignment, {step} tokens, found "
                              f"{paths.block_tokens}, and no lookahead")  # fmt: skip
    best = _space_time(paths, groups, num_bytes, step)
    full_bytes = sum(group.block_bytes * step // group.block_tokens for group in groups if group.kind == "full")
    if not full_bytes:
        return best
    most = (paths.input_tokens - 1) // step
    alone = optimum_hits(paths, max(1, num_bytes // full_bytes), pinned=False, most=most)
    return min(int(alone.sum()) * step, best)


def _space_time(paths: RequestPaths, groups: Sequence[KVGroup], num_bytes: int, step: int) -> int:
    last: dict[int, int] = {}
    pieces: list[tuple[float, int, int]] = []  # (bytes times requests for a token, tokens, bytes times requests)
    for request, path in enumerate(paths.walk()):
        idle = [request - last[node] for node in path if node in last]
        last.update(dict.fromkeys(path, request))
        most = min(len(idle), (int(paths.input_tokens[request]) - 1) // step)
        hull = [(0, 0)]
        before = [0]
        for age in idle[:most]:
            before.append(before[-1] + age)
        for count in range(1, most + 1):
            area = 0
            for group in groups:
                wide = step // group.block_tokens
                if group.kind == "state":
                    area += group.block_bytes * idle[count - 1]
                else:  # whole units only, of the first of which no more than the needed blocks count
                    first = group.first(count * step)
                    begin = -(-first // wide)
                    area += group.block_bytes * wide * (before[count] - before[begin])
                    if begin * wide > first:
                        area += group.block_bytes * (begin * wide - first) * idle[begin - 1]
            point = (count * step, area)
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        pieces += [(_slope(a, b), b[0] - a[0], b[1] - a[1]) for a, b in pairwise(hull)]
    room, tokens = num_bytes * max(0, paths.num_requests - 1), 0.0
    for slope, more, area in sorted(pieces):
        if area > room:
            return int(tokens + room / slope)
        tokens, room = tokens + more, room - area
    return int(tokens)


def _slope(a: tuple[int, int], b: tuple[int, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
