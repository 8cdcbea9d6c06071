"""Calls of models by agents, with their times and lengths: TraceLab's rounds, and OpenTelemetry's spans."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson

from framework.interfaces.workload import BlockIdArray, WorkloadRequest
from framework_traces.lengths import seconds
from framework_workloads.trace.format import (
    FieldError,
    JsonLinesReader,
    Line,
    Record,
    TraceReader,
    first_object,
    integer,
    json_object,
    text,
)

_NANOSECONDS = 10**9
_MESSAGES = "gen_ai.input.messages"
_BEFORE_MESSAGES = ("gen_ai.request.model", "gen_ai.tool.definitions", "gen_ai.system_instructions")


@dataclass(slots=True)
class _Round:
    """The last round of a session: when its last event was, its prompt's tokens, and the names of its full blocks."""

    key: str
    index: int
    count: int
    end_s: float
    input_tokens: int
    ids: BlockIdArray


class TraceLab(JsonLinesReader):
    """TraceLab: rounds of coding agents, a row each: `input_tokens_total`, `output_tokens`, `timing_events`.

    A round arrives with the last user message or tool result before its first output, and comes after the round before
    it in its session, by the recorded time from that one's last event. `turn` is `round_index`, `category`
    `first_input_event_type`, `tenant` `user`.
    Contents are not published: a prompt at least as long as the one before it in its session is taken to begin with it,
    a shorter one (a context summed up) with the `prefix_tokens` that the provider's cache had. Blocks have 512 tokens,
    or what `block_tokens` says, and sessions share nothing.
    Source: github.com/uw-syfi/TraceLab (CC BY 4.0), docs/prompt_cache_accounting.md and artifacts/prefix_cache.
    """

    block_tokens = 512
    sizes_vary = True
    absolute_times = True
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "tracelab.jsonl": '{"session_id": "claude:9", "round_index": 0, "input_tokens_total": 32272, '
        '"prefix_tokens": 0, "newly_append_tokens": 32272, "output_tokens": 931, "timing_events": '
        '[{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}, '
        '{"event_type": "text", "timestamp": "2026-06-01T05:40:29.887Z"}], "first_input_event_type": "user_message"}\n'
        '{"session_id": "claude:9", "round_index": 1, "input_tokens_total": 35740, "prefix_tokens": 32272, '
        '"newly_append_tokens": 3468, "output_tokens": 1016, '
        '"timing_events": [{"event_type": "tool_result", "timestamp": "2026-06-01T05:40:50.938Z"}], '
        '"first_input_event_type": "tool_result"}\n'
    }

    def __init__(self) -> None:
        self._last: dict[str, _Round] = {}
        self._fresh = 0

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `timing_events` and `input_tokens_total`."""
        return {"timing_events", "input_tokens_total", "round_index"} <= first_object(head).keys()

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One round."""
        session, tokens = text(record, "session_id"), integer(record, "input_tokens_total", 1)
        if session is None:
            raise FieldError("session_id", "missing")
        prefix = integer(record, "prefix_tokens", 0) if record.get("prefix_tokens") is not None else 0
        index, output_tokens = integer(record, "round_index", 0), integer(record, "output_tokens", 0)
        ready_s, end_s = _times(record)
        before = self._last.get(session)
        if before is not None and index < before.index:
            raise FieldError("round_index", f"{index} after {before.index} of session {session!r}: sort them by round")
        shared = 0 if before is None else before.input_tokens if before.input_tokens <= tokens else min(prefix, tokens)
        full = tokens // self.block_tokens
        kept = np.empty(0, dtype=np.int64) if before is None else before.ids[: shared // self.block_tokens]
        own = np.arange(self._fresh, self._fresh + full - len(kept), dtype=np.int64)
        self._fresh += len(own)
        count = 0 if before is None else before.count + 1
        turn = _Round(f"{session}:{count}", index, count, end_s, tokens, np.concatenate([kept, own]))
        self._last[session] = turn
        return WorkloadRequest(
            arrival_s=ready_s,
            after=() if before is None else (before.key,),
            delay_s=0.0 if before is None else max(0.0, ready_s - before.end_s),
            input_tokens=tokens,
            output_tokens=output_tokens,
            block_ids=turn.ids,
            block_tokens=self.block_tokens,
            session=session,
            turn=index,
            category=text(record, "first_input_event_type"),
            tenant=text(record, "user") or "",
            key=turn.key,
        )


def _times(record: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds since 1970 at which the last input of a round was there, and at which its last event was."""
    events = record.get("timing_events")
    if not isinstance(events, list) or not events or not all(isinstance(event, dict) for event in events):
        raise FieldError("timing_events", "expected a list of events that is not empty")
    last = events[0]
    for event in events:
        if event.get("event_type") not in ("user_message", "tool_result"):
            break
        last = event
    return seconds(last, "timestamp"), seconds(events[-1], "timestamp")


@dataclass(frozen=True, slots=True)
class _Span:
    """A request, on which line, when its answer was there, seconds since 1970, and names of its leading messages."""

    line: int
    request: WorkloadRequest
    end_s: float
    messages: Sequence[bytes]


class OpenTelemetry(TraceReader):
    """OpenTelemetry's GenAI spans in OTLP's JSON: an export (`resourceSpans`) a line, or a span a line.

    A request is a span of the operation chat, text_completion or generate_content that did not end in an error; spans
    of tools and of agents, whose tokens are those of their requests, are left out. Times are nanoseconds since 1970.
    Its session is `gen_ai.conversation.id`, else the trace's id; it comes after those of its session that had ended as
    it began and that no other of these waited for, by the recorded gap. `category` is `gen_ai.agent.name`.
    Where spans record `gen_ai.input.messages`, a prompt begins with the tokens of the longest earlier prompt whose
    messages, model, tools and instructions it begins with; the rest is its own, for how many tokens a message has, no
    span says. Blocks have 16 tokens then, or what `block_tokens` says. Contents in events or in other attributes
    (`gen_ai.prompt`) are not read.
    Source: OpenTelemetry, semantic conventions for generative AI; OTLP 1.x, JSON encoding.
    """

    block_tokens = 16
    sizes_vary = True
    absolute_times = True
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "spans.jsonl": '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "a1", "spanId": "01", '
        '"startTimeUnixNano": "1780292420151000000", "endTimeUnixNano": "1780292429887000000", "attributes": ['
        '{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}, '
        '{"key": "gen_ai.conversation.id", "value": {"stringValue": "c"}}, '
        '{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3227"}}, '
        '{"key": "gen_ai.usage.output_tokens", "value": {"intValue": "93"}}]}]}]}]}\n'
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "a2", "spanId": "02", '
        '"startTimeUnixNano": "1780292440000000000", "endTimeUnixNano": "1780292441000000000", "attributes": ['
        '{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}, '
        '{"key": "gen_ai.conversation.id", "value": {"stringValue": "c"}}, '
        '{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3574"}}, '
        '{"key": "gen_ai.usage.output_tokens", "value": {"intValue": "10"}}]}]}]}]}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `resourceSpans`, or `spanId` and `startTimeUnixNano`."""
        record = first_object(head)
        return isinstance(record.get("resourceSpans"), list) or {"spanId", "startTimeUnixNano"} <= record.keys()

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """0 where the first lines have no messages and nobody says otherwise."""
        return asked or (self.block_tokens if any(_MESSAGES.encode() in line for _, line in head) else 0)

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader. Holds all requests: a span is written as it ends."""
        found, seen = list[_Span](), set[str]()
        for number, line in lines:
            try:
                spans = list(_spans_of(json_object(line)))
            except FieldError as error:
                yield number, error
                continue
            for place, span in spans:
                try:
                    request, messages = _request(span)
                    if request is None:
                        continue
                    if request.key in seen:
                        raise FieldError("spanId", f"{request.key} appears twice; leave one out")
                    if messages and not self.block_tokens:
                        raise FieldError(
                            _MESSAGES, "recorded here and not on the file's first lines; give block_tokens=16"
                        )
                    seen.add(request.key)
                    found.append(_Span(number, request, _nano(span, "endTimeUnixNano"), messages))
                except FieldError as error:
                    yield number, FieldError(place, str(error))
        found.sort(key=lambda span: span.request.arrival_s)
        sessions = defaultdict[str | None, list[_Span]](list)
        for one in _named(found, self.block_tokens) if self.block_tokens else found:
            sessions[one.request.session].append(one)
        for session in sessions.values():
            yield from _chained(session)


def _spans_of(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, span) of every span of a line."""
    if "resourceSpans" not in record:
        yield "span", record
        return
    for first, resource in enumerate(_objects(record, "resourceSpans")):
        for second, scope in enumerate(_objects(resource, "scopeSpans")):
            for third, span in enumerate(_objects(scope, "spans")):
                yield f"resourceSpans[{first}].scopeSpans[{second}].spans[{third}]", span


def _objects(record: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = record.get(field, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise FieldError(field, "expected a list of objects")
    return value


def _request(span: Mapping[str, Any]) -> tuple[WorkloadRequest | None, Sequence[bytes]]:
    """The request that a span is, None for another kind of span, or one that ended in an error; and `_messages`."""
    facts = {str(one.get("key")): _value(one) for one in _objects(span, "attributes")}
    status = span.get("status")
    failed = isinstance(status, dict) and status.get("code") in (2, "STATUS_CODE_ERROR")
    if failed or facts.get("gen_ai.operation.name") not in ("chat", "text_completion", "generate_content"):
        return None, ()
    trace, name = text(span, "traceId"), text(span, "spanId")
    if trace is None or name is None:
        raise FieldError("traceId" if trace is None else "spanId", "missing")
    start_s, end_s = _nano(span, "startTimeUnixNano"), _nano(span, "endTimeUnixNano")
    if end_s < start_s:
        raise FieldError("endTimeUnixNano", "before startTimeUnixNano")
    request = WorkloadRequest(
        arrival_s=start_s,
        input_tokens=integer(facts, "gen_ai.usage.input_tokens", 1),
        output_tokens=integer(facts, "gen_ai.usage.output_tokens", 0),
        session=text(facts, "gen_ai.conversation.id") or trace,
        category=text(facts, "gen_ai.agent.name"),
        key=f"{trace}:{name}",
    )
    return request, _messages(facts)


def _messages(facts: Mapping[str, Any]) -> Sequence[bytes]:
    """A name for each number of leading messages, with what stands before them; equal names are equal contents."""
    held = facts.get(_MESSAGES)
    if held is None:
        return ()
    try:
        entries = orjson.loads(held) if isinstance(held, str) else held
        if not isinstance(entries, list) or not entries:
            raise ValueError
        before = [facts.get(name) for name in _BEFORE_MESSAGES]
        names = [hashlib.blake2b(orjson.dumps(before), digest_size=16).digest()]
        for entry in entries:
            content = orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)
            names.append(hashlib.blake2b(names[-1] + content, digest_size=16).digest())
    except (TypeError, ValueError):
        raise FieldError(_MESSAGES, "expected a list of messages that is not empty") from None
    return names[1:]


def _value(attribute: Mapping[str, Any]) -> Any:
    """What an attribute holds: text, a number, which may be written as text, or a list; None of another type."""
    value = attribute.get("value")
    held = value if isinstance(value, dict) else {}
    kinds = (held.get(kind) for kind in ("stringValue", "intValue", "doubleValue"))
    array = held.get("arrayValue")
    return next(
        (found for found in kinds if found is not None), array.get("values") if isinstance(array, dict) else None
    )


def _named(spans: Iterable[_Span], size: int) -> Iterator[_Span]:
    """Spans in order of time, with names of their prompts' full blocks."""
    known: dict[bytes, tuple[int, BlockIdArray]] = {}  # of a whole prompt's messages: its tokens and names
    fresh = 0
    for span in spans:
        tokens = span.request.input_tokens
        nothing = 0, np.empty(0, dtype=np.int64)
        shared, ids = next((known[name] for name in reversed(span.messages) if name in known), nothing)
        kept = ids[: min(shared, tokens) // size]
        own = np.arange(fresh, fresh + tokens // size - len(kept), dtype=np.int64)
        fresh += len(own)
        ids = np.concatenate([kept, own])
        if span.messages:
            known.setdefault(span.messages[-1], (tokens, ids))
        yield replace(span, request=replace(span.request, block_ids=ids, block_tokens=size))


def _nano(span: Mapping[str, Any], field: str) -> float:
    return integer(span, field, 0, 2**63) / _NANOSECONDS


def _chained(spans: Iterable[_Span]) -> Iterator[Record]:
    """A session's requests, given in order of their beginning, each after those that it waited for as recorded."""
    latest = list[_Span]()  # ended, and nobody who has ended waited for them
    running = list[_Span]()
    for turn, span in enumerate(spans):
        now = span.request.arrival_s
        ended = [one for one in running if one.end_s <= now]
        if ended:
            running = [one for one in running if one.end_s > now]
            latest += ended
            begun = max(one.request.arrival_s for one in latest)
            latest = [one for one in latest if one.end_s > begun or one.request.arrival_s == begun]
        running.append(span)
        delay_s = now - max((one.end_s for one in latest), default=now)
        after = tuple(one.request.key for one in latest)
        yield span.line, replace(span.request, turn=turn, after=after, delay_s=delay_s)
