"""Evicted blocks go to the tier below."""

from __future__ import annotations

from framework.interfaces.tiering import Event, TierBlock, Tiering


class OnEviction(Tiering):
    """A block goes to the tier below when its own tier evicts it, and leaves that tier when a request loads it.

    With `exclusive=False` the lower copy stays after a load, so that a second eviction of the same content moves
    nothing: fewer writes, less room. Both are known as write-back.

    Source: exclusive caching, Wong and Wilkes, USENIX ATC 2002; write_back in SGLang's HiCache keeps the copy.
    """

    def __init__(self, *, exclusive: bool = True) -> None:
        self.exclusive = exclusive

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event == "evicted"
