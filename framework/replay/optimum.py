"""What could a cache that knows the future have hit? The ceilings that policies are measured against.

`replay_optimum(bypass=True)` is exact: no schedule of admissions and evictions hits more blocks in the request model
of `framework.replay.reference` when a block may be declined. `bypass=False` is exact when every block of a request
must be admitted (as far as it fits). Both are upper bounds for a cache whose blocks stay pinned while requests
overlap, and for one that caches outputs nothing but prompts hit. `replay_flat_belady` is Belady's MIN for independent
objects: exact for flat streams, and neither bound nor optimum for prefixes.

Why furthest-next-use is exact here though a block needs its ancestors: whoever requests a block requests its
ancestors, so an ancestor's next use is never later than its descendant's. Keeping the nearest next uses, shallower
first among equals, therefore keeps a tree without holes; for a cache without holes each resident block of a request
is a hit, so the model is ordinary paging with batches, where the exchange argument of Belady (1966) and Mattson et
al. (1970) holds. The tests confirm both against exhaustive search over small instances.
"""

from __future__ import annotations

import heapq

from framework.errors import InvalidArgument
from framework.replay.paths import RequestPaths, flat_paths
from framework.replay.reference import CacheOnlyResult, summarise

_Entry = tuple[int, int, int]  # (-(next request, depth), -last request, node)


def replay_optimum(paths: RequestPaths, num_blocks: int, *, bypass: bool = True) -> CacheOnlyResult:
    """Keep, after each request, the blocks with the nearest next request, shallower first among equals.

    Among blocks that nobody requests again and that lie equally deep, the one requested last goes first.

    Args:
        bypass: the request's own blocks compete with the resident ones, so a block of no further use costs nothing.
            False: its first `num_blocks` blocks are resident after it, whatever their future, and only others go.

    `admitted` counts blocks kept after the request that brought them, so that `evictions` are real removals.

    Raises:
        InvalidArgument: `num_blocks` below 1.

    O(log n) a reference.
    """
    if num_blocks < 1:
        raise InvalidArgument(f"num_blocks must be at least 1, found {num_blocks}")
    resident: dict[int, int] = {}  # node -> its next request
    heap: list[_Entry] = []  # furthest next request first, then deepest, stale entries included
    depths, scale = paths.depths.tolist(), int(paths.depths.max(initial=0)) + 1
    bounds, hits, admitted, evicted = paths.starts.tolist(), [], 0, 0
    for request, path in enumerate(paths.walk()):
        num_hits = next((i for i, node in enumerate(path) if node not in resident), len(path))
        hits.append(num_hits)
        before = len(resident)
        if not bypass:
            path = path[:num_blocks]
        coming = paths.next_requests[bounds[request] : bounds[request] + len(path)].tolist()
        fresh = [node for node in path if node not in resident]
        resident.update(zip(path, coming, strict=True))
        if bypass:
            _push(heap, path, coming, depths, scale, request)
        while len(resident) > num_blocks:
            node, expected = _pop(heap, scale)
            if resident.get(node) == expected:
                del resident[node]
        if not bypass:
            _push(heap, path, coming, depths, scale, request)
        kept = sum(node in resident for node in fresh)
        admitted, evicted = admitted + kept, evicted + before + kept - len(resident)
    return summarise(paths, hits, admitted, evicted)


def replay_flat_belady(paths: RequestPaths, num_blocks: int) -> CacheOnlyResult:
    """Belady's MIN over the trace as a flat stream of independent blocks; every miss is admitted."""
    return replay_optimum(flat_paths(paths), num_blocks, bypass=False)


def _push(heap: list[_Entry], path: list[int], coming: list[int], depths: list[int], scale: int, request: int) -> None:
    for node, following in zip(path, coming, strict=True):
        heapq.heappush(heap, (-(following * scale + depths[node]), -request, node))


def _pop(heap: list[_Entry], scale: int) -> tuple[int, int]:
    rank, _, node = heapq.heappop(heap)
    return node, -rank // scale
