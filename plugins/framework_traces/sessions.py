"""Mooncake's line with sessions: turns that come after the answer before them, and Dynamo's graphs of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framework.errors import WorkloadError
from framework.interfaces.workload import BlockIdArray, WorkloadRequest
from framework_workloads.lines import first_lines
from framework_workloads.trace.format import (
    BlockNames,
    FieldError,
    JsonLinesReader,
    Line,
    Record,
    check_block_count,
    first_object,
    integer,
    number,
    text,
    texts,
)

_OWN_NAMES = 2**62 + 2**61
"""Names of blocks that no line names begin here, above all that BlockNames gives."""
_LOOK = 1000


@dataclass(slots=True)
class _Turn:
    """The last turn of a session, and what is known of its context.

    Attributes:
        context_tokens: of prompt and answer. ids: of the full blocks of the context, as far as they have names.
    """

    key: str
    number: int
    arrival_s: float
    context_tokens: int
    ids: BlockIdArray


class MooncakeSessions(JsonLinesReader):
    """Mooncake's line with `session_id`: a first turn with `timestamp`, later ones with `delay` ms after the answer.

    Lines hold whole contexts. A later turn with a timestamp and no delay waits for nothing. Without a timestamp a first
    turn arrives at 0, a later one, in an open loop, `delay` after the turn before it: how long answers took, no line
    says.
    Blocks have 512 tokens, or what `block_tokens` says.
    Source: AIPerf's mooncake_trace with sessions, and Dynamo's replays of it.
    """

    block_tokens = 512
    sizes_vary = True
    unsorted = True
    only_new: ClassVar[bool] = False
    """Whether a later turn's line holds its new tokens alone."""

    example: ClassVar[Mapping[str, str]] = {
        "sessions.jsonl": '{"session_id": "a", "timestamp": 0, "input_length": 1300, "output_length": 52, '
        '"hash_ids": [0, 1, 2]}\n'
        '{"session_id": "a", "delay": 2500, "input_length": 1700, "output_length": 7, "hash_ids": [0, 1, 3, 4]}\n'
        '{"session_id": "b", "timestamp": 900, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}\n'
    }

    def __init__(self) -> None:
        self._names = BlockNames()
        self._last: dict[str, _Turn] = {}
        self._fresh = _OWN_NAMES

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `session_id` and `hash_ids`; the first session with two turns in the first 1,000 lines tells whether
        they hold whole contexts."""
        record = first_object(head)
        if not isinstance(record.get("hash_ids"), list) or "session_id" not in record or _is_graph(record):
            return False
        try:
            lines = first_lines(path, _LOOK)
        except (OSError, EOFError, WorkloadError):
            return False
        return _holds_new_tokens_alone(lines) is cls.only_new

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        session = text(record, "session_id")
        if session is None:
            raise FieldError("session_id", "missing")
        before = self._last.get(session)
        input_tokens, output_tokens = integer(record, "input_length", 1), integer(record, "output_length", 0)
        ids = self._names.ids(record, "hash_ids")
        check_block_count("hash_ids", len(ids), input_tokens, self.block_tokens)
        delay_s = number(record, "delay") / 1000 if record.get("delay") is not None else None
        at_s = number(record, "timestamp") / 1000 if record.get("timestamp") is not None else None
        after: tuple[str, ...] = ()
        if before is None:
            at_s = (at_s or 0.0) + (delay_s or 0.0)
        elif delay_s is not None or at_s is None:
            after, delay_s = (before.key,), delay_s or 0.0
            at_s = before.arrival_s + delay_s if at_s is None else at_s
        if before is not None and self.only_new:
            ids, input_tokens = self._whole(before, input_tokens)
        turn = 0 if before is None else before.number + 1
        key = f"{session}:{turn}"
        full = ids[: input_tokens // self.block_tokens]
        self._last[session] = _Turn(key, turn, at_s, input_tokens + output_tokens, full)
        return WorkloadRequest(
            arrival_s=at_s,
            after=after,
            delay_s=(delay_s or 0.0) if after else 0.0,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            block_ids=ids,
            block_tokens=self.block_tokens,
            session=session,
            turn=turn,
            category=text(record, "type"),
            key=key,
        )

    def _whole(self, before: _Turn, new_tokens: int) -> tuple[BlockIdArray, int]:
        """Names of the full blocks of the context before and the new tokens, and its length.

        Only the first turn's full blocks keep their names: what follows begins within a block, after an answer that
        nobody named, and is the session's own.
        """
        total = before.context_tokens + new_tokens
        missing = total // self.block_tokens - len(before.ids)
        own = np.arange(self._fresh, self._fresh + missing, dtype=np.int64)
        self._fresh += missing
        return np.concatenate([before.ids, own]), total


class MooncakeTurns(MooncakeSessions):
    """As mooncake_sessions, where a later turn's line holds its new tokens alone: contexts are added up.

    A context is the one before it, the answer to it, and the new tokens. Its blocks beyond the first turn's are taken
    as the session's own. Source: the sessions that AIPerf publishes.
    """

    only_new = True

    example: ClassVar[Mapping[str, str]] = {
        "turns.jsonl": '{"session_id": "a", "timestamp": 0, "input_length": 1300, "output_length": 52, '
        '"hash_ids": [0, 1, 2]}\n'
        '{"session_id": "a", "delay": 2500, "input_length": 300, "output_length": 7, "hash_ids": [5]}\n'
        '{"session_id": "b", "timestamp": 900, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}\n'
    }


class AgenticMooncake(JsonLinesReader):
    """Dynamo's agentic lines: `request_id`, `wait_for` or `dependencies`, `delay` and `tool_wait_ms` ms after them.

    Names of blocks are in `hash_ids` or `input_sequence_hashes`, whole numbers up to 2**64 - 1. A line leaves no
    earlier than `not_before_ms`. In an open loop it leaves at `timestamp`, else at `not_before_ms`, else its waits
    after the latest of those it waits for, which then stand before it. Blocks have 512 tokens, or what `block_tokens`
    says. A first line without `request_id` is a header.
    Source: ai-dynamo/dynamo, agent simulation; dynamo-data-gen's AgenticMooncakeRow.
    """

    block_tokens = 512
    sizes_vary = True
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "agentic.jsonl": '{"request_id": "r0", "session_id": "s", "timestamp": 0, "input_length": 600, '
        '"output_length": 5, "hash_ids": [18446744073709551615, 4], "wait_for": []}\n'
        '{"request_id": "r1", "session_id": "s/sub", "input_length": 520, "output_length": 9, "hash_ids": [7, 8], '
        '"wait_for": ["r0"], "delay": 20.5}\n'
        '{"request_id": "r2", "session_id": "s", "input_length": 700, "output_length": 1, '
        '"hash_ids": [18446744073709551615, 6], "wait_for": ["r0", "r1"], "tool_wait_ms": 1000}\n'
    }

    def __init__(self) -> None:
        self._names = BlockNames()
        self._arrival_s: dict[str, float] = {}

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `request_id` with `wait_for` or `dependencies`, on the first line or after a header."""
        return any(_is_graph(first_object([line])) for line in head)

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        for place, found in super().read(lines, path):
            if place == 1 and isinstance(found, FieldError) and str(found).startswith("request_id: missing"):
                continue
            yield place, found

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        key = text(record, "request_id")
        if key is None:
            raise FieldError("request_id", "missing")
        field = "input_sequence_hashes" if "input_sequence_hashes" in record else "hash_ids"
        input_tokens, ids = integer(record, "input_length", 1), self._names.ids(record, field)
        check_block_count(field, len(ids), input_tokens, self.block_tokens)
        after = _waits_for(record)
        waits = {name: _ms(record, name) or 0.0 for name in ("delay", "tool_wait_ms")}
        not_before_s, at_s = _ms(record, "not_before_ms"), _ms(record, "timestamp")
        if at_s is None:
            unknown = [name for name in after if name not in self._arrival_s]
            if not_before_s is None and unknown:
                raise FieldError(
                    "timestamp", f"missing, and {unknown[0]!r}, which it waits for, does not stand before it"
                )
            latest = max((self._arrival_s.get(name, 0.0) for name in after), default=0.0)
            at_s = latest + sum(waits.values()) if not_before_s is None else not_before_s
        self._arrival_s[key] = at_s
        return WorkloadRequest(
            arrival_s=at_s,
            after=after,
            delay_s=sum(waits.values()),
            not_before_s=not_before_s or 0.0,
            input_tokens=input_tokens,
            output_tokens=integer(record, "output_length", 0),
            block_ids=ids,
            block_tokens=self.block_tokens,
            session=text(record, "session_id"),
            key=key,
        )


