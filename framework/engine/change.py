"""Changes of an engine's state that are whole or leave it torn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NoReturn

from framework.errors import EngineInterrupted


class Change:
    """A change of an engine's state, from `begin` to `end`: left by an exception of any kind, the engine is torn.

    Not a context manager: it costs a step and a submission a third of this.

    Args:
        owner: the engine.
        inner: its methods that run within a change, and nowhere else.

    Attributes:
        torn: a change has begun and not ended well.
    """

    def __init__(self, owner: object, inner: Sequence[Callable[..., Any]]) -> None:
        self.torn = False
        self._owner, self._thread = owner, 0
        self._inner = {method.__code__ for method in inner}

    def begin(self) -> None:
        """A change begins.

        Raises:
            EngineInterrupted: one is under way, or did not end.
        """
        if self.torn:
            self._refuse()
        self._thread = get_ident()
        self.torn = True

    def end(self) -> None:
        """The change is whole."""
        self.torn = False

    def is_under_way(self) -> bool:
        """Whether a change is being made, by the frames that run: an interrupt could leave a flag behind."""
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if frame.f_code in self._inner and frame.f_locals.get("self") is self._owner:
                return True
            frame = frame.f_back
        return False

    def _refuse(self) -> NoReturn:
        if not self.is_under_way():
            raise EngineInterrupted(
                "a step of this engine was interrupted: its blocks and tables cannot be trusted until it is reset"
            )
        if self._thread == get_ident():
            raise EngineInterrupted("this engine was called from within one of its own steps; wait until it has ended")
        raise EngineInterrupted("this engine is in a step in another thread; use it from one thread at a time")
