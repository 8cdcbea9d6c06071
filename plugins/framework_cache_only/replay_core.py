"""The extension point for replay cores: cache-only replays counted faster than in Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from framework.guard.boundary import Guard, is_count
from framework.interfaces.eviction import EvictionPolicy
from framework.types import RequestFacts

PYTHON = "python"
"""What counts unless another core is chosen: `framework_cache_only.reference`."""


class ReferencePaths(Protocol):
    """A trace as paths through a prefix tree: R requests, E block references, N nodes (distinct prefixes).

    Attributes:
        nodes: (E,) int32, the references of all requests, in order. A request names a node once; nodes are numbered in
            the order of their first reference.
        starts: (R + 1,) int64, request i references `nodes[starts[i]:starts[i + 1]]`, root side first.
        parents: (N,) int32, the node above, -1 at the root.
        next_requests: (E,) int32, the next request that references the same node; R when there is none.
        tenants: (R,) int32.
        node_tokens: (N,) int64, tokens up to and including each node; a partial block counts what filled it first.
        node_partial: (N,) bool, whether a node holds fewer tokens than a block has.
    """

    @property
    def nodes(self) -> npt.NDArray[np.int32]: ...
    @property
    def starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def parents(self) -> npt.NDArray[np.int32]: ...
    @property
    def tenants(self) -> npt.NDArray[np.int32]: ...
    @property
    def next_requests(self) -> npt.NDArray[np.int32]: ...
    @property
    def node_tokens(self) -> npt.NDArray[np.int64]: ...
    @property
    def node_partial(self) -> npt.NDArray[np.bool_]: ...

    def request_facts(self, request: int, hit_blocks: int) -> RequestFacts:
        """What a policy may read of a request that found so many of its blocks in the cache."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """What a cache-only replay counted.

    Attributes:
        request_hits: (R,) int32, leading resident blocks of each request.
        admitted, evictions: blocks inserted and removed.
    """

    request_hits: npt.NDArray[np.int32]
    admitted: int
    evictions: int


class ReplayCore(ABC):
    """Counts a cache-only replay: each request is one atomic access. Made without arguments but its own options."""

    @abstractmethod
    def count(
        self,
        paths: ReferencePaths,
        policy: EvictionPolicy,
        num_blocks: int,
        *,
        leaf_first: bool = False,
        bypass: bool = False,
    ) -> ReplayCounts | None:
        """The counts of `framework_cache_only.reference.replay` with the same arguments, to the last block.

        Args:
            policy: fresh and not attached. Know it by its exact class, since a subclass may decide otherwise, and its
                settings by its `parameters`.

        Returns:
            None for a policy that this core does not count: the framework then counts in Python and says so.

        Raises:
            InvalidArgument: `num_blocks` below 1.
        """


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
