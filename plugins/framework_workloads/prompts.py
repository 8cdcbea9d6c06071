"""Prompts from files: a user's own, one a line or in JSON lines, and recorded agents' as text."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from framework.errors import ConfigError, FrameworkError, WorkloadError, did_you_mean, listing
from framework.files.jsonl import JsonObject, require_file
from framework.interfaces.workload import Message, Namespace, Sampling, Workload, WorkloadRequest
from framework.types import TokenArray
from framework_workloads.lines import first_lines, iter_lines, iter_objects
from framework_workloads.trace.format import FieldError, contents, facts_of, integer, number, text, token_ids

_PROMPT = ("prompt", "messages", "tokens")
_SAMPLING = tuple(field.name for field in fields(Sampling))
_FACTS = (
    "arrival_s",
    "priority",
    "tenant",
    "session",
    "turn",
    "category",
    "hint",
    "key",
    "adapter",
    "salt",
    "contents",
)
_FIELDS = (*_PROMPT, *_SAMPLING, *_FACTS)


@dataclass(kw_only=True)
class Prompts(Workload):
    """The requests of a file of yours, in its order: text, one prompt a line, or JSON lines.

    A name ending in `.jsonl`, `.ndjson` or `.json` (also with `.gz`) is JSON lines: each object has one of `prompt`
    (text), `messages` (a list of `role` and `content`) or `tokens` (ids), and may set any field of Sampling,
    `arrival_s`, `priority`, `tenant`, `session`, `turn`, `category`, `hint` (a probability that the session goes on,
    or an object of `continues`, `returns_s` and `deadline_s`), `key`, and `adapter`, `salt` and `contents` of the
    namespace, the last as `[[start, end, name], ...]` in tokens of the prompt. A message may have `tool_calls`, and
    those of role `tool` their `tool_call_id` and `name`, for the model's chat template. Also read are OpenAI's batch
    files (`custom_id`, `body`), vLLM's custom rows (`prompt`, `output_tokens`) and ShareGPT's `conversations`, a
    request for each question after what was said before it; and one JSON array of any of these, whose entries are
    counted instead of lines. Any other name is text, one prompt a line. Blank lines are skipped.
    Where `arrival_s` is given, lines are in its order.

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
        for line, question, record in self._plain_records():
            try:
                key = f"line-{line}" if question is None else f"line-{line}-{question}"
                request = _request({"key": key, **defaults, **record})
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

    def _plain_records(self) -> Iterator[tuple[int, int | None, JsonObject]]:
        """(line, number of a line's request where it has several, request in our own fields)."""
        for line, record in self._records():
            try:
                if "conversations" in record:
                    yield from ((line, number, one) for number, one in enumerate(_questions(record)))
                else:
                    yield line, None, _own(record)
            except FieldError as fault:
                raise WorkloadError(f"{self.path}:{line}: {fault}") from fault

    def _records(self) -> Iterator[tuple[int, JsonObject]]:
        suffixes = [suffix for suffix in self.path.suffixes if suffix != ".gz"]
        if suffixes and suffixes[-1] in (".jsonl", ".ndjson", ".json"):
            if next((line.strip()[:1] for _, line in first_lines(self.path, 1)), b"") == b"[":
                yield from _entries(self.path)
            else:
                yield from iter_objects(self.path, WorkloadError)
            return
        for line, prompt in iter_lines(self.path, WorkloadError):
            if "\0" in prompt:
                raise WorkloadError(f"{self.path}:{line}: prompt: holds a NUL byte; is this a text file?")
            if prompt.strip():
                yield line, {"prompt": prompt}


