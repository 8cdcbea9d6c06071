"""kv-cache-tester: sessions of coding agents, one JSON document each, with sub-agents nested in their callers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import orjson

from framework.errors import WorkloadError
from framework.files.lines import open_bytes
from framework.interfaces.trace import (
    BlockNames,
    FieldError,
    Line,
    Namespace,
    Record,
    ScopedIds,
    TraceReader,
    WorkloadRequest,
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
    sub-agent's requests share its caller's blocks and are a session of their own. `category` is the kinds of new input,
    such as "tool_result".
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
            requests = _requests(session, f"{place}requests", name, 0)
        except FieldError as error:
            yield line_number, error
            return
        turns: Counter[str] = Counter()
        for where, requester, record in requests:
            try:
                yield line_number, self._request(record, "" if scope == "global" else name, requester, turns[requester])
                turns[requester] += 1
            except FieldError as error:
                yield line_number, FieldError(where, str(error))

    def _request(self, record: Mapping[str, Any], scope: str, requester: str, turn: int) -> WorkloadRequest:
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
            turn=turn,
            category=_kinds(record),
        )


def _requests(
    session: Mapping[str, Any], where: str, requester: str, depth: int
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(place in the document, whose request, the request) in document order, sub-agents' where they were called."""
    entries = session.get("requests")
    if not isinstance(entries, list):
        raise FieldError(where, "missing" if entries is None else "expected a list")
    if depth > _MAX_DEPTH:
        raise FieldError(where, f"sub-agents nested more than {_MAX_DEPTH} deep")
    requests: list[tuple[str, str, Mapping[str, Any]]] = []
    for index, entry in enumerate(entries):
        place = f"{where}[{index}]"
        if not isinstance(entry, dict):
            raise FieldError(place, f"expected an object, requests {str(entry)[:40]}")
        if entry.get("type") == "subagent":
            name = text(entry, "agent_id") or str(index)
            requests += _requests(entry, f"{place}.requests", f"{requester}/{name}", depth + 1)
        else:
            requests.append((place, requester, entry))
    return requests


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
