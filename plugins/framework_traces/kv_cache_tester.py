"""kv-cache-tester: sessions of coding agents, one JSON document each, with sub-agents nested in their callers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import orjson

from framework.errors import WorkloadError
from framework.interfaces.workload import Namespace, WorkloadRequest
from framework_workloads.lines import open_bytes
from framework_workloads.trace.format import (
    BlockNames,
    FieldError,
    Line,
    Record,
    ScopedIds,
    TraceReader,
    check_block_count,
    integer,
    number,
    text,
)

_MAX_DEPTH = 32
_START = b'"requests"'


class KvCacheTester(TraceReader):
    """kv-cache-tester: one session a JSON document, as a file, as lines of one file, or as a folder of files.

    A session's `t` is seconds from its own start, so that all sessions of a folder begin together. `hash_ids` name
    full blocks, anew in each session unless its `hash_id_scope` is "global", and are read as different ids then. A
    sub-agent's requests share its caller's blocks and are a session of their own. `category` is the kinds of new
    input, such as "tool_result". A request comes after the one before it and, of the caller, after sub-agents between
    them; its delay is `think_time` where there is one, else the recorded gap, less their `api_time` where they have it.
    Source: github.com/callanjfox/kv-cache-tester (Apache-2.0).
    """

    block_tokens = 64
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "trace_0001.json": '{"id": "trace_0001", "block_size": 64, "requests": [\n'
        ' {"t": 0.0, "type": "s", "in": 130, "out": 7, "hash_ids": [1, 2], "input_types": ["text"]},\n'
        ' {"t": 1.5, "type": "subagent", "agent_id": "a1", "requests": [\n'
        '  {"t": 2.0, "type": "n", "in": 70, "out": 2, "hash_ids": [1], "input_types": ["text"]}]},\n'
        ' {"t": 9.0, "type": "s", "in": 200, "out": 7, "hash_ids": [1, 2, 3], "input_types": ["tool_result"]}]}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By a folder's first .json file, or by a document with a list of `requests`, on however many lines."""
        if path.is_dir():
            first = next(iter(_documents(path)), None)
            return first is not None and _is_session(_beginning(first))
        if not head or _complete(head[0][1]):
            return bool(head) and _is_session(head[0][1])
        return _is_session(_beginning(path))

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """64; a document that says otherwise is an error as it is read."""
        return self.block_tokens

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader. Holds one document, and the framework all requests, to sort them."""
        self._sessions: set[str] = set()
        self._ids = ScopedIds()
        self._names = BlockNames()
        if path.is_dir():
            for number_, file in enumerate(_documents(path), start=1):
                with open_bytes(file) as opened:
                    yield from self._session(number_, opened.read(), f"{file.name}: ")
            return
        first = next(lines, None)
        if first is None:
            return
        if _complete(first[1]):
            yield from self._session(*first)
            for line_number, line in lines:
                yield from self._session(line_number, line)
        else:
            yield from self._session(first[0], b"\n".join([first[1], *(line for _, line in lines)]))

    def _session(self, line_number: int, document: bytes, place: str = "") -> Iterator[Record]:
        try:
            session = orjson.loads(document)
        except ValueError as error:
            yield line_number, FieldError("line", f"{place}no JSON, or cut short: {error}")
            return
        try:
            if not isinstance(session, dict):
                raise FieldError("line", f"{place}expected a JSON object")
            name = text(session, "id")
            if name is None:
                raise FieldError("id", f"{place}missing")
            size = integer(session, "block_size", 1, 2**20) if "block_size" in session else self.block_tokens
            if size != self.block_tokens:
                raise FieldError("block_size", f"{place}expected {self.block_tokens}, found {size}")
            scope = session.get("hash_id_scope", "local")
            if scope not in ("local", "global"):
                raise FieldError("hash_id_scope", f"{place}expected local or global, found {str(scope)[:40]!r}")
            if name in self._sessions:
                raise FieldError("id", f"{place}session {name!r} appears twice; give each session an id of its own")
            self._sessions.add(name)
            requests: list[_Entry] = []
            _collect(requests, session, f"{place}requests", name, 0, ())
        except FieldError as error:
            yield line_number, error
            return
        turns: Counter[str] = Counter()
        for index, entry in enumerate(requests):
            try:
                made = self._request(entry.record, "" if scope == "global" else name, entry.requester)
                after = [requests[at].record for at in entry.after]
                yield line_number, replace(
                    made, turn=turns[entry.requester], key=f"{name}:{index}",
                    after=tuple(f"{name}:{at}" for at in entry.after), delay_s=_delay_s(entry.record, after),
                )  # fmt: skip
                turns[entry.requester] += 1
            except FieldError as error:
                yield line_number, FieldError(entry.place, str(error))

    def _request(self, record: Mapping[str, Any], scope: str, requester: str) -> WorkloadRequest:
        input_tokens = integer(record, "in", 1)
        ids = self._names.ids(record, "hash_ids")
        check_block_count("hash_ids", len(ids), input_tokens, self.block_tokens)
        return WorkloadRequest(
            arrival_s=number(record, "t"),
            input_tokens=input_tokens,
            output_tokens=integer(record, "out", 0),
            block_ids=self._ids.of(scope, ids),
            block_tokens=self.block_tokens,
            namespace=Namespace(salt=scope),
            session=requester,
            category=_kinds(record),
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One request of a document.

    Attributes:
        place: in the document. requester: whose it is.
        after: places, in the list of all, of those whose answers it waits for.
    """

    place: str
    requester: str
    record: Mapping[str, Any]
    after: tuple[int, ...]


