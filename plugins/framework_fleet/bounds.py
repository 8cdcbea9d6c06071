"""What no router, or no fixed assignment of sessions, could exceed: bounds of a fleet's hits and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from framework.interfaces.workload import WorkloadRequest
from framework.types import Namespace
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.stack import reuse_distances
from framework_fleet.replica import Sent

_MOST_TRIES = 200
"""Assignments of sessions that are tried after the first: each counts two replicas anew."""


class Bounds:
    """Bounds for the requests that a fleet served.

    Requests are counted one at a time, each an atomic access, as in mode=cache_only, and full blocks alone are cached.
    NOTE: so the optimum is a bound of what can be kept, not of an engine in which requests overlap: such a one may hit
    what a request under way has just written, before that would be next.

    Args:
        sent: in the order in which they were admitted.
        num_blocks: of each replica's pool.
    """

    def __init__(self, sent: Sequence[Sent], num_blocks: Sequence[int], block_size: int) -> None:
        self._sent, self._num_blocks, self._size = sent, num_blocks, block_size
        self._paths = self._paths_of(range(len(sent)))
        # A hit never covers a whole prompt, nor any of the output.
        self._most = (np.array([one.item.input_tokens for one in sent]) - 1) // block_size

    def results(
        self, hit_tokens: int, ttft_s: Mapping[int, float], prefill_s: Callable[[int, int], float]
    ) -> dict[str, Any]:
        """The bounds, and how far the fleet was from them.

        Args:
            hit_tokens: that the fleet hit. ttft_s: of each finished request, by number.
            prefill_s: (cached, tokens) -> seconds of a prompt by itself.
        """
        total, size = sum(self._num_blocks), self._size
        optimum = int(optimum_hits(self._paths, total, pinned=True, most=self._most).sum()) * size
        unbounded = np.minimum(self._paths.infinite_hits, self._most).tolist()
        floors = [
            prefill_s(hit * size, one.item.input_tokens)
            for one, hit in zip(self._sent, unbounded, strict=True) if one.number in ttft_s
        ]  # fmt: skip
        floor = sum(floors) / len(floors) if floors else None
        mean = sum(ttft_s.values()) / len(ttft_s) if ttft_s else None
        return {
            "shared_lru_hit_tokens": self._lru_hits(self._paths, range(len(self._sent)), total) * size,
            "shared_optimum_hit_tokens": optimum,
            "static_hit_tokens": self.static_hit_tokens(),
            "regret_tokens": optimum - hit_tokens,
            "ttft_floor_s_mean": floor,
            "ttft_regret_s": mean - floor if mean is not None and floor is not None else None,
        }

    def static_hit_tokens(self) -> int | None:
        """Tokens hit under LRU by the best assignment found of sessions to replicas; None without sessions.

        Sessions are given out largest first, each to the replica with the least to compute for its blocks; then single
        sessions are moved, the largest first, as long as a move hits more.
        """
        sessions: dict[str, list[int]] = {}
        for number, one in enumerate(self._sent):
            if one.item.session is None:
                return None
            sessions.setdefault(one.item.session, []).append(number)
        sizes = {name: sum(len(self._sent[at].blocks) for at in numbers) for name, numbers in sessions.items()}
        order = sorted(sessions, key=lambda name: (-sizes[name], name))
        count = len(self._num_blocks)
        loads, of = [0.0] * count, dict[str, int]()
        for name in order:
            of[name] = min(range(count), key=lambda at: (loads[at] / self._num_blocks[at], at))
            loads[of[name]] += sizes[name]
        hits = [self._hits(sessions, of, at) for at in range(count)]
        tries = 0
        for name in order:
            here = of[name]
            for there in range(count):
                if there == of[name] or tries >= _MOST_TRIES:
                    continue
                tries += 1
                here = of[name]
                of[name] = there
                moved = self._hits(sessions, of, here), self._hits(sessions, of, there)
                if sum(moved) > hits[here] + hits[there]:
                    hits[here], hits[there] = moved
                else:
                    of[name] = here
        return sum(hits) * self._size

    def _hits(self, sessions: Mapping[str, list[int]], of: Mapping[str, int], replica: int) -> int:
        numbers = sorted(at for name, mine in sessions.items() if of[name] == replica for at in mine)
        if not numbers:
            return 0
        return self._lru_hits(self._paths_of(numbers), numbers, self._num_blocks[replica])

    def _lru_hits(self, paths: RequestPaths, numbers: Sequence[int], num_blocks: int) -> int:
        """Blocks of these requests' prompts, whose paths these are, that a cache of `num_blocks` hits under LRU."""
        distances = reuse_distances(paths)
        places = np.arange(paths.num_references) - np.repeat(paths.starts[:-1], np.diff(paths.starts))
        counted = places < np.repeat(self._most[list(numbers)], np.diff(paths.starts))
        return int(np.count_nonzero(counted & (distances > 0) & (distances <= num_blocks)))

    def _paths_of(self, numbers: Sequence[int]) -> RequestPaths:
        """The full blocks of these requests, of prompt and recorded output, one request a second."""
        size = self._size
        return build_paths(
            WorkloadRequest(
                arrival_s=float(at), input_tokens=max(1, len(self._sent[number].blocks)) * size,
                block_ids=self._sent[number].blocks, block_tokens=size, namespace=Namespace(),
            )
            for at, number in enumerate(numbers)
        )  # fmt: skip
