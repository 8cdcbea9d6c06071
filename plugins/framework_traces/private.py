"""Traces of a live engine, written as requests end: with tokens that only say what is equal, or with its own."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from framework.errors import ConfigError, FrameworkError
from framework_workloads.trace.own_format import FORMAT, VERSION

Hash: TypeAlias = bytes | int | str
"""Names a block's content and all before it."""
_BITS, _NAME_BYTES = 30, 12


class Veil:
    """Replaces every hash and name by a keyed hash of it. The key is drawn anew for each recording and never written.

    Without the key nobody can tell whether a prompt that they guess is in the recording: an engine's own hashes could
    be computed from it. Equal contents keep equal names within a recording, which is all that a replay needs.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def name(self, value: Hash) -> str:
        """24 hexadecimal digits for a hash or a text; equal for equal ones of one type."""
        data = value if isinstance(value, bytes) else repr(value).encode()
        return hashlib.blake2b(data, key=self._key, digest_size=_NAME_BYTES).hexdigest()


class PrivateFile(FileIO):
    """A new file that its owner alone may read; all of each write is on its way to the disk when it returns.

    Raises:
        error: the file is there already, or cannot be written.
    """

    def __init__(self, path: Path, error: type[FrameworkError]) -> None:
        try:
            super().__init__(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))
        except FileExistsError as fault:
            raise error(f"{path} is there already; nothing was written: choose another name") from fault
        except OSError as fault:
            raise error(f"{path}: cannot be written: {fault.strerror or fault}") from fault

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left:
            left = left[super().write(left) :]
        return len(data)


@dataclass(slots=True, eq=False, kw_only=True)
class LiveRequest:
    """One request as an engine knows it.

    Attributes:
        arrival_s: seconds after the first, or steps where the header says so; non-decreasing.
        seconds: beside steps, the same in seconds; None for none.
        prompt_tokens: length of the prompt.
        total_tokens: of prompt and answer together; None: it has not ended.
        hashes: of the full blocks of prompt and answer, each with all before it: salt and adapter are in them.
        session: its conversation, where that is known. tenant: whose it is, "" for nobody's. priority: larger is more
            important.
        tokens, scope, contents: of a trace with the engine's own tokens: those of prompt and answer, the cache salt,
            and what is not text, see `as_contents`.
    """

    arrival_s: float
    prompt_tokens: int
    seconds: float | None = None
    total_tokens: int | None = None
    hashes: Sequence[Hash] = ()
    session: str | None = None
    tenant: str = ""
    priority: int = 0
    tokens: Sequence[int] = ()
    scope: str = ""
    contents: Sequence[tuple[int, int, str]] = ()


class PrivateTrace:
    """A file in our own trace format in which a block's tokens are two numbers made of its hash and a key, then zeros.

    Equal blocks have equal tokens, so hits are what they were; what is beyond a request's last full block is its own.
    The key is drawn anew for each file and never written. Requests stand in order of arrival: one that has ended waits
    for those that came before it.

    Args:
        path: a new file; its owner alone may read it.
        block_tokens: tokens a block, as the file's header says.
        hash_tokens: tokens that one hash stands for; None: a block's.
        plain: write the requests' own tokens and names instead.

    Raises:
        ConfigError: the file is there already, or cannot be written. OSError, of any method: it no longer can be.
    """

    def __init__(
        self, path: Path, block_tokens: int, *, hash_tokens: int | None = None, plain: bool = False, **notes: Any
    ) -> None:
        self._size, self._veil, self._plain = hash_tokens or block_tokens, Veil(), plain
        self._waiting: dict[LiveRequest, None] = {}
        self.num_requests = 0
        self._file: PrivateFile | None = PrivateFile(path, ConfigError)
        self._put({"format": FORMAT, "version": VERSION, "block_tokens": block_tokens, "private": not plain, **notes})

    def arrived(self, request: LiveRequest) -> None:
        """A request came; it is written once it and all before it have ended."""
        self._waiting[request] = None

    def ended(self) -> None:
        """Write those whose turn it is."""
        while self._waiting and (first := next(iter(self._waiting))).total_tokens is not None:
            del self._waiting[first]
            self._write(first)

    def close(self) -> None:
        """Write those that have ended, leave out those that have not, and close the file. Idempotent."""
        if self._file is None:
            return
        try:
            for request in self._waiting:
                if request.total_tokens is not None:
                    self._write(request)
        finally:
            self._waiting.clear()
            self._file.close()
            self._file = None

    def _write(self, request: LiveRequest) -> None:
        total = request.total_tokens or request.prompt_tokens
        tokens, name = ([*request.tokens], str) if self._plain else (self._tokens(request, total), self._veil.name)
        record: dict[str, Any] = {"arrival_s": round(request.arrival_s, 6)}
        if request.seconds is not None:
            record["seconds"] = round(request.seconds, 6)
        record["tokens"] = tokens[: request.prompt_tokens]
        record["output"] = tokens[request.prompt_tokens :]
        if request.session is not None:
            record["session"] = name(request.session)
        if request.tenant:
            record["tenant"] = name(request.tenant)
        if request.scope and self._plain:
            record["scope"] = request.scope
        if request.contents and self._plain:
            record["contents"] = request.contents
        if request.priority:
            record["priority"] = request.priority
        self._put(record)
        self.num_requests += 1

    def _tokens(self, request: LiveRequest, total: int) -> list[int]:
        tokens: list[int] = []
        for name in request.hashes[: total // self._size]:
            tokens += self._block(name)
        while len(tokens) < total:  # what no full block holds, or none that was hashed
            tokens += self._block(f"request {self.num_requests}, {len(tokens)}")
        return tokens[:total]

    def _block(self, name: Hash) -> list[int]:
        number = int(self._veil.name(name), 16)
        mask = 2**_BITS - 1
        return [number & mask, number >> _BITS & mask, *([0] * (self._size - 2))][: self._size]

    def _put(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
