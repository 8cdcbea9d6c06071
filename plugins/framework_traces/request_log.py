"""SGLang's request log as a trace, without its text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from framework.errors import WorkloadError
from framework_traces.private import LiveRequest, PrivateTrace
from framework_workloads.lines import read_lines
from framework_workloads.trace.format import FieldError

_FINISHED = "request.finished"
_FLAGS = "--log-requests --log-requests-level 3 --log-requests-format json"


@dataclass(slots=True)
class Converted:
    """Requests written, and those left out because the log has their text alone."""

    num_requests: int
    num_without_tokens: int


def convert(source: Path, target: Path, *, block_tokens: int) -> Converted:
    """Write the requests of a log (--log-requests-format json, level 3) as a trace in which nobody can read anything.

    Each token becomes a number made of a key and of all tokens up to it, salt and adapter: prompts share in the trace
    what they share in the log, to the token. The key is drawn for this file and never written.

    Args:
        source: a log, or a folder of them.
        target: a new file.

    Raises:
        WorkloadError: no such log, a line of it that is damaged, or no request with tokens in it.
        ConfigError: the target is there already, or cannot be written.
    """
    requests = list[tuple[float, LiveRequest]]()
    for path in _files(source):
        for number, line in read_lines(path):
            try:
                ended = _request(line)
            except (FieldError, ValueError) as error:
                raise WorkloadError(f"{path}:{number}: {error}") from error
            if ended is not None:
                requests.append(ended)
    whole = sorted((entry for entry in requests if entry[1].hashes), key=lambda entry: entry[0])
    if not whole:
        raise WorkloadError(
            f"{source}: no request with token ids among {len(requests)}; SGLang logs them with {_FLAGS}"
        )
    trace = PrivateTrace(target, block_tokens, hash_tokens=1, source="sglang")
    for time_s, request in whole:
        request.arrival_s = time_s - whole[0][0]
        trace.arrived(request)
        trace.ended()
    trace.close()
    return Converted(trace.num_requests, len(requests) - len(whole))


def _files(source: Path) -> Sequence[Path]:
    if not source.exists():
        raise WorkloadError(f"{source}: no such file; an address of KV events begins with tcp:// or ipc://")
    return sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else (source,)


def _request(line: bytes) -> tuple[float, LiveRequest] | None:
    """Arrival and request of a line that says that one has ended; one of text alone has no hashes. None: another line.

    Raises:
        FieldError, ValueError: such a line is damaged.
    """
    start = line.find(b"{")  # after "[2026-11-22 12:00:00] "
    if start < 0 or _FINISHED.encode() not in line:
        return None
    record = orjson.loads(line[start:])
    if not isinstance(record, dict) or record.get("event") != _FINISHED:
        return None
    asked, answer = _object(record, "obj"), _object(record, "out")
    facts = _object(answer, "meta_info")
    prompt, output = _tokens(asked, "input_ids"), _tokens(answer, "output_ids")
    if "output_ids" not in answer or answer["output_ids"] is None:
        output = [-1] * int(facts.get("completion_tokens") or 0)  # unknown, and so nobody's
    time_s = datetime.fromisoformat(str(record.get("timestamp"))).timestamp() - float(facts.get("e2e_latency") or 0.0)
    session = asked.get("session_id")
    request = LiveRequest(arrival_s=0.0, prompt_tokens=len(prompt), total_tokens=len(prompt) + len(output),
                          session=session if isinstance(session, str) else None)  # fmt: skip
    if prompt:
        space = [asked.get(name) for name in ("lora_path", "lora_id", "extra_key", "cache_salt")]
        known = prompt + [token for token in output if token >= 0]
        request.hashes = [*_chain(repr(space).encode(), known)]
    return time_s, request


def _object(record: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = record.get(field)
    if not isinstance(value, dict):
        raise FieldError(field, "expected an object")
    return value


def _tokens(record: Mapping[str, Any], field: str) -> list[int]:
    """Token ids, or none where there are none or several prompts at once.

    Raises:
        FieldError: the log was cut: its level is below 3.
    """
    value = record.get(field)
    if not isinstance(value, list) or (value and isinstance(value[0], list)):
        return []
    if "..." in value:
        raise FieldError(field, f"the log leaves tokens out; log with {_FLAGS}")
    if not all(type(token) is int and token >= 0 for token in value):
        raise FieldError(field, "expected token ids")
    return value


def _chain(space: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
    """A hash of all tokens up to each."""
    state = hashlib.blake2b(space, digest_size=16)
    for token in tokens:
        state.update(token.to_bytes(8, "little"))
        yield state.copy().digest()
