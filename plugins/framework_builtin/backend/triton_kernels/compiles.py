"""What Triton compiles and what it finds in its cache, counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Compiles:
    """Names of the kernels that Triton compiled, and of those that its cache on disk had, in order."""

    compiled: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


@contextmanager
def counted() -> Iterator[Compiles]:
    """Count what this process compiles or loads within the block. A kernel already in memory counts as neither."""
    from triton import knobs

    counts, before = Compiles(), knobs.compilation.listener

    def listen(*, src: Any, cache_hit: bool, **facts: Any) -> None:
        (counts.found if cache_hit else counts.compiled).append(src.name)
        if before is not None:
            before(src=src, cache_hit=cache_hit, **facts)

    knobs.compilation.listener = listen
    try:
        yield counts
    finally:
        knobs.compilation.listener = before
