"""What lies below the pool, as an engine asks it. Here: nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.engine.request import Sequence as Row
from framework.interfaces.allocator import Hit
from framework.types import BlockHash


class Below:
    """Nothing lies below the pool: the base class of tiers, and what an engine without any has.

    Attributes:
        full: no sequence may begin to wait for blocks from below.
        ready: (sequence, tokens cached) of sequences with a table, all its blocks, and no row.
        busy: a load is under way: time alone brings something on.
    """

    def __init__(self) -> None:
        self.ready: list[tuple[Row, int]] = []

    @property
    def full(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return False

    # Admission

    def plan(self, seq: Row, hit: Hit) -> Any:
        """What to load for `seq` beyond the pool's hit; None if nothing. Its `hit` is the part of the pool."""
        return None

    def park(self, seq: Row, plan: Any) -> bool:
        """Let `seq` wait for contents that another sequence is loading already; False if there are none."""
        return False

    def prefetch(self, seq: Row, hit: Hit) -> None:
        """`seq` is first in line and the pool has no room."""

    def begin(self, seq: Row, hit: Hit, plan: Any) -> bool:
        """`seq` has just got its table: whether it waits for blocks from below, and gets its row later.

        Raises:
            FrameworkError: it holds nothing any more.
        """
        return False

    # What changes in the pool

    def flush(self) -> None:
        """Blocks that were evicted are about to be overwritten."""

    def committed(self, seq: Row, before: int, after: int) -> None:
        """The KV of the tokens from `before` to `after` of `seq`, which has a table, is in the pool."""

    def discard(self, seq: Row) -> None:
        """The KV that the table of `seq` names is not sound: nothing of it stays below, nor goes there."""

    def ending(self, seq: Row) -> None:
        """`seq` is about to free its table."""

    # Sequences without a row

    def poll(self) -> None:
        """Take note of the copies that have ended."""

    def wait(self, until: float | None) -> None:
        """Let time pass until a copy ends, at most to `until`."""

    def drop(self, seq: Row, *, returning: bool = False) -> None:
        """Free what `seq`, which has no row, holds, if anything: at once, or when its loads have ended.

        Args:
            returning: it waits again after that.
        """

    def give_up(self) -> bool:
        """Let the latest that waits for a row wait anew, without its blocks; False if none waits so."""
        if self.ready:
            self.drop(self.ready[-1][0], returning=True)
            return True
        return False

    def holding(self) -> Sequence[Row]:
        """The sequences that hold a table and no row."""
        return ()

    # Facts, and the end

    def lies_below(self, key: BlockHash) -> bool:
        """Whether a tier below the pool has this content, or it is on its way from one."""
        return False

    def check(self, *, settle: bool = False) -> None:
        """The blocks add up, and nothing is pinned for no copy.

        Args:
            settle: wait first until all copies under way have ended.

        Raises:
            InvariantViolation: they do not.
        """

    def summary(self) -> dict[str, Any]:
        """What `result.json` says of the tiers."""
        return {}

    def step_row(self) -> dict[str, Any]:
        """Of each tier, for a run's metrics file: what it holds, and the sequences that wait for blocks."""
        return {}

    def close(self, *, drain: bool) -> None:
        """End the transfers."""
