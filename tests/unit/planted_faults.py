"""Faults to plant in a plugin's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Unreadable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def faulty(base: Any, hook: str, fault: Callable[..., Any], when: Callable[[int], bool]) -> tuple[Any, list[int]]:
    """A plugin whose `hook` has `fault` at the calls, counted from 1, that `when` says; and a counter of its calls."""
    calls = [0]

    def method(self: Any, *args: Any, **options: Any) -> Any:
        calls[0] += 1
        real = getattr(super(cls, self), hook)
        return fault(real, *args, **options) if when(calls[0]) else real(*args, **options)

    cls = type("Faulty", (base,), {hook: method, "__module__": __name__})
    return cls, calls


def raising(error: Callable[[], BaseException]) -> Callable[..., Any]:
    """What takes the method and its arguments and raises."""

    def fault(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        raise error()

    return fault
