"""What one request of a trace is, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.types import Hint, TokenArray

BlockIdArray = npt.NDArray[np.int64]
"""(n,) int64 names of a prompt's blocks, in order. What a name means is up to the trace: see `TraceRequest`."""

MAX_TOKENS = 100_000_000
"""Most tokens one request may claim: above any context window, below what a corrupted digit makes of one."""


class FieldError(ValueError):
    """One field of one line is missing or wrong. Readers turn it into a WorkloadError with the file and the line."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival_s: seconds since the trace began; non-decreasing within a trace.
        input_tokens, output_tokens: lengths, at least 1 and at least 0.
        block_ids: (n,) int64, one a block of `block_tokens` tokens, the last may be partial; None in a trace that has
            lengths only. Two requests share block i when their ids 0 to i are equal and their scopes are equal.
        block_tokens: tokens a block; 0 without block ids.
        scope: block ids of different scopes name different content.
        session: conversation or agent it belongs to; "" when unknown.
        tenant: who sent it; "" when unknown.
        turn: how many earlier requests' prompts it extends; None when unknown.
        category: kind of request; None when unknown.
        hint: what the client foretells; None when it does not.
        tokens, output: (input_tokens,) and (output_tokens,) int32 token ids in token-level traces, else None.
        n, beam_width: samples drawn and beams searched, 1 for neither; each generates `output_tokens`.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_ids: BlockIdArray | None = None
    block_tokens: int = 0
    scope: str = ""
    session: str = ""
    tenant: str = ""
    turn: int | None = None
    category: str | None = None
    hint: Hint | None = None
    tokens: TokenArray | None = None
    output: TokenArray | None = None
    n: int = 1
    beam_width: int = 1

    @property
    def num_full_blocks(self) -> int:
        """Blocks that the prompt fills to the last token."""
        if self.block_ids is None:
            return 0
        return min(len(self.block_ids), self.input_tokens // self.block_tokens)


def integer(record: dict[str, Any], field: str, low: int, high: int = MAX_TOKENS) -> int:
    """The whole number in `field`, within bounds.

    Raises:
        FieldError: missing, no whole number, or outside `low` to `high`.
    """
    value = record.get(field)
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise FieldError(field, f"expected a whole number, found {str(value)[:40]!r}") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FieldError(field, "missing" if value is None else f"expected a whole number, found {str(value)[:40]}")
    if not low <= value <= high:
        raise FieldError(field, f"expected {low} to {high}, found {value}")
    return value


def number(record: dict[str, Any], field: str) -> float:
    """The finite number, at least 0, in `field`.

    Raises:
        FieldError: missing, no number, negative, infinite or NaN.
    """
    value = record.get(field)
    try:
        result = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        result = None
    if result is None:
        raise FieldError(field, "missing" if value is None else f"expected a number, found {str(value)[:40]}")
    if not 0 <= result < float("inf"):
        raise FieldError(field, f"expected a finite number, at least 0, found {result}")
    return result


def text(record: dict[str, Any], field: str) -> str:
    """The text in `field`; whole numbers as their digits; "" when absent or null."""
    value = record.get(field)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FieldError(field, f"expected text, found {str(value)[:40]}")
    return str(value)


def integers(record: dict[str, Any], field: str, limit: int = 2**62) -> BlockIdArray:
    """(n,) int64 whole numbers of the list in `field`, each 0 to `limit`.

    Raises:
        FieldError: missing, no list, or an element that is no whole number within bounds.
    """
    value = record.get(field)
    if not isinstance(value, list):
        raise FieldError(field, "missing" if value is None else f"expected a list, found {str(value)[:40]}")
    if not value:
        return np.empty(0, dtype=np.int64)
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        array = np.array(value, dtype=object)
    if array.ndim != 1 or array.dtype.kind not in "iu" or bool in set(map(type, value)):
        raise FieldError(field, "expected a flat list of whole numbers below 2**63")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > limit:
        raise FieldError(field, f"expected numbers 0 to {limit}, found {low if low < 0 else high}")
    return array.astype(np.int64)


def check_block_count(field: str, num_ids: int, input_tokens: int, block_tokens: int) -> None:
    """The block ids must be as many as the prompt has blocks, the partial last one counted or not.

    Raises:
        FieldError: they are not: the trace is damaged or its blocks have another size.
    """
    full, rest = divmod(input_tokens, block_tokens)
    if num_ids not in (full, full + bool(rest)):
        raise FieldError(
            field,
            f"{num_ids} block ids for {input_tokens} input tokens, expected {full + bool(rest)} of {block_tokens} "
            "tokens; is block_tokens right?",
        )
