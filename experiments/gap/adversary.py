"""Search for a stream of requests that defeats hazard's guard: how many hits below LRU it can be driven."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.shared import begun, finish, parser_of, table
from framework.interfaces.workload import WorkloadRequest
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_research.hazard import Hazard

SPACE = {
    "period": (20, 600),  # conversations until short and long ones swap which of them go on
    "short": (1, 8),  # blocks of a first prompt that is short
    "long": (4, 24),  # and of one that is long
    "turns": (2, 8),  # of a conversation that goes on
    "pause_s": (5, 400),  # mean seconds between its turns
    "false": (0, 50),  # percent of conversations that do the opposite
    "capacity": (20, 400),  # blocks
}
"""Least and largest value of each parameter."""


def stream(point: dict[str, int], seed: int, conversations: int) -> RequestPaths:
    """One conversation begins a second; what goes on swaps every `period` of them."""
    draw, due = random.Random(seed), []
    for number in range(conversations):
        is_long, swapped = number % 2 == 0, number // point["period"] % 2 == 1
        goes_on = (is_long != swapped) != (draw.random() < point["false"] / 100)
        time_s, ids = float(number), [number * 1000 + depth for depth in range(point["long" if is_long else "short"])]
        for _ in range(point["turns"] if goes_on else 1):
            due.append((time_s, ids))
            ids = [*ids, ids[-1] + 1]
            time_s += draw.expovariate(1 / point["pause_s"])
    return build_paths(
        WorkloadRequest(
            arrival_s=time_s, input_tokens=len(ids), output_tokens=1, block_tokens=1, block_ids=np.array(ids)
        )
        for time_s, ids in sorted(due, key=lambda request: request[0])
    )


def lost(point: dict[str, int], seed: int, conversations: int, tolerance: float = 0.0025) -> float:
    """Points of the hit rate that hazard is below LRU."""
    paths = stream(point, seed, conversations)
    lru, ours = (replay(paths, policy, point["capacity"]).hit_blocks for policy in (Lru(), Hazard(tolerance)))
    return 100 * (lru - ours) / paths.num_references


def search(tries: int, seed: int, conversations: int) -> tuple[dict[str, int], float]:
    """Half of the tries at random, then one or two parameters of the worst so far are drawn anew or moved."""
    draw, worst, most = random.Random(seed), dict[str, int](), -np.inf
    for number in range(tries):
        point = {name: draw.randint(*ends) for name, ends in SPACE.items()}
        if number >= tries // 2:
            moved = {name: round(worst[name] * draw.uniform(0.6, 1.6)) for name in draw.sample(list(SPACE), 2)}
            point = worst | {name: min(max(value, SPACE[name][0]), SPACE[name][1]) for name, value in moved.items()}
        found = lost(point, 0, conversations)
        if found > most:
            worst, most = point, found
            print(f"{number}: {found:.3f} points, {point}", flush=True)
    return worst, most


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, then replay the worst stream drawn anew, longer, and without the guard."""
    parser = parser_of(__doc__, "gap.adversary")
    parser.add_argument("--tries", type=int, default=120)
    parser.add_argument("--conversations", type=int, default=600)
    options = begun(parser, arguments, "results/adversary")
    worst, most = search(options.tries, 0, options.conversations)
    length = options.conversations
    cases: list[tuple[str, dict[str, Any]]] = [
        ("as found", {"seed": 0, "conversations": length}),
        ("drawn anew", {"seed": 1, "conversations": length}),
        ("four times as long", {"seed": 0, "conversations": 4 * length}),
        ("without the guard", {"seed": 0, "conversations": length, "tolerance": 1.0}),
    ]
    rows = [{"stream": name, "points_below_lru": lost(worst, **how), **worst} for name, how in cases]
    body = [[row["stream"], f"{row['points_below_lru']:.2f}"] for row in rows]
    tables = {"adversary": table(["the worst stream", "points of the hit rate below LRU"], body)}
    finish(options, {"adversary": rows}, tables, tries=options.tries, conversations=length, most=most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
