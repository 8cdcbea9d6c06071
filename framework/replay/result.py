"""What a cache-only replay counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from framework.replay.paths import RequestPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOnlyResult:
    """Exact counts of one replay.

    Attributes:
        hit_blocks: blocks of the longest resident prefix, summed over requests; `prompt_blocks` all references.
        hit_tokens, prompt_tokens: the same in tokens; a partial last block counts the tokens it holds.
        admitted, evictions: blocks inserted and removed; their difference is what is resident at the end.
        request_hits: (R,) int32, hit blocks of each request.
    """

    num_requests: int
    hit_blocks: int
    prompt_blocks: int
    hit_tokens: int
    prompt_tokens: int
    admitted: int
    evictions: int
    request_hits: npt.NDArray[np.int32] = field(repr=False, compare=False)

    @property
    def hit_rate(self) -> float:
        """By tokens: the primary definition."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def block_hit_rate(self) -> float:
        return self.hit_blocks / self.prompt_blocks if self.prompt_blocks else 0.0


def summarise(
    paths: RequestPaths, hits: Sequence[int] | npt.NDArray[np.int32], admitted: int, evictions: int
) -> CacheOnlyResult:
    """The result of a replay in which request i hit its first `hits[i]` blocks."""
    request_hits = np.asarray(hits, dtype=np.int32)
    return CacheOnlyResult(
        num_requests=paths.num_requests,
        hit_blocks=int(request_hits.sum(dtype=np.int64)),
        prompt_blocks=paths.num_references,
        hit_tokens=int(paths.hit_tokens(request_hits).sum()),
        prompt_tokens=int(paths.input_tokens.sum()),
        admitted=admitted,
        evictions=evictions,
        request_hits=request_hits,
    )


def replay_infinite(paths: RequestPaths) -> CacheOnlyResult:
    """The cache that never evicts: the ceiling of every policy."""
    return summarise(paths, paths.infinite_hits.tolist(), admitted=paths.num_nodes, evictions=0)
