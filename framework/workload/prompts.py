"""Prompts from a user's file: one a line, or JSON lines with everything a request can say."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, FrameworkError, InvalidTokens, WorkloadError
from framework.files.jsonl import JsonObject, iter_lines, iter_objects
from framework.interfaces.workload import Message, Namespace, Sampling, Workload, WorkloadRequest
from framework.types import Hint, as_tokens

_SAMPLING = {
    "max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "seed": int, "n": int, "beam_width": int,
    "length_penalty": float, "ignore_eos": bool, "logprobs": int,
}  # fmt: skip
_PLAIN = {"arrival_s": float, "priority": int, "tenant": str, "session": str, "turn": int, "category": str, "key": str}
_NAMESPACE = {"adapter": str, "salt": str}
_PROMPT = ("prompt", "messages", "tokens")
_FIELDS = (*_PROMPT, *_SAMPLING, "stop", "stop_token_ids", *_PLAIN, "hint", *_NAMESPACE)
_OPTIONAL = ("seed", "logprobs", "session", "turn", "category")
"""Fields that may be null."""


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
        for number, record in self._records():
            try:
                request = _request({"key": f"line-{number}", **record}, defaults)
                if request.key in lines:
                    raise WorkloadError(f"key: {request.key[:60]!r} names the request of line {lines[request.key]} too")
            except FrameworkError as fault:
                raise WorkloadError(f"{self.path}:{number}: {fault}") from fault
            lines[request.key] = number
            yield request
            if len(lines) == self.limit:
                return
        if not lines:
            raise WorkloadError(f"{self.path} holds 0 requests; there is nothing to serve")

    def _records(self) -> Iterator[tuple[int, JsonObject]]:
        suffixes = [suffix for suffix in self.path.suffixes if suffix != ".gz"]
        if suffixes and suffixes[-1] in (".jsonl", ".ndjson", ".json"):
            return iter_objects(self.path, WorkloadError)
        return self._text_records()

    def _text_records(self) -> Iterator[tuple[int, JsonObject]]:
        for number, line in iter_lines(self.path, WorkloadError):
            if "\0" in line:
                raise WorkloadError(f"{self.path}:{number}: prompt: holds a NUL byte; is this a text file?")
            if line.strip():
                yield number, {"prompt": line}


def _request(record: JsonObject, defaults: JsonObject) -> WorkloadRequest:
    for field in record:
        if field not in _FIELDS:
            near = difflib.get_close_matches(field, _FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_FIELDS)}"
            raise WorkloadError(f"{ascii(field)[1:-1][:60]}: no such field; {hint}")
    given = [name for name in _PROMPT if name in record]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise WorkloadError(
            f"{given[-1] if given else 'prompt'}: want exactly one of {', '.join(_PROMPT)}, found {found}"
        )
    sampling = {**defaults, **_typed(record, _SAMPLING)}
    if "stop_token_ids" in record:
        sampling["stop_token_ids"] = tuple(int(token) for token in _tokens("stop_token_ids", record["stop_token_ids"]))
    if "stop" in record:
        sampling["stop"] = record["stop"]
    return WorkloadRequest(
        prompt=_PROMPT_READERS[given[0]](record[given[0]]),
        sampling=Sampling(**sampling),
        namespace=Namespace(**_typed(record, _NAMESPACE)),
        hint=Hint.of(record.get("hint")),
        **_typed(record, _PLAIN),
    )


def _typed(record: JsonObject, kinds: Mapping[str, type]) -> dict[str, Any]:
    return {name: _value(name, record[name], kind) for name, kind in kinds.items() if name in record}


def _value(name: str, value: Any, kind: type) -> Any:
    if value is None and name in _OPTIONAL:
        return None
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise WorkloadError(f"{name}: want {kind.__name__}, found {type(value).__name__} {_shown(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise WorkloadError(f"{name}: want a number of 64 bits, found {_shown(value)}")
    if isinstance(value, str):
        utf8(name, value)
    return float(value) if kind is float else value


def _shown(value: Any) -> str:
    """A value for a message: short, and printable on any terminal."""
    if isinstance(value, int):
        return str(value) if value.bit_length() < 200 else f"a number of {value.bit_length()} bits"
    return ascii(value)[:60]


def utf8(name: str, value: str) -> str:
    """Text that UTF-8 can hold: JSON may spell half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WorkloadError(f"{name}: holds a lone surrogate at character {error.start}, which is no text") from None
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        more = "; token ids go into `tokens`" if isinstance(value, list) else ""
        raise WorkloadError(f"prompt: want text that is not empty, found {type(value).__name__} {_shown(value)}{more}")
    return utf8("prompt", value)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise WorkloadError(f"messages: want a list that is not empty, found {type(value).__name__} {_shown(value)}")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise WorkloadError(f"messages[{index}]: want an object of role and content, found {_shown(message)}")
        for name, text in message.items():
            if not isinstance(text, str):
                raise WorkloadError(f"messages[{index}].{name}: want text, found {type(text).__name__} {_shown(text)}")
            utf8(f"messages[{index}].{name}", text)
    return tuple(value)


def _tokens(field: str, value: Any) -> Any:
    if not isinstance(value, list):
        raise WorkloadError(f"{field}: want a list of token ids, found {type(value).__name__} {_shown(value)}")
    try:
        return as_tokens(value)
    except (InvalidTokens, ValueError, OverflowError) as fault:
        raise WorkloadError(f"{field}: {str(fault)[:200]}") from fault


_PROMPT_READERS: dict[str, Callable[[Any], Any]] = {
    "prompt": _text,
    "messages": _messages,
    "tokens": lambda value: _tokens("tokens", value),
}
