"""Whole files of block ids read at once: msgspec checks every line against a schema, NumPy reads the lists of ids.

A file of which anything is not as the schema has it is left to the readers of single lines, which say what is wrong.
"""

# Shapes: R requests  E block references

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from framework.interfaces.records import MAX_TOKENS
from framework.interfaces.trace_columns import TraceColumns

T = TypeVar("T")
Ints = npt.NDArray[np.int64]

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
_BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]
_MOST_ID = 2**62


class MooncakeLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A line of Mooncake's format, see `block_ids.Mooncake`."""

    timestamp: float
    input_length: _Tokens
    output_length: _Count
    hash_ids: msgspec.Raw
    session_id: str | None = None
    turn: _Count | None = None
    type: str | None = None
    tenant: str | None = None
    priority: _Priority | None = None


class RunsLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A line of runs, see `block_ids.Runs`; `hash_ids` and `model` are there and not read."""

    timestamp: float
    input_length: _Tokens
    output_length: _Count
    runs: list[tuple[_BlockId, _Tokens]]
    scope: str | None = None
    sub: bool | int | None = None
    hash_ids: list[int] | None = None
    model: str | None = None


def mooncake_columns(content: bytes, block_tokens: int) -> TraceColumns | None:
    """A file of MooncakeLine; None where a line is anything else."""
    rows = _rows(content, MooncakeLine)
    lists = None if rows is None else _flat_lists([row.hash_ids for row in rows])
    if rows is None or lists is None:
        return None
    ids, starts = lists
    tenants = _known([row.tenant or None for row in rows])
    columns = TraceColumns(
        arrival_s=np.array([row.timestamp for row in rows]) / 1000,
        input_tokens=np.array([row.input_length for row in rows], dtype=np.int64),
        run_starts=starts,
        firsts=ids,
        tenants=[tenant or "" for tenant in tenants] if tenants else None,
        sessions=_known([row.session_id or None for row in rows]),
        categories=_known([row.type or None for row in rows]),
        turns=_known([row.turn for row in rows]),
        output_tokens=[row.output_length for row in rows],
    )
    return columns if _plausible(columns, block_tokens) else None


def runs_columns(content: bytes, block_tokens: int) -> TraceColumns | None:
    """A file of RunsLine; None where a line is anything else."""
    rows = _rows(content, RunsLine)
    if rows is None:
        return None
    pairs = np.array(list(chain.from_iterable(row.runs for row in rows)), dtype=np.int64).reshape(-1, 2)
    seen: dict[str, int] = {}
    turns: list[int | None] = []
    for scope in (row.scope or None for row in rows):
        turns.append(None if scope is None else seen.get(scope, 0))
        if scope is not None:
            seen[scope] = seen.get(scope, 0) + 1
    columns = TraceColumns(
        arrival_s=np.array([row.timestamp for row in rows]) / 1000,
        input_tokens=np.array([row.input_length for row in rows], dtype=np.int64),
        run_starts=np.concatenate(([0], np.cumsum([len(row.runs) for row in rows]))).astype(np.int64),
        firsts=pairs[:, 0].copy(),
        counts=pairs[:, 1].copy(),
        salts=[row.scope or "" for row in rows],
        sessions=_known([row.scope or None for row in rows]),
        categories=_known([None if row.sub is None else "sub-agent" if row.sub else "agent" for row in rows]),
        turns=_known(turns),
        output_tokens=[row.output_length for row in rows],
    )
    return columns if _plausible(columns, block_tokens) else None


def _rows(content: bytes, kind: type[T]) -> list[T] | None:
    """The file's lines as objects of `kind`, one a line without a blank one between; None where they are not that."""
    body = content.rstrip(b"\n")
    if not body or not _is_utf8(body):
        return None
    try:
        rows: list[T] = msgspec.json.Decoder(kind).decode_lines(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return rows if len(rows) == body.count(b"\n") + 1 else None


def _is_utf8(content: bytes) -> bool:
    """Whether all of it is, also what the schema skips; and no character stands escaped, which may be a surrogate."""
    if b"\\" in content and b"\\u" in content:
        return False
    try:
        return content.isascii() or bool(content.decode())
    except UnicodeDecodeError:
        return False


def _flat_lists(lists: Sequence[Any]) -> tuple[Ints, Ints] | None:
    """The ids (E,) of JSON lists of numbers, and where each list begins (R + 1,); None where one is anything else."""
    text = b",".join(lists)
    bodies = text[1:-1].split(b"],[")
    if text.count(b"[") != len(lists) or any(map(bytes.isspace, bodies)):
        return None  # a list within a list, or a blank that would be read as a number
    counts = np.array([body.count(b",") + 1 if body else 0 for body in bodies], dtype=np.int64)
    try:
        ids = np.fromstring(b",".join(filter(None, bodies)), dtype=np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        return None
    starts = np.concatenate(([0], np.cumsum(counts)))
    if len(counts) != len(lists) or len(ids) != starts[-1] or (len(ids) and (ids.min() < 0 or ids.max() > _MOST_ID)):
        return None
    return ids, starts


def _known(column: list[T | None]) -> list[T | None] | None:
    return column if column.count(None) < len(column) else None


def _plausible(columns: TraceColumns, block_tokens: int) -> bool:
    """Whether times are numbers in order, and each request has as many blocks as its prompt: see check_block_count."""
    times = columns.arrival_s
    if not np.isfinite(times).all() or times[0] < 0 or bool((times[1:] < times[:-1]).any()):
        return False
    full, rest = np.divmod(columns.input_tokens, block_tokens)
    blocks = np.diff(columns.block_starts)
    return bool(((blocks == full) | (blocks == full + (rest > 0))).all())
