"""A file of JSON lines as columns: what an allocator that counts cache-only replays may also read faster."""

# Shapes: R lines  E numbers in all lists of a field

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = (
    npt.NDArray[np.float64]
    | npt.NDArray[np.int64]
    | tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    | list[str | None]
    | list[int | None]
    | None
)


class LineField(NamedTuple):
    """A field that lines have, and the column it becomes.

    Attributes:
        name: the key, as written.
        kind: a `number` becomes (R,) float64 and an `integer` (R,) int64; `integers`, a list of them in each line, (E,)
            int64 and where each line's begin, (R + 1,) int64; a `text` a list of R. Numbers and lists are required.
        required: each line has it. One that is not becomes a list with None where it is missing or null; None where no
            line has it.
        low, high: bounds of an integer, both included.
    """

    name: str
    kind: Literal["number", "integer", "integers", "text"]
    required: bool = True
    low: int = 0
    high: int = 0


LineReader: TypeAlias = Callable[[bytes, Sequence[LineField]], tuple[Column, ...] | None]
"""A file's content and its lines' fields to one column a field; None where a line is anything else."""
