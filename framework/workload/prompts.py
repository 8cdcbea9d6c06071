"""Prompts from files: a user's own, one a line or in JSON lines, and recorded agents' as text."""

from __future__ import annotations

import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from framework.errors import ConfigError, FrameworkError, WorkloadError
from framework.files.jsonl import JsonObject, iter_lines, iter_objects
from framework.files.lines import require_file
from framework.interfaces.records import FieldError, integer, integers, number, text
from framework.interfaces.workload import Message, Namespace, Sampling, Workload, WorkloadRequest
from framework.registry.signatures import did_you_mean, listing
from framework.types import TokenArray
from framework.workload.traces.fields import facts_of

_PROMPT = ("prompt", "messages", "tokens")
_SAMPLING = tuple(field.name for field in fields(Sampling))
_FACTS = ("arrival_s", "priority", "tenant", "session", "turn", "category", "hint", "key", "adapter", "salt")
_FIELDS = (*_PROMPT, *_SAMPLING, *_FACTS)


@dataclass(kw_only=True)
class Prompts(Workload):
    """The requests of a file of yours, in its order: text, one prompt a line, or JSON lines.

    A name ending in `.jsonl`, `.ndjson` or `.json` (also with `.gz`) is JSON lines: each object has one of `prompt`
    (text), `messages` (a list of `role` and `content`) or `tokens` (ids), and may set any field of Sampling,
    `arrival_s`, `priority`, `tenant`, `session`, `turn`, `category`, `hint` (a probability that the session goes on,
    or an object of `continues` and `returns_s`), `key`, and `adapter` and `salt` of the namespace. Any other name is
    text, one prompt a line. Blank lines are skipped. Where `arrival_s` is given, lines are in its order.

    Args:
        path: the file.
        max_tokens, temperature: for requests that say nothing.
        limit: only the first so many requests; null for all.
    """

    path: Path
    max_tokens: int = 64
    temperature: float = 0.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"workload.limit (prompts) must be at least 1, found {self.limit}")

    def requests(self) -> Iterator[WorkloadRequest]:
        """See Workload.

        Raises:
            WorkloadError: an unreadable file, an empty one, or a damaged line; names file, line and field.
        """
        defaults = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        lines: dict[str, int] = {}
        for line, record in self._records():
            try:
                request = _request({"key": f"line-{line}", **defaults, **record})
                if request.key in lines:
                    raise FieldError("key", f"{request.key[:60]!r} names the request of line {lines[request.key]} too")
            except (FieldError, FrameworkError) as fault:
                raise WorkloadError(f"{self.path}:{line}: {fault}") from fault
            lines[request.key] = line
            yield request
            if len(lines) == self.limit:
                return
        if not lines:
            raise WorkloadError(f"{self.path} holds 0 requests; there is nothing to serve")

    def _records(self) -> Iterator[tuple[int, JsonObject]]:
        suffixes = [suffix for suffix in self.path.suffixes if suffix != ".gz"]
        if suffixes and suffixes[-1] in (".jsonl", ".ndjson", ".json"):
            yield from iter_objects(self.path, WorkloadError)
            return
        for line, prompt in iter_lines(self.path, WorkloadError):
            if "\0" in prompt:
                raise WorkloadError(f"{self.path}:{line}: prompt: holds a NUL byte; is this a text file?")
            if prompt.strip():
                yield line, {"prompt": prompt}


def _request(record: JsonObject) -> WorkloadRequest:
    for name in record:
        if name not in _FIELDS:
            hint = did_you_mean(name, _FIELDS) or f"; there are: {listing(_FIELDS)}"
            raise FieldError(ascii(name)[1:-1][:60], f"no such field{hint}")
    return WorkloadRequest(
        prompt=_prompt(record),
        sampling=Sampling(**{name: record[name] for name in _SAMPLING if name in record}),
        namespace=Namespace(adapter=text(record, "adapter") or "", salt=text(record, "salt") or ""),
        arrival_s=number(record, "arrival_s") if "arrival_s" in record else 0.0,
        **facts_of(record),
    )