def _collect(
    found: list[_Entry], session: Mapping[str, Any], where: str, requester: str, depth: int, after: tuple[int, ...]
) -> tuple[int, ...]:
    """Add a requester's requests to `found` in document order, sub-agents' where they were called.

    Args:
        after: what its first one comes after.

    Returns:
        what comes next in its caller waits for these.
    """
    entries = session.get("requests")
    if not isinstance(entries, list):
        raise FieldError(where, "missing" if entries is None else "expected a list")
    if depth > _MAX_DEPTH:
        raise FieldError(where, f"sub-agents nested more than {_MAX_DEPTH} deep")
    last, joins = after, tuple[int, ...]()
    for index, entry in enumerate(entries):
        place = f"{where}[{index}]"
        if not isinstance(entry, dict):
            raise FieldError(place, f"expected an object, requests {str(entry)[:40]}")
        if entry.get("type") == "subagent":
            name = text(entry, "agent_id") or str(index)
            own = _collect(found, entry, f"{place}.requests", f"{requester}/{name}", depth + 1, last)
            joins += tuple(at for at in own if at not in last)
        else:
            found.append(_Entry(place, requester, entry, last + joins))
            last, joins = (len(found) - 1,), ()
    return last + joins


def _delay_s(record: Mapping[str, Any], after: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the last answer that a request waits for until it is sent."""
    if not after:
        return 0.0
    if len(after) == 1 and record.get("think_time") is not None:
        return number(record, "think_time")
    ends = (number(one, "t") + (number(one, "api_time") if one.get("api_time") is not None else 0.0) for one in after)
    return max(0.0, number(record, "t") - max(ends))


def _kinds(record: Mapping[str, Any]) -> str | None:
    kinds = record.get("input_types")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return None
    return "+".join(kinds) or None


def _documents(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name.endswith((".json", ".json.gz")) and file.is_file())


def _beginning(file: Path) -> bytes:
    try:
        with open_bytes(file) as opened:
            return opened.read(2**16)
    except (OSError, EOFError, WorkloadError):
        return b""


def _is_session(beginning: bytes) -> bool:
    return beginning.lstrip().startswith(b"{") and _START in beginning and b'"hash_ids"' in beginning


def _complete(line: bytes) -> bool:
    """Whether a line is a JSON document by itself; one that goes on over several lines is not."""
    try:
        orjson.loads(line)
    except ValueError:
        return False
    return True
