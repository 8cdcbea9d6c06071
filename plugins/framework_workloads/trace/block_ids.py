"""Traces that name prompt blocks: Mooncake and its kin, Qwen-Bailian, run-length coded agent traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framework.interfaces.workload import BlockIdArray, Namespace, WorkloadRequest
from framework_workloads.trace.format import (
    MAX_TOKENS,
    PER_SECOND,
    BlockNames,
    FieldError,
    JsonLinesReader,
    Line,
    ScopedIds,
    check_block_count,
    first_object,
    integer,
    number,
    text,
)


class Mooncake(JsonLinesReader):
    """Mooncake: `timestamp` ms, `input_length`, `output_length`, `hash_ids` of 512-token prefix blocks.

    GuideLLM writes timestamps in seconds, as 0.0, 0.2, 0.4: times with a decimal point that lie less than 10 apart, on
    average over the file's first hundred lines, are read so.
    Source: Qin et al., FAST'25, arXiv:2407.00079 §4.1; github.com/kvcache-ai/Mooncake.
    """

    block_tokens = 512
    time_unit = "ms"

    example: ClassVar[Mapping[str, str]] = {
        "mooncake.jsonl": '{"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 2750, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}\n'
    }

    def __init__(self) -> None:
        self._names = BlockNames()

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `hash_ids` as a list, without Bailian's `chat_id`, and without sessions or graphs of requests."""
        others, record = {"chat_id", "runs", "session_id", "request_id"}, first_object(head)
        return isinstance(record.get("hash_ids"), list) and not others & record.keys()

    def time_unit_of(self, lines: Sequence[Line]) -> str:
        """Seconds or milliseconds; see the class."""
        times = [first_object([line]).get("timestamp") for line in lines]
        written = [time for time in times if isinstance(time, float)]
        if len(written) < 2 or any(isinstance(time, int) for time in times):
            return "ms"
        return "s" if 0 < max(written) - min(written) < 10 * (len(written) - 1) else "ms"

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One line; `session_id`, `turn`, `type`, `tenant` and `priority` are read where a line has them."""
        return _hash_ids(record, self._names, self.block_tokens, per_second=PER_SECOND[self.time_unit],
                         session=text(record, "session_id"))  # fmt: skip


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
        self._roots: dict[int, int] = {}  # one number a chat
        self._names = BlockNames()

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `chat_id`."""
        record = first_object(head)
        return isinstance(record.get("hash_ids"), list) and "chat_id" in record

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One line. `turn` counts from 1 there, from 0 here."""
        chat = integer(record, "chat_id", -1, 2**64 - 1)
        parent = integer(record, "parent_chat_id", -1, 2**64 - 1) if record.get("parent_chat_id") is not None else -1
        root = self._roots.get(parent, parent) if parent >= 0 else chat
        request = _hash_ids(record, self._names, self.block_tokens, per_second=1, session=str(root), first_turn=1)
        self._roots[chat] = root
        return request


def _hash_ids(
    record: Mapping[str, Any], names: BlockNames, block_tokens: int, *, per_second: int, session: str | None,
    first_turn: int = 0,
) -> WorkloadRequest:  # fmt: skip
    input_tokens = integer(record, "input_length", 1)
    ids = names.ids(record, "hash_ids")
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
    """Agent traces in runs: `runs` = [[first id, count], ...] of 64-token blocks, counted anew in each `scope`.

    Equal ids of two scopes are different content, and are read as different ids. `timestamp` is in milliseconds; only
    full blocks are named. The session is the scope; turns are counted.
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
        self._turns: Counter[str] = Counter()  # one number a scope
        self._ids = ScopedIds()

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `runs`."""
        return "runs" in first_object(head)

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
            block_ids=self._ids.of(scope or "", _expand(pairs)),
            block_tokens=self.block_tokens,
            namespace=Namespace(salt=scope or ""),
            session=scope,
            turn=None if scope is None else self._turns[scope],
            category=None if sub is None else "sub-agent" if sub else "agent",
        )
        if scope is not None:
            self._turns[scope] += 1
        return request


def _pair(run: Any) -> tuple[int, int]:
    if not isinstance(run, list) or len(run) != 2:
        raise FieldError("runs", f"expected [first id, count], found {str(run)[:40]}")
    fields = {"runs": run[0], "runs count": run[1]}
    return integer(fields, "runs", 0, 2**62), integer(fields, "runs count", 1, MAX_TOKENS)


def _expand(pairs: list[tuple[int, int]]) -> BlockIdArray:
    runs = (np.arange(first, first + count, dtype=np.int64) for first, count in pairs)
    return np.concatenate([np.empty(0, dtype=np.int64), *runs])
