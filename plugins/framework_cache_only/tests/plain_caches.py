"""A prefix cache written straight from its definition, on other data structures than ours; for benches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


def plain_lru(requests: Iterable[Sequence[Hashable]], capacity: int) -> int:
    """Hit blocks of LRU, one atomic access a request; a dictionary in order of use, deepest of a request oldest."""
    cache: OrderedDict[Hashable, None] = OrderedDict()
    hits = 0
    for path in requests:
        for node in path:
            if node not in cache:
                break
            hits += 1
        for node in reversed(path[:capacity]):
            if node in cache:
                cache.move_to_end(node)
            else:
                cache[node] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits
