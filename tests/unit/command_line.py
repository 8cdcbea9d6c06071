"""Commands of `python -m framework`, called in this process."""

from collections.abc import Callable, Sequence

from framework.__main__ import main


def command(name: str) -> Callable[[Sequence[str]], int]:
    """`python -m framework NAME WORDS...` as a function of its words; returns the exit status."""
    return lambda words: main([name, *map(str, words)])
