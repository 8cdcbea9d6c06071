"""Traces that name prompt blocks: Mooncake and its kin, Qwen-Bailian, run-length coded agent traces."""

# Shapes: R requests  E block references
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from framework.interfaces.trace import (
    MAX_TOKENS,
    BlockIdArray,
    FieldError,
    JsonLinesReader,
    Line,
    Namespace,
    Record,
    TraceColumns,
    WorkloadRequest,
    check_block_count,
    integer,
    integers,
    json_object,
    number,
    text,
)


class Mooncake(JsonLinesReader):
    """Mooncake: `timestamp` ms, `input_length`, `output_length`, `hash_ids` of 512-token prefix blocks.

    Source: Qin et al., FAST'25, arXiv:2407.00079 §4.1; github.com/kvcache-ai/Mooncake.
    """

    block_tokens = 512

    example: ClassVar[Mapping[str, str]] = {
        "mooncake.jsonl": '{"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 2750, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `hash_ids` as a list, without Bailian's `chat_id`."""
        record = first_object(head)
        return isinstance(record.get("hash_ids"), list) and not {"chat_id", "runs"} & record.keys()

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One line; `session_id`, `turn`, `type`, `tenant` and `priority` are read where a line has them."""
        return _hash_ids(record, self.block_tokens, per_second=1000, session=text(record, "session_id"))

    def read_columns(self, content: bytes) -> TraceColumns | None:
        """A file of MooncakeLine; None where a line is anything else."""
        rows = _rows(content, MooncakeLine)
        lists = None if rows is None else _flat_lists([row.hash_ids for row in rows])
        if rows is None or lists is None:
            return None
        tenants = _known([row.tenant or None for row in rows])
        return _columns(
            rows,
            self.block_tokens,
            run_starts=lists[1],
            firsts=lists[0],
            tenants=[tenant or "" for tenant in tenants] if tenants else None,
            sessions=_known([row.session_id or None for row in rows]),
            categories=_known([row.type or None for row in rows]),
            turns=_known([row.turn for row in rows]),
        )


class HashIds(Mooncake):
    """Mooncake's line with blocks of any size: give `block_tokens`."""

    sizes_vary = True

    example: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """Never: nothing in the file tells it from Mooncake's."""
        return False


class Bailian(JsonLinesReader):
    """Qwen-Bailian: as Mooncake's in seconds and 16-token blocks, with `chat_id`, `parent_chat_id`, `turn`, `type`.

    A turn's `session` is the chat at the root of its chain of parents (or the first parent that the file lacks), its
    `category` is `type`. Ids name a block's own tokens.
    Source: Wang et al., ATC'25, arXiv:2506.02634; github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
    """

    block_tokens = 16
    sizes_vary = True

    example: ClassVar[Mapping[str, str]] = {
        "bailian.jsonl": '{"chat_id": 5, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, '
        '"output_length": 3, "type": "text", "turn": 1, "hash_ids": [7, 8]}\n'
        '{"chat_id": 6, "parent_chat_id": 5, "timestamp": 61.1, "input_length": 33, "output_length": 9, '
        '"type": "search", "turn": 2, "hash_ids": [7, 9, 10]}\n'
    }

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `chat_id`."""
        record = first_object(head)
        return isinstance(record.get("hash_ids"), list) and "chat_id" in record

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader; keeps one number a chat."""
        self._roots.clear()
        return super().read(lines, path)

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One line. `turn` counts from 1 there, from 0 here."""
        chat = integer(record, "chat_id", -1, 2**62)
        parent = integer(record, "parent_chat_id", -1, 2**62) if record.get("parent_chat_id") is not None else -1
        root = self._roots.get(parent, parent) if parent >= 0 else chat
        request = _hash_ids(record, self.block_tokens, per_second=1, session=str(root), first_turn=1)
        self._roots[chat] = root
        return request


def _hash_ids(
    record: Mapping[str, Any], block_tokens: int, *, per_second: int, session: str | None, first_turn: int = 0
) -> WorkloadRequest:
    input_tokens = integer(record, "input_length", 1)
    ids = integers(record, "hash_ids")
    check_block_count("hash_ids", len(ids), input_tokens, block_tokens)
    return WorkloadRequest(
        arrival_s=number(record, "timestamp") / per_second,
        input_tokens=input_tokens,
        output_tokens=integer(record, "output_length", 0),
        block_ids=ids,
        block_tokens=block_tokens,
        session=session,
        turn=max(0, integer(record, "turn", 0) - first_turn) if record.get("turn") is not None else None,
        category=text(record, "type"),
        tenant=text(record, "tenant") or "",
        priority=integer(record, "priority", -(2**31), 2**31) if record.get("priority") is not None else 0,
    )


class Runs(JsonLinesReader):
    """Agent traces in runs: `runs` = [[first id, count], ...] of 64-token blocks, unique within `scope`.

    `timestamp` is in milliseconds; only full blocks are named. The session is the scope; turns are counted.
    Source: the kv-cache-tester agent traces (callanjfox/kv-cache-tester), coded in runs.
    """

    block_tokens = 64

    example: ClassVar[Mapping[str, str]] = {
        "runs.jsonl": '{"timestamp": 0, "input_length": 650, "output_length": 3, "hash_ids": [], '
        '"runs": [[1, 8], [20, 2]], "scope": "a", "sub": 0}\n'
        '{"timestamp": 9000, "input_length": 700, "output_length": 4, "hash_ids": [], "runs": [[1, 10]], "scope": "a", '
        '"sub": 1}\n'
    }

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `runs`."""
        return "runs" in first_object(head)

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader; keeps one number a scope."""
        self._turns.clear()
        return super().read(lines, path)

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One line; `sub` says whether a sub-agent asks."""
        input_tokens = integer(record, "input_length", 1)
        value = record.get("runs")
        if not isinstance(value, list):
            raise FieldError("runs", "missing" if value is None else "expected a list of [first id, count]")
        pairs = [_pair(run) for run in value]
        check_block_count("runs", sum(count for _, count in pairs), input_tokens, self.block_tokens)
        scope = text(record, "scope")
        sub = record.get("sub")
        request = WorkloadRequest(
            arrival_s=number(record, "timestamp") / 1000,
            input_tokens=input_tokens,
            output_tokens=integer(record, "output_length", 0),
            block_ids=_expand(pairs),
            block_tokens=self.block_tokens,
            namespace=Namespace(salt=scope or ""),
            session=scope,
            turn=None if scope is None else self._turns[scope],
            category=None if sub is None else "sub-agent" if sub else "agent",
        )
        if scope is not None:
            self._turns[scope] += 1
        return request

    def read_columns(self, content: bytes) -> TraceColumns | None:
        """A file of RunsLine; None where a line is anything else."""
        rows = _rows(content, RunsLine)
        if rows is None:
            return None
        pairs = np.array(list(chain.from_iterable(row.runs for row in rows)), dtype=np.int64).reshape(-1, 2)
        seen: Counter[str] = Counter()
        turns: list[int | None] = []
        for row in rows:
            turns.append(seen[row.scope] if row.scope else None)
            seen[row.scope or ""] += 1
        return _columns(
            rows,
            self.block_tokens,
            run_starts=np.concatenate(([0], np.cumsum([len(row.runs) for row in rows]))).astype(np.int64),
            firsts=pairs[:, 0].copy(),
            counts=pairs[:, 1].copy(),
            salts=[row.scope or "" for row in rows],
            sessions=_known([row.scope or None for row in rows]),
            categories=_known([None if row.sub is None else "sub-agent" if row.sub else "agent" for row in rows]),
            turns=_known(turns),
        )


def _pair(run: Any) -> tuple[int, int]:
    if not isinstance(run, list) or len(run) != 2:
        raise FieldError("runs", f"expected [first id, count], found {str(run)[:40]}")
    fields = {"runs": run[0], "runs count": run[1]}
    return integer(fields, "runs", 0, 2**62), integer(fields, "runs count", 1, MAX_TOKENS)


def _expand(pairs: list[tuple[int, int]]) -> BlockIdArray:
    if not pairs:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in pairs])


