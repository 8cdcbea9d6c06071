"""Faults to plant in a plugin's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Unreadable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def raising(error: Callable[[], BaseException], *, late: bool = False) -> Callable[..., Any]:
    """What takes the method and its arguments and raises; `late`: once the method has done its work."""

    def fault(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if late:
            real(*args, **options)
        raise error()

    return fault
