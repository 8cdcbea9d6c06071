"""A serve run written down, so that a replay without its model makes the same decisions.

File: one JSON header line `{"format": "kvlab-recording", "version": 2, "eos_token_ids": [...], "max_model_len": ...}`,
then one object a request, in order of submission: `number`, `arrival_step`, `prompt` (token ids), `sampling` (fields of
Sampling), `seed`, `priority`, `tenant`, `namespace`, `outputs` (token ids of each sample), `tops` (for beam search: the
ids and log-probabilities of the candidates at each of its steps), and where known `session`, `category`, `hint` and
`turn`. A reader refuses a version it does not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework.engine.executors.recording import Candidates, RecordingExecutor
from framework.engine.request import Request
from framework.errors import WorkloadError
from framework.sampling import Sampling
from framework.types import Hint, Namespace, TokenArray, as_tokens
from framework.workload.traces.recorded import FORMAT, VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request of a recording; see the module's text for the fields."""

    number: int
    arrival_step: int
    prompt: TokenArray
    sampling: Sampling
    seed: int
    priority: int = 0
    tenant: str = ""
    session: str | None = None
    category: str | None = None
    hint: Hint | None = None
    turn: int | None = None
    namespace: Namespace = field(default_factory=Namespace)
    outputs: tuple[TokenArray, ...] = ()
    tops: tuple[Candidates, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """All requests of a file, in order of submission.

    Attributes:
        eos_token_ids: ended their sequences.
        max_model_len: longest sequence the engine took, tokens: what allocators that reserve reserve.
    """

    eos_token_ids: tuple[int, ...]
    max_model_len: int
    requests: tuple[RecordedRequest, ...]


def write_recording(
    path: Path,
    requests: Iterable[Request],
    executor: RecordingExecutor,
    *,
    eos_token_ids: Iterable[int],
    max_model_len: int,
) -> None:
    """Write the requests of a drained engine. Refused ones and those that never arrived are left out."""
    with path.open("w", encoding="utf-8") as file:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "eos_token_ids": sorted(int(i) for i in eos_token_ids),
            "max_model_len": max_model_len,
        }
        file.write(json.dumps(header) + "\n")
        for request in sorted(requests, key=lambda request: request.number):
            if request.arrival_step is not None:
                file.write(json.dumps(_row(request, executor.tops.get(request.number, []))) + "\n")


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Its fields; `stop` only where there is one, so that readers from before it read the rest."""
    fields = dataclasses.asdict(sampling)
    return fields if fields["stop"] else {key: value for key, value in fields.items() if key != "stop"}


def _row(request: Request, tops: list[Candidates]) -> dict[str, Any]:
    return {
        "number": request.number,
        "arrival_step": request.arrival_step,
        "prompt": request.prompt.tolist(),
        "sampling": _sampling(request.sampling),
        "seed": request.seed,
        "priority": request.priority,
        "tenant": request.tenant,
        "session": request.session,
        "category": request.category,
        "hint": None if request.hint is None else dataclasses.asdict(request.hint),
        "turn": request.turn,
        "namespace": dataclasses.asdict(request.namespace),
        "outputs": [completion.tokens for completion in request.completions] if not tops else [],
        "tops": tops,
    }


def read_recording(path: Path) -> Recording:
    """Read a file of `write_recording`.

    Raises:
        WorkloadError: no such file, another format or version, or a broken line, with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WorkloadError(
            f"{path} cannot be read: {error.strerror}; a serve run with run.record=true writes one"
        ) from error
    number = 1
    try:
        header = json.loads(lines[0]) if lines else {}
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise WorkloadError(
                f"{path}:1: expected format {FORMAT!r} version {VERSION}, found {header.get('format')!r} "
                f"version {header.get('version')!r}"
            )
        ends, longest = tuple(header["eos_token_ids"]), int(header["max_model_len"])
        requests = []
        for line in lines[1:]:
            number += 1
            requests.append(_request(json.loads(line)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, WorkloadError):
            raise
        raise WorkloadError(f"{path}:{number}: {type(error).__name__}: {error}") from error
    return Recording(ends, longest, tuple(requests))


def _request(row: dict[str, Any]) -> RecordedRequest:
    return RecordedRequest(
        number=row["number"],
        arrival_step=row["arrival_step"],
        prompt=as_tokens(row["prompt"]),
        sampling=Sampling(**row["sampling"]),
        seed=row["seed"],
        priority=row["priority"],
        tenant=row["tenant"],
        session=row.get("session"),
        category=row.get("category"),
        hint=Hint.of(row.get("hint")),
        turn=row.get("turn"),
        namespace=Namespace(**row["namespace"]),
        outputs=tuple(as_tokens(tokens) for tokens in row["outputs"]),
        tops=tuple((ids, values) for ids, values in row["tops"]),
    )
