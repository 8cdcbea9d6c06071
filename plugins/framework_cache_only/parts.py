"""What may take part in a replay that counts hits alone: observers, and what lies below the pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.interfaces.below import Below
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.observer import Observer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from framework_cache_only.paths import RequestPaths


class Losses(ABC):  # noqa: B024
    """Called with what a replay gives up: blocks are nodes of the trace's paths, in order."""

    def evicted(self, request: int, nodes: Sequence[int]) -> None:  # noqa: B027
        """The policy gave these up, to make room for `request`."""

    def declined(self, request: int, nodes: Sequence[int]) -> None:  # noqa: B027
        """There was no room to keep these, or the policy would not keep them."""

    def kept(self, request: int, nodes: Sequence[int]) -> None:  # noqa: B027
        """The policy gave these up, and a tier below the pool holds them."""

    def out_of_reach(self, request: int, nodes: Sequence[int]) -> None:  # noqa: B027
        """A tier alone held these when `request` came, behind the end of its cached prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A replay that is over.

    Attributes:
        paths: of the trace. hits: (R,) blocks that each request hit. num_blocks: of the pool and all tiers together.
    """

    paths: RequestPaths
    hits: npt.NDArray[np.int32]
    num_blocks: int


class CacheOnlyObserver(Observer):
    """An observer that has a part in such a replay too, where these two and those of a run are called alone."""

    @abstractmethod
    def losses(self) -> Losses | None:
        """What follows a replay that is about to begin; None: nothing does."""

    @abstractmethod
    def counted(self, replay: Counted) -> None:
        """That replay is over."""


class CacheOnlyBelow(Below):
    """What may lie below the pool of such a replay too."""

    @abstractmethod
    def count(self, paths: RequestPaths, policy: EvictionPolicy, shared: Mapping[str, Any]) -> CountedBelow:
        """What it is in one replay.

        Args:
            policy: the pool's.
            shared: what components may ask for: block_size, num_blocks of the pool, seed.

        Raises:
            ConfigError: it cannot be below a pool with this policy.
        """


class CountedBelow(ABC):
    """What lies below the pool of one replay that counts hits alone. A request is one access: `begin`, `settle`, `end`.

    Attributes:
        num_blocks: that can lie below.
    """

    num_blocks: int

    @abstractmethod
    def holds(self, node: int) -> bool:
        """Whether this content lies below."""

    @abstractmethod
    def begin(self, request: int, path: Sequence[int], blocks: Sequence[Any]) -> int:
        """A request comes: how many leading blocks of its prompt are cached, in the pool or below.

        Args:
            path: its contents in prompt order. blocks: whether the pool holds each, as truth values.
        """

    @abstractmethod
    def evicted(self, request: int, node: int) -> None:
        """The pool gives this content up for `request`, which has begun."""

    @abstractmethod
    def settle(self, nodes: Sequence[int]) -> None:
        """These contents of the request are in the pool now, in prompt order."""

    @abstractmethod
    def end(self) -> None:
        """The request is over."""

    @abstractmethod
    def results(self, block_bytes: int) -> dict[str, Any]:
        """What `result.json` says of it, with blocks of so many bytes."""

    @abstractmethod
    def columns(self) -> dict[str, Sequence[Any]]:
        """What `requests.jsonl` says of what each request got from below, a value a request."""

    @abstractmethod
    def against_optima(self, num_blocks: int) -> dict[str, Any]:
        """What `result.json` says of the hits beside the offline optimum, over a pool of `num_blocks`.

        `optimum_rules`, if it is among them, is added to those of one cache.
        """
