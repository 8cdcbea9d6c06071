"""Checks of what replay cores count."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.guard.boundary import Guard, is_count
from framework.interfaces.eviction import EvictionPolicy
from framework_cache_only.replay_core import ReferencePaths, ReplayCore, ReplayCounts


class GuardedReplayCore(Guard, ReplayCore):
    """A core that counts each request once and none above its blocks; else a PluginError names it."""

    def __init__(self, core: ReplayCore) -> None:
        super().__init__("replay core", core)

    def count(
        self,
        paths: ReferencePaths,
        policy: EvictionPolicy,
        num_blocks: int,
        *,
        leaf_first: bool = False,
        bypass: bool = False,
    ) -> ReplayCounts | None:
        answer: Any = self.plugin.count(paths, policy, num_blocks, leaf_first=leaf_first, bypass=bypass)
        if answer is None:
            return None
        if not isinstance(answer, ReplayCounts) or not (is_count(answer.admitted) and is_count(answer.evictions)):
            self.wrong("count", "must return ReplayCounts of ints, or None", answer)
        lengths, hits = np.diff(paths.starts), answer.request_hits
        if not isinstance(hits, np.ndarray) or hits.dtype.kind not in "iu" or hits.shape != lengths.shape:
            counted = getattr(hits, "shape", type(hits).__name__)
            raise self.fault("count", f"must count {len(lengths)} requests in an array of ints, counted {counted}")
        wrong = ((hits < 0) | (hits > lengths)).nonzero()[0]
        if len(wrong):
            request = int(wrong[0])
            what = f"counted {hits[request]} hits of request {request}, which references {lengths[request]} blocks"
            raise self.fault("count", what)
        return answer
