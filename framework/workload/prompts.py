"""Prompts from a user's file: one a line, or JSON lines with everything a request can say."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from framework.errors import InvalidArgument, InvalidTokens, WorkloadError
from framework.files.jsonl import JsonObject, iter_lines, iter_objects
from framework.sampling import Sampling
from framework.types import Namespace, as_tokens
from framework.workload.request import Message, WorkloadRequest

_SAMPLING = {
    "max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "seed": int, "n": int, "beam_width": int,
    "length_penalty": float, "ignore_eos": bool, "logprobs": int,
}  # fmt: skip
_PLAIN = {"arrival_s": float, "priority": int, "tenant": str, "session": str, "key": str}
_NAMESPACE = {"adapter": str, "salt": str}
_PROMPT = ("prompt", "messages", "tokens")
_FIELDS = (*_PROMPT, *_SAMPLING, "stop_token_ids", *_PLAIN, *_NAMESPACE)


def prompts(
    *, seed: int, path: Path, max_tokens: int = 64, temperature: float = 0.0, limit: int | None = None
) -> list[WorkloadRequest]:
    """The requests of a file, in its order.

    A name ending in `.jsonl`, `.ndjson` or `.json` (also with `.gz`) is JSON lines: each object has one of `prompt`
    (text), `messages` (a list of `role` and `content`) or `tokens` (ids), and may set any field of Sampling,
    `arrival_s`, `priority`, `tenant`, `session`, `key`, and `adapter` and `salt` of the namespace. Any other name is
    text, one prompt a line. Blank lines are skipped.

    Args:
        seed: unused: a file is what it is.
        path: the file.
        max_tokens, temperature: for requests that say nothing.
        limit: only the first so many requests; null for all.

    Raises:
        WorkloadError: an unreadable file, an empty one, or a damaged line; names file, line and field.
    """
    del seed
    defaults = {"max_tokens": max_tokens, "temperature": temperature}
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    read = _from_json_lines if suffixes and suffixes[-1] in (".jsonl", ".ndjson", ".json") else _from_text
    requests: list[WorkloadRequest] = []
    for request in read(path, defaults):
        if limit is not None and len(requests) >= limit:
            break
        requests.append(request)
    if not requests:
        raise WorkloadError(f"{path}: holds no prompt")
    return requests


def _from_text(path: Path, defaults: JsonObject) -> Iterator[WorkloadRequest]:
    for number, line in iter_lines(path, WorkloadError):
        if "\0" in line:
            raise WorkloadError(f"{path}:{number}: prompt: holds a NUL byte; is this a text file?")
        if line.strip():
            yield _located(path, number, {"prompt": line}, defaults)


def _from_json_lines(path: Path, defaults: JsonObject) -> Iterator[WorkloadRequest]:
    for number, record in iter_objects(path, WorkloadError):
        yield _located(path, number, record, defaults)


def _located(path: Path, number: int, record: JsonObject, defaults: JsonObject) -> WorkloadRequest:
    try:
        return _request({"key": f"line-{number}", **record}, defaults)
    except (InvalidArgument, InvalidTokens, WorkloadError) as fault:
        raise WorkloadError(f"{path}:{number}: {fault}") from fault


def _request(record: JsonObject, defaults: JsonObject) -> WorkloadRequest:
    for field in record:
        if field not in _FIELDS:
            near = difflib.get_close_matches(field, _FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_FIELDS)}"
            raise WorkloadError(f"{field}: no such field; {hint}")
    given = [name for name in _PROMPT if name in record]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise WorkloadError(
            f"{given[-1] if given else 'prompt'}: want exactly one of {', '.join(_PROMPT)}, found {found}"
        )
    sampling = {**defaults, **_typed(record, _SAMPLING)}
    if "stop_token_ids" in record:
        sampling["stop_token_ids"] = tuple(int(token) for token in _tokens("stop_token_ids", record["stop_token_ids"]))
    return WorkloadRequest(
        prompt=_PROMPT_READERS[given[0]](record[given[0]]),
        sampling=Sampling(**sampling),
        namespace=Namespace(**_typed(record, _NAMESPACE)),
        **_typed(record, _PLAIN),
    )


def _typed(record: JsonObject, kinds: Mapping[str, type]) -> dict[str, Any]:
    return {name: _value(name, record[name], kind) for name, kind in kinds.items() if name in record}


def _value(name: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if value is None and name in ("seed", "logprobs"):
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WorkloadError(f"{name}: want {kind.__name__}, found {type(value).__name__} {value!r:.60}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise WorkloadError(f"prompt: want text that is not empty, found {type(value).__name__} {value!r:.60}")
    return value


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise WorkloadError(f"messages: want a list that is not empty, found {type(value).__name__} {value!r:.60}")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise WorkloadError(f"messages[{index}]: want an object of role and content, found {message!r:.60}")
        for name, text in message.items():
            if not isinstance(text, str):
                raise WorkloadError(f"messages[{index}].{name}: want text, found {type(text).__name__} {text!r:.60}")
    return tuple(value)


def _tokens(field: str, value: Any) -> Any:
    if not isinstance(value, list):
        raise WorkloadError(f"{field}: want a list of token ids, found {type(value).__name__} {value!r:.60}")
    try:
        return as_tokens(value)
    except (InvalidTokens, ValueError, OverflowError) as fault:
        raise WorkloadError(f"{field}: {fault}") from fault


_PROMPT_READERS: dict[str, Callable[[Any], Any]] = {
    "prompt": _text,
    "messages": _messages,
    "tokens": lambda value: _tokens("tokens", value),
}