def _ms(record: Mapping[str, Any], field: str) -> float | None:
    return number(record, field) / 1000 if record.get(field) is not None else None


def _waits_for(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of `wait_for`, or of `dependencies`, whose entries are ids or objects with a `request_id`."""
    if record.get("dependencies") is None:
        return texts(record, "wait_for")
    entries = record["dependencies"]
    if isinstance(entries, list):
        entries = [entry.get("request_id") if isinstance(entry, dict) else entry for entry in entries]
    return texts({"dependencies": entries}, "dependencies")


def _is_graph(record: Mapping[str, Any]) -> bool:
    return "request_id" in record and bool({"wait_for", "dependencies"} & record.keys())


def _holds_new_tokens_alone(lines: Sequence[Line]) -> bool:
    """Whether the second turn of the first session that has one does not begin with its first turn."""
    first: dict[Any, Mapping[str, Any]] = {}
    for line in lines:
        record = first_object([line])
        session = record.get("session_id")
        if not isinstance(session, str | int) or not isinstance(record.get("hash_ids"), list):
            continue
        before = first.setdefault(session, record)
        if before is not record:
            leading = before["hash_ids"][:-1]  # the last one may be partial
            if leading:
                return bool(record["hash_ids"][: len(leading)] != leading)
            earlier, later = before.get("input_length"), record.get("input_length")
            return isinstance(earlier, int) and isinstance(later, int) and later < earlier
    return False