def _entries(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """(number from 1, object) of the entries of one JSON array. Holds the file's text, and one entry."""
    text = "\n".join(line for _, line in iter_lines(path, WorkloadError))
    decoder, place, number = json.JSONDecoder(), text.index("[") + 1, 0
    while (place := _after_space(text, place)) < len(text) and text[place] != "]":
        number += 1
        try:
            entry, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as fault:
            raise WorkloadError(f"{path}: entry {number} of its array is no JSON: {fault}") from fault
        if not isinstance(entry, dict):
            raise WorkloadError(f"{path}: entry {number} of its array is no JSON object, found {ascii(entry)[:60]}")
        yield number, entry
        place = _after_space(text, place)
        if text[place : place + 1] == ",":
            place += 1
        elif text[place : place + 1] != "]":
            break
    if text[place : place + 1] != "]" or _after_space(text, place + 1) < len(text):
        raise WorkloadError(f"{path}: its array is cut short or followed by something after entry {number}")


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


_NO_MATTER = frozenset({"model", "stream", "stream_options", "user", "metadata", "store"})
"""What a body of OpenAI's says of who answers and how the answer is sent: the run's own model answers here."""


def _own(record: JsonObject) -> JsonObject:
    """A line of OpenAI's batch format, or a row of vLLM's, in our fields; any other as it is."""
    if "custom_id" in record or "body" in record:
        body = record.get("body")
        if not isinstance(body, dict):
            raise FieldError("body", f"a line of OpenAI's batch format has an object there, found {ascii(body)[:60]}")
        options = {name: value for name, value in body.items() if name not in _NO_MATTER and value is not None}
        if "max_completion_tokens" in options:
            options["max_tokens"] = options.pop("max_completion_tokens")
        if isinstance(options.get("logprobs"), bool):
            options["logprobs"] = options.get("top_logprobs", 0) if options["logprobs"] else None
            options.pop("top_logprobs", None)
        if unknown := [name for name in options if name not in _FIELDS]:
            raise FieldError(f"body.{ascii(unknown[0])[1:-1][:60]}", "OpenAI's, and not served here; leave it out")
        return {**options, **({"key": record["custom_id"]} if "custom_id" in record else {})}
    if "output_tokens" in record and "max_tokens" not in record:
        return {("max_tokens" if name == "output_tokens" else name): value for name, value in record.items()}
    return record


_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def _questions(record: JsonObject) -> Iterator[JsonObject]:
    """A request for each question of a conversation of ShareGPT's, after all that was said from the first one on."""
    turns = record["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise FieldError("conversations", f"want a list of objects of from and value, found {ascii(turns)[:60]}")
    said: list[JsonObject] = []
    session, asked = text(record, "id"), 0
    for index, turn in enumerate(turns):
        role = _SPEAKERS.get(str(turn.get("from", turn.get("role"))))
        if role is None:
            who = ascii(turn.get("from", turn.get("role")))[:40]
            raise FieldError(f"conversations[{index}].from", f"want one of {', '.join(_SPEAKERS)}, found {who}")
        if role == "assistant" and not asked:
            continue  # an answer to what is not there
        said.append({"role": role, "content": turn.get("value", turn.get("content"))})
        if role == "user":
            yield {"messages": [*said], "session": session, "turn": asked}
            asked += 1


def _request(record: JsonObject) -> WorkloadRequest:
    for name in record:
        if name not in _FIELDS:
            hint = did_you_mean(name, _FIELDS) or f"; there are: {listing(_FIELDS)}"
            raise FieldError(ascii(name)[1:-1][:60], f"no such field{hint}")
    prompt = _prompt(record)
    return WorkloadRequest(
        prompt=prompt,
        sampling=Sampling(**{name: record[name] for name in _SAMPLING if name in record}),
        namespace=Namespace(
            adapter=text(record, "adapter") or "",
            salt=text(record, "salt") or "",
            contents=contents(record, len(prompt) if isinstance(prompt, np.ndarray) else None),
        ),
        arrival_s=number(record, "arrival_s") if "arrival_s" in record else 0.0,
        **facts_of(record),
    )


def _prompt(record: JsonObject) -> str | tuple[Message, ...] | TokenArray:
    given = [name for name in _PROMPT if name in record]
    if len(given) != 1:
        raise FieldError("prompt", f"want exactly one of {', '.join(_PROMPT)}, found {' and '.join(given) or 'none'}")
    if given[0] == "tokens":
        return token_ids(record, "tokens")
    if given[0] == "prompt":
        return _text("prompt", record["prompt"])
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise FieldError("messages", f"want a list that is not empty, found {ascii(messages)[:60]}")
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not isinstance(message, dict) or not {"role", "content"} <= {*message, *_without_content(message)}:
            raise FieldError(place, f"want an object of role and content, found {ascii(message)[:60]}")
        for name, value in message.items():
            if name == "tool_calls":
                if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
                    raise FieldError(f"{place}.tool_calls", f"want a list of objects, found {ascii(value)[:60]}")
                _text(f"{place}.tool_calls", json.dumps(value, ensure_ascii=False))
            elif name not in ("role", "content", "tool_call_id", "name"):
                raise FieldError(
                    f"{place}.{ascii(name)[1:-1][:60]}", "want role, content, tool_calls, tool_call_id, name"
                )
            elif value != "" and (value is not None or name == "role" or name not in _without_content(message)):
                _text(f"{place}.{name}", value)
    return tuple({**message, "content": message.get("content") or ""} for message in messages)


def _without_content(message: JsonObject) -> tuple[str, ...]:
    """A message that calls tools need not say anything."""
    return ("content",) if message.get("tool_calls") else ()


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
