"""The offline optimum over groups: the most tokens that any choice of checkpoints and blocks could hit.

Rules. A request is one atomic access: it hits the longest prefix at which every group has what it needs, computes the
rest, and then any of what it computed and of what was resident stays, at every place that is a multiple of the groups'
alignment, as long as the bytes fit the budget; while it runs it may exceed it. Blocks of any size fit anywhere. A state
or window left of the hit is not computed again. Only prompts are cached. No way to share memory, no checkpoint rule and
no order of eviction hits more under a budget of the same bytes, requests one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from framework.errors import InvalidArgument
from framework.groups.kinds import KVGroup, alignment, find_hit
from framework.replay.optimum import optimum_hits
from framework.replay.paths import RequestPaths

Content = tuple[int, int]
"""(group, node)"""
Contents = frozenset[Content]


class _Trace:
    """A trace of few requests as sets of contents. Nodes are prefixes of one alignment or less, the paths' unit."""

    def __init__(self, paths: RequestPaths, groups: Sequence[KVGroup]) -> None:
        self.groups, self.step, self.unit = groups, alignment(groups), paths.block_tokens
        self.paths, self.prompts = list(paths.walk()), paths.input_tokens.tolist()
        self.wide = [group.block_tokens // self.unit for group in groups]

    def needs(self, request: int, place: int) -> Contents | None:
        """What a hit of `place` tokens needs; None where a draft model would look beyond the prompt."""
        path, found = self.paths[request], set[Content]()
        for g, group in enumerate(self.groups):
            for number in group.needs(place):
                at = (number + 1) * self.wide[g] - 1
                if at >= len(path):
                    return None
                found.add((g, path[at]))
        return frozenset(found)

    def hit(self, request: int, kept: Contents) -> int:
        path = self.paths[request]

        def present(group: int, block: int) -> bool:
            at = (block + 1) * self.wide[group] - 1
            return at < len(path) and (group, path[at]) in kept

        return find_hit(self.groups, present, self.prompts[request] - 1).tokens

    def after(self, request: int, kept: Contents, hit: int) -> Contents:
        """All that could stay after a request."""
        path = self.paths[request]
        computed = {(g, path[at]) for g, wide in enumerate(self.wide) for at in range(wide - 1, len(path), wide)
                    if (at + 1) * self.unit > hit}  # fmt: skip
        return kept | computed

    def num_bytes(self, kept: Contents) -> int:
        return sum(self.groups[g].block_bytes for g, _ in kept)


def optimum_tokens(paths: RequestPaths, groups: Sequence[KVGroup], num_bytes: int) -> int:
    """Most tokens that can be hit in all requests together. Exact; time grows exponentially: for a dozen requests.

    What is kept is always what some later requests, each at one place, are going to need; all else is of no use.
    """
    trace = _Trace(paths, groups)
    count = len(trace.paths)
    goals = [
        [need for place in range(trace.step, trace.prompts[j], trace.step) if (need := trace.needs(j, place))]
        for j in range(count)
    ]

    def choices(coming: int, able: Contents, kept: Contents) -> Iterator[Contents]:
        """Every set worth keeping out of `able` for the requests from `coming` on."""
        if coming == count:
            yield kept
            return
        for need in (frozenset[Content](), *goals[coming]):
            more = kept | need & able
            if trace.num_bytes(more) <= num_bytes:
                yield from choices(coming + 1, able, more)

    @cache
    def best(request: int, kept: Contents) -> int:
        if request == count:
            return 0
        hit = trace.hit(request, kept)
        able = trace.after(request, kept, hit)
        return hit + max(best(request + 1, stay) for stay in set(choices(request + 1, able, frozenset())))

    return best(0, frozenset())


def bound_tokens(paths: RequestPaths, groups: Sequence[KVGroup], num_bytes: int) -> int:
    """At least as many tokens as any schedule can hit, for whole traces. The smaller of two bounds:

    * of full attention alone: the exact optimum of its blocks, when all other groups are free and always there;
    * of space and time: what a hit needs lies idle since its node was last asked for, in disjoint intervals for any two
      requests, and all intervals together have no more than the budget times the gaps between requests. Each request
      takes one place; fractions of places are allowed, so that the best choice is greedy.

    Raises:
        InvalidArgument: the paths' unit is not the groups' alignment, or a draft's lookahead, or no full attention.

    O(references of the trace times the blocks of the widest window), then a sort.
    """
    step = alignment(groups)
    full = [group for group in groups if group.kind == "full"]
    if paths.block_tokens != step or not full or any(group.lookahead_drop for group in groups):
        raise InvalidArgument(f"the bound is for paths of the groups' alignment, {step} tokens, found "
                              f"{paths.block_tokens}, with full attention and no lookahead")  # fmt: skip
    full_bytes = sum(group.block_bytes * step // group.block_tokens for group in full)
    alone = optimum_hits(paths, max(1, num_bytes // full_bytes), pinned=False)
    most = (paths.input_tokens - 1) // step
    return min(int(alone.clip(max=most).sum()) * step, _space_time(paths, groups, num_bytes, step))


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
