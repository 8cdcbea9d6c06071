"""Prefix caches written straight from their definitions, on other data structures than ours; for tests and benches."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

Paths = list[list[Hashable]]


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


def plain_fifo(requests: Iterable[Sequence[Hashable]], capacity: int) -> int:
    """Hit blocks of FIFO; a dictionary in order of admission, whose first entry not of this request goes."""
    cache: dict[Hashable, None] = {}
    hits = 0
    for path in requests:
        mine = set(path)
        resident = [node in cache for node in path]
        hits += resident.index(False) if False in resident else len(path)
        room = capacity - sum(resident)
        new = [node for node, known in zip(path, resident, strict=True) if not known][:room]
        for node in reversed(new):
            cache[node] = None
        spare = len(cache) - capacity
        if spare > 0:
            victims = []
            for node in cache:
                if node not in mine:
                    victims.append(node)
                    if len(victims) == spare:
                        break
            for node in victims:
                del cache[node]
    return hits


def read_plainly(path: Path, every: int = 1) -> Paths:
    """The requests of a trace of `hash_ids` or of `runs` as lists of names, by `json` alone; `every` nth id of runs."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    rows.sort(key=lambda row: row["timestamp"])
    return [_names(row, every) for row in rows]


def _names(row: dict[str, Any], every: int) -> list[Hashable]:
    if "runs" not in row:
        return list(row["hash_ids"])
    ids = [first + i for first, count in row["runs"] for i in range(count)]
    return [(row["scope"], name) for name in ids[every - 1 :: every]]
