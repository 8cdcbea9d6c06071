"""Cache-only replays as Fitting counts them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from framework.errors import InvalidArgument
from framework.interfaces.eviction import EvictionPolicy
from framework_cache_only.replay_core import ReferencePaths, ReplayCore, ReplayCounts


class Fitting(ReplayCore):
    """Counts where everything fits: no policy is asked then."""

    def count(
        self,
        paths: ReferencePaths,
        policy: EvictionPolicy,
        num_blocks: int,
        *,
        leaf_first: bool = False,
        bypass: bool = False,
    ) -> ReplayCounts | None:
        if num_blocks < 1:
            raise InvalidArgument(f"num_blocks must be at least 1, found {num_blocks}")
        if num_blocks < len(paths.parents):
            return None
        seen, hits = 0, []
        for start, end in pairwise(paths.starts.tolist()):
            path = paths.nodes[start:end]
            hits.append(int((path < seen).sum()))
            seen = max(seen, int(path.max(initial=-1)) + 1)
        return ReplayCounts(request_hits=np.array(hits, dtype=np.int32), admitted=seen, evictions=0)
