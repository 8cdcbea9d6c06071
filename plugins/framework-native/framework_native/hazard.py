"""Cache-only replay of `hazard` and `hinted` in C++; what they learn is fitted by their own code in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from framework.interfaces.allocator import ReferencePaths
from framework.interfaces.eviction import EvictionPolicy
from framework_native._core import replay_hazard

_TWINS = frozenset({"framework_builtin.eviction.hazard:Hazard", "framework_builtin.eviction.hinted:Hinted"})
_MOST_BLOCKS = 2**31 - 2
_MOST_RETURNS = 2**53
_KEY_NUMBERS = 8
_INTS = npt.NDArray[np.int32]


class Learner:
    """The policy's estimate of returns, fed with the records that the core keeps."""

    def __init__(self, estimate: Any) -> None:
        self._estimate = estimate

    def __call__(
        self, now: float, keys: bytes, kinds: bytes, starts: bytes, ends: bytes, stopped: bytes, num_records: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
        """Index (C, A), edges of its bins (A,), scores of groups that begin to wait (C,), the unit of time.

        Args:
            keys: (new kinds, 8) int32: sort, features, what was foretold.
            kinds, starts, ends, stopped: (H,) int32, float64, float64, uint8, of the records kept.
            num_records: made so far, those no longer kept included.
        """
        estimate = self._estimate
        for sort, *features, foretold in np.frombuffer(keys, np.int32).reshape(-1, _KEY_NUMBERS).tolist():
            estimate.kind_of(sort, tuple(features), foretold)
        estimate.load(kinds, starts, ends, stopped, num_records)
        estimate.learn(now)
        found = (np.ascontiguousarray(estimate.index), np.ascontiguousarray(estimate.edges))
        return (*found, np.array(estimate.first_scores), float(estimate.unit))


def count(
    paths: ReferencePaths, policy: EvictionPolicy, num_blocks: int, *, leaf_first: bool, list_evicted: bool = False
) -> tuple[_INTS, int, int, _INTS] | None:
    """Hits of each request (R,), blocks admitted and evicted, nodes evicted in order (empty unless asked for).

    Equal to the reference in Python in all of them. None: not one of the two policies, or paths that know no facts of
    requests. 1.3 us a block on a chat trace, 0.2 on coding agents (tests/bench/test_bench_learning.py), most of it the
    fit in NumPy. Memory until it ends: about 100 bytes a group, 4 a reference of the trace, 40 a node.
    """
    kind = type(policy)
    if f"{kind.__module__}:{kind.__qualname__}" not in _TWINS or num_blocks > _MOST_BLOCKS:
        return None
    if not hasattr(paths, "request_facts") or not hasattr(paths, "node_partial"):
        return None
    given: Any = policy
    return replay_hazard(
        Learner(given.estimate()),
        tolerance=float(given.tolerance),
        window=int(given.window),
        warm_up=min(int(given.warm_up), _MOST_RETURNS),
        nodes=np.ascontiguousarray(paths.nodes, dtype=np.int32),
        starts=np.ascontiguousarray(paths.starts, dtype=np.int64),
        parents=np.ascontiguousarray(paths.parents, dtype=np.int32),
        partial=np.ascontiguousarray(paths.node_partial, dtype=np.uint8),
        num_blocks=num_blocks,
        leaf_first=leaf_first,
        list_evicted=list_evicted,
        **_facts(paths, given),
    )


def _facts(paths: ReferencePaths, policy: Any) -> dict[str, npt.NDArray[Any]]:
    """What the core reads of requests, (R,) each; -1 and NaN where nothing is known."""
    known = [paths.request_facts(request, 0) for request in range(len(paths.starts) - 1)]
    categories: dict[str, int] = {}
    names = [-1 if f.category is None else categories.setdefault(f.category, len(categories)) for f in known]
    return {
        "prompt_tokens": np.array([f.prompt_tokens or 0 for f in known], np.int64),
        "turns": np.array([f.turn or 0 for f in known], np.int64),
        "arrivals": np.array([_number(f.arrival) for f in known], np.float64),
        "returns": np.array([_number(policy.foretold_time(f)) for f in known], np.float64),
        "categories": np.array(names, np.int32),
        "foretold": np.array([policy.foretold(f) for f in known], np.int32),
    }


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