def first_object(head: Sequence[Line]) -> dict[str, Any]:
    """The object on a file's first line; an empty one where there is none."""
    try:
        return json_object(head[0][1]) if head else {}
    except FieldError:
        return {}


def coarsen(request: WorkloadRequest, block_tokens: int) -> WorkloadRequest:
    """The same request in blocks of `block_tokens`, a multiple of its own.

    Keeps every k-th id: exact where an id names its whole prefix, as in Mooncake's and the agent traces (Qwen-Bailian's
    name a block's own tokens). A partial last block has no name at the coarser size and is left out.

    Raises:
        FieldError: not a multiple.
    """
    if request.block_ids is None or block_tokens == request.block_tokens:
        return request
    factor, rest = divmod(block_tokens, request.block_tokens)
    if rest or factor < 1:
        raise FieldError("block_tokens", f"{block_tokens} is no multiple of the trace's {request.block_tokens}")
    full = request.block_ids[: request.num_full_blocks]
    return replace(request, block_ids=full[factor - 1 :: factor], block_tokens=block_tokens)


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


def _columns(
    rows: Sequence[MooncakeLine] | Sequence[RunsLine], block_tokens: int, **columns: Any
) -> TraceColumns | None:
    """Of all rows; None where times or lengths cannot be."""
    found = TraceColumns(
        arrival_s=np.array([row.timestamp for row in rows]) / 1000,
        input_tokens=np.array([row.input_length for row in rows], dtype=np.int64),
        output_tokens=[row.output_length for row in rows],
        **columns,
    )
    return found if _plausible(found, block_tokens) else None


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
