"""The extension point for routers: which replica gets a request, by what a router can know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from framework.types import BlockHash, Hint

__all__ = ["Load", "ReplicaView", "RoutedRequest", "Router", "ScoredRouter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """What a router knows of a request that it is about to send.

    Attributes:
        number: counts requests in the order in which they are routed; one that is sent again keeps its own.
        num_tokens: of its prompt.
        hashes: chained names of the prompt's full blocks, in order: equal ones name equal prefixes.
        block_size: tokens a block.
        now_s: the time, seconds.
        session, tenant, category, turn, priority, hint: what its client says of it, as in WorkloadRequest.
    """

    number: int
    num_tokens: int
    hashes: Sequence[BlockHash]
    block_size: int
    now_s: float
    session: str | None = None
    tenant: str = ""
    category: str | None = None
    turn: int | None = None
    priority: int = 0
    hint: Hint | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica last reported of itself. A request that it was sent since then is not in it.

    Attributes:
        at_s: when that was so, seconds.
        running, waiting: its requests.
        used_blocks: blocks that its requests use, or that it keeps for those who decode.
    """

    at_s: float = 0.0
    running: int = 0
    waiting: int = 0
    used_blocks: int = 0


class ReplicaView:
    """One replica, as the router knows it: at the moment that it is asked, and only then.

    Attributes:
        index: its number, from 0.
        num_blocks, block_size: of its pool.
        load: as it last reported, late where the run says so.
        active: requests that the router sent it and whose answers have not ended.
        active_prefill_tokens: prompt tokens, less what was matched, of those whose first token has not come.
    """

    __slots__ = ("_blocks", "_match", "active", "active_prefill_tokens", "block_size", "index", "load", "num_blocks")

    def __init__(
        self,
        index: int,
        num_blocks: int,
        block_size: int,
        match: Callable[[int], tuple[int, ...]],
        blocks: Callable[[int], int],
    ) -> None:
        self.index, self.num_blocks, self.block_size, self._match, self._blocks = (
            index, num_blocks, block_size, match, blocks,
        )  # fmt: skip
        self.load = Load()
        self.active = self.active_prefill_tokens = 0

    @property
    def matched_tokens(self) -> int:
        """Leading tokens of the request at hand that its pool holds, as far as the router's index knows."""
        return self._match(self.index)[0]

    @property
    def matched_by_tier(self) -> tuple[int, ...]:
        """Leading tokens of the request at hand by where they lie: in the pool, then beyond that in each tier."""
        return self._match(self.index)

    @property
    def potential_blocks(self) -> int:
        """Distinct blocks of the prompts under way there, if the request at hand were among them."""
        return self._blocks(self.index)

    @property
    def usage(self) -> float:
        """Share of its pool that requests used when it last reported, 0 to 1."""
        return self.load.used_blocks / self.num_blocks

    def __repr__(self) -> str:
        return f"<ReplicaView {self.index}: {self.active} active, {self.load}>"


class Router:
    """Chooses a replica for each request; the base class of every router, with full control.

    Chosen by `mode.router=NAME`; constructor keywords are its options. It must be deterministic given its constructor's
    `seed`, and may not keep the views: it is handed the same ones again, as they are by then.

    Attributes:
        needs_matches: whether `matched_tokens` or `matched_by_tier` are read: the run then keeps an index for it.
            Raises PluginError where they are read without.
    """

    needs_matches: ClassVar[bool] = False

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """Which of these replicas gets the request. Asked once a request, and again where its replica has left.

        Args:
            replicas: those that are there, by index; at least one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no route(request, replicas)")

    def left(self, index: int) -> None:
        """The replica of this index has left; it comes back, if at all, with an empty cache."""

    def facts(self) -> dict[str, Any]:
        """What it measured, for the run's result: names to texts and finite numbers."""
        return {}


class ScoredRouter(Router):
    """A router by one number: the replica with the smallest score gets the request, the first among equals."""

    def score(self, request: RoutedRequest, replica: ReplicaView) -> float:
        """Smallest first. Asked of every replica that is there, once a request."""
        raise NotImplementedError(f"{type(self).__name__} has no score(request, replica)")

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return min(replicas, key=lambda replica: self.score(request, replica))
