"""Copies of blocks between tiers, and the interface of whoever carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from framework.types import BlockHash


@dataclass(slots=True, eq=False)
class Copy:
    """One block on its way from tier `source` to tier `target`; 0 is the pool.

    Attributes:
        block: the pool's block that is read or written; 0 where the pool has no part in it.
        failed: why the bytes did not arrive; empty while they may.
        waited: whether a request waits for it: a load.
        begun_s, ended_s: on the run's clock, when it was asked for and when it was found to have ended.
        load: what waits for it; belongs to who submitted it.
    """

    key: BlockHash
    source: int
    target: int
    block: int = 0
    failed: str = ""
    waited: bool = False
    begun_s: float = 0.0
    ended_s: float = 0.0
    load: Any = None


class Transfers(Protocol):
    """Carries out copies: a thread over real stores in a serve run, a model of the links in a replay.

    A load goes ahead of stores that wait, but never ahead of what writes or removes its own content. Everything else
    happens in the order of the calls, so that a tier's bytes follow its keys.
    """

    @property
    def failure(self) -> str:
        """The first thing that a store did wrong, with its tier; empty while none did. A block that is not there, or
        damaged, is no failure of a store that says so."""

    def submit(self, copies: Sequence[Copy]) -> None:
        """Begin these copies; those of one call are one operation of their links."""

    def remove(self, key: BlockHash, tier: int) -> None:
        """Once all that was submitted before has ended, the tier forgets this content."""

    def release(self, copy: Copy) -> None:
        """The pool's block that `copy` reads is about to be overwritten: read it before that happens."""

    def finished(self) -> Sequence[Copy]:
        """The copies that ended since the last call."""

    def discovered(self) -> Sequence[tuple[int, Sequence[BlockHash]]]:
        """(tier, contents) that somebody else may have stored there since the last call."""

    @property
    def num_pending(self) -> int:
        """Copies submitted and not yet returned by `finished`."""

    def wait(self, until: float | None) -> None:
        """Let time pass until a copy has ended, at most to `until` on the run's clock."""

    def load_times(self, tiers: Sequence[int]) -> tuple[float, ...] | None:
        """Predicted seconds until blocks in these tiers, loaded in this order, are in the pool; None where unknown."""

    def close(self, *, drain: bool) -> None:
        """End. With `drain`, what was submitted is carried out first; else it is dropped. Idempotent."""