def _prompt(record: JsonObject) -> str | tuple[Message, ...] | TokenArray:
    given = [name for name in _PROMPT if name in record]
    if len(given) != 1:
        raise FieldError("prompt", f"want exactly one of {', '.join(_PROMPT)}, found {' and '.join(given) or 'none'}")
    if given[0] == "tokens":
        return integers(record, "tokens", limit=2**31 - 1).astype(np.int32)
    if given[0] == "prompt":
        return _text("prompt", record["prompt"])
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise FieldError("messages", f"want a list that is not empty, found {ascii(messages)[:60]}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise FieldError(f"messages[{index}]", f"want an object of role and content, found {ascii(message)[:60]}")
        for name, value in message.items():
            if value != "":
                _text(f"messages[{index}].{name}", value)
    return tuple(messages)


def _text(name: str, value: Any) -> str:
    """Text that is not empty and that UTF-8 can hold: JSON may spell half of a surrogate pair."""
    if not isinstance(value, str) or not value:
        raise FieldError(name, f"want text that is not empty, found {type(value).__name__} {ascii(value)[:60]}")
    return text({name: value}, name) or ""


@dataclass(kw_only=True)
class AgentText(Workload):
    """Recorded agent prompts as text, in order of their time stamps: JSON lines, a folder of them, or a tar archive.

    Lines hold `timestamp` (microseconds), `input` and `session_id`; each call of a session repeats what was said before
    and adds to it. An archive (`.tar`, `.tar.gz`, `.tar.xz`) is read without unpacking. `category` is the folder of a
    call's file.

    Args:
        path: file, folder or archive.
        family: only sources with a folder of this name in their path, such as `taubench`; null for all.
        limit: only the first so many requests; null for all.
        max_prompt_chars: keep only this many first characters of each prompt, so that long ones fit a small model;
            what prompts share at their start stays shared. Null keeps all.
        max_tokens: generated per request.
        use_times: arrive as recorded; else all at once, in order.
        skip_empty: leave out recorded calls whose prompt is empty; else one is an error.
    """

    path: Path
    family: str | None = None
    limit: int | None = None
    max_prompt_chars: int | None = None
    max_tokens: int = 32
    use_times: bool = False
    skip_empty: bool = False

    def __post_init__(self) -> None:
        for name in ("limit", "max_prompt_chars", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"workload.{name} (agent_text) must be at least 1, found {value}")

    def requests(self) -> Iterator[WorkloadRequest]:
        """See Workload.

        Raises:
            WorkloadError: an unreadable source, no request in it, or a damaged line; names file, line and field.
        """
        calls = sorted(self._calls(), key=lambda call: call.time_us)[: self.limit]
        if not calls:
            family = f" of family {self.family!r}" if self.family else ""
            raise WorkloadError(f"{self.path}: holds no agent call{family}")
        sampling = Sampling(max_tokens=self.max_tokens)
        turns: Counter[str] = Counter()
        for call in calls:
            yield WorkloadRequest(
                prompt=call.prompt[: self.max_prompt_chars],
                sampling=sampling,
                arrival_s=(call.time_us - calls[0].time_us) / 1e6 if self.use_times else 0.0,
                session=call.session,
                turn=turns[call.session],
                category=call.folder or None,
                key=call.where,
            )
            turns[call.session] += 1

    def _calls(self) -> Iterator[_Call]:
        for folder, where, record in self._objects():
            if self.skip_empty and record.get("input") == "":
                continue
            try:
                yield _Call(
                    time_us=integer(record, "timestamp", 0, 2**62),
                    prompt=_text("input", record.get("input")),
                    session=_text("session_id", record.get("session_id")),
                    folder=folder,
                    where=where,
                )
            except FieldError as error:
                more = "; workload.skip_empty=true leaves such calls out" if record.get("input") == "" else ""
                raise WorkloadError(f"{where}: {error}{more}") from error

    def _objects(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """(name of the file's folder, `FILE:LINE`, the line's object)."""
        if ".tar" in self.path.suffixes:
            yield from self._archived()
            return
        for file in sorted(self.path.rglob("*.jsonl")) if self.path.is_dir() else [self.path]:
            if self.family is None or self.family in file.parts[:-1]:
                for line, record in iter_objects(file, WorkloadError):
                    yield file.parent.name if self.path.is_dir() else "", f"{file.name}:{line}", record

    def _archived(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        try:
            require_file(self.path, WorkloadError)
            with tarfile.open(self.path) as archive:
                members = [member for member in archive if member.isfile() and member.name.endswith(".jsonl")]
                for member in sorted(members, key=lambda member: member.name):
                    name, content = PurePosixPath(member.name), archive.extractfile(member)
                    if self.family is None or self.family in name.parts[:-1]:
                        for line, record in iter_objects(self.path / name, WorkloadError, file=content):
                            yield name.parent.name, f"{name.name}:{line}", record
        except (OSError, tarfile.TarError, EOFError, lzma.LZMAError) as fault:
            raise WorkloadError(f"{self.path}: cannot be read: {fault}") from fault


class _Call(NamedTuple):
    """One recorded call, of `where` (`FILE:LINE`) in `folder`."""

    time_us: int
    prompt: str
    session: str
    folder: str
    where: str
