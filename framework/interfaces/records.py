"""The fields of one record of a trace, read strictly: what a trace reader's `parse` is written with."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from framework.errors import FrameworkError
from framework.interfaces.workload import BlockIdArray
from framework.types import Hint

MAX_TOKENS = 100_000_000
"""Most tokens one request may claim: above any context window, below what a corrupted digit makes of one."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


class FieldError(ValueError):
    """One field of one record is missing or wrong. The framework turns it into a WorkloadError with file and line."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")


def integer(record: Mapping[str, Any], field: str, low: int, high: int = MAX_TOKENS) -> int:
    """The whole number in `field`, as a JSON number or as ASCII digits, within bounds.

    Raises:
        FieldError: missing, no whole number, or outside `low` to `high`.
    """
    found: Any = record.get(field)
    value: int = found
    if type(found) is not int:
        whole = isinstance(found, float) and found.is_integer()
        if not whole and not (isinstance(found, str) and _WHOLE.fullmatch(found)):
            raise FieldError(field, "missing" if found is None else f"expected a whole number, found {_shown(found)}")
        value = int(found)
    if not low <= value <= high:
        raise FieldError(field, f"expected {low} to {high}, found {value}")
    return value


def _shown(value: Any) -> str:
    return ascii(value)[:40]


def number(record: Mapping[str, Any], field: str) -> float:
    """The finite number, at least 0, in `field`, as a JSON number or as ASCII text.

    Raises:
        FieldError: missing, no number, negative, infinite or NaN.
    """
    value = record.get(field)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(field, "missing" if value is None else f"expected a number, found {_shown(value)}")
    if not 0 <= value <= sys.float_info.max:
        raise FieldError(field, f"expected a finite number, at least 0, found {str(value)[:40]}")
    return float(value)


def text(record: Mapping[str, Any], field: str) -> str | None:
    """The text in `field`; whole numbers as their digits; None when absent, null or empty.

    Raises:
        FieldError: something else, or text that UTF-8 cannot hold.
    """
    value = record.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FieldError(field, f"expected text, found {str(value)[:40]}")
    result = str(value)
    if not result.isascii():
        try:
            result.encode()
        except UnicodeEncodeError as error:
            raise FieldError(field, f"holds a lone surrogate at character {error.start}") from None
    return result


def hint(record: Mapping[str, Any], field: str = "hint") -> Hint | None:
    """The hint in `field`: a probability to continue, or an object of `continues` and `returns_s`; None when absent.

    Raises:
        FieldError: something else.
    """
    try:
        return Hint.of(record.get(field))
    except (FrameworkError, TypeError, OverflowError) as error:
        raise FieldError(field, str(error)) from None


def integers(record: Mapping[str, Any], field: str, limit: int = 2**62) -> BlockIdArray:
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
    if array.ndim != 1 or array.dtype.kind not in "iu" or (bool in set(map(type, value))):
        raise FieldError(field, "expected a flat list of whole numbers below 2**63")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > limit:
        raise FieldError(field, f"expected numbers 0 to {limit}, found {low if low < 0 else high}")
    return array.astype(np.int64, copy=False)


class ScopedIds:
    """Block ids of a trace that counts them anew in each scope, as ids that are equal only where the content is.

    Small and dense where the file's are, so that nothing has to sort them: 4,096 neighbours of one scope stay
    neighbours.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], int] = {}

    def of(self, scope: str, ids: BlockIdArray) -> BlockIdArray:
        """(n,) int64, for the ids `ids` (n,) of `scope`; the same for equal ids of one scope, whoever asks when."""
        runs, places = np.unique(ids >> 12, return_inverse=True)
        numbers = [self._runs.setdefault((scope, run), len(self._runs)) for run in runs.tolist()]
        found: BlockIdArray = np.array(numbers, dtype=np.int64)[places.reshape(-1)] << 12 | ids & 4095
        return found


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
