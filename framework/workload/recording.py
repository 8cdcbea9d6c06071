"""A serve run written down, read back so that a replay without its model makes the same decisions.

File: one JSON header line `{"format": "kvlab-recording", "version": 2, "eos_token_ids": [...], "max_model_len": ...,
"window": ...}` (tokens of the sliding window that every layer has, or null), then one object a request, in order of
submission: `number`, `arrival_step`, `prompt` (token ids), `sampling` (fields of Sampling), `seed`,
`priority`, `tenant`, `namespace`, `outputs` (token ids of each sample), `tops` (for beam search: the ids and
log-probabilities of the candidates at each of its steps), and `key`, `session`, `turn`, `category` and `hint` where
they are known. A reader refuses a version it does not know. `framework.replay.items` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from framework.errors import WorkloadError
from framework.interfaces.workload import Namespace, Sampling, Workload, WorkloadRequest
from framework.types import Hint, TokenArray, as_tokens
from framework.workload.traces.recorded import FORMAT, VERSION

Candidates = tuple[list[list[int]], list[list[float]]]


@dataclass(frozen=True, slots=True)
class Recording:
    """All requests of a file, in order of submission.

    Attributes:
        eos_token_ids: ended their sequences.
        max_model_len: longest sequence the engine took, tokens: what allocators that reserve reserve.
        window: of all layers of the model, tokens; None where a layer has none.
        requests: arrivals are step numbers, and `sampling.seed` is the one that was drawn.
        outputs: (place in `requests`, sample) -> the tokens it generated.
        tops: (place in `requests`, call) -> candidates of its beam search.
    """

    eos_token_ids: tuple[int, ...]
    max_model_len: int
    window: int | None
    requests: tuple[WorkloadRequest, ...]
    outputs: dict[tuple[int, int], TokenArray] = field(default_factory=dict)
    tops: dict[tuple[int, int], Candidates] = field(default_factory=dict)


@dataclass(kw_only=True)
class RecordedWorkload(Workload):
    """A serve run recorded with run.record=true, replayed without its model: mode=replay workload=recording.

    Args:
        path: recording.jsonl of the run's directory.
    """

    path: Path

    def recording(self) -> Recording:
        """The file, read whole."""
        return read_recording(self.path)

    def requests(self) -> Iterator[WorkloadRequest]:
        """See Workload; a step counts as a second."""
        return iter(self.recording().requests)


def read_recording(path: Path) -> Recording:
    """Read a recorded run.

    Raises:
        WorkloadError: no such file, another format or version, no request, or a broken line, with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise WorkloadError(f"{path} cannot be read: {reason}; a serve run with run.record=true writes one") from error
    number = 1
    try:
        header = json.loads(lines[0]) if lines else {}
        if (header.get("format"), header.get("version")) != (FORMAT, VERSION):
            raise WorkloadError(
                f"{path}:1: expected format {FORMAT!r} version {VERSION}, found {header.get('format')!r} version "
                f"{header.get('version')!r}"
            )
        window = header.get("window")
        found = Recording(
            tuple(header["eos_token_ids"]), int(header["max_model_len"]), None if window is None else int(window), ()
        )
        requests: list[WorkloadRequest] = []
        for line in lines[1:]:
            number += 1
            requests.append(_request(json.loads(line), found, len(requests)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        if isinstance(error, WorkloadError):
            raise
        raise WorkloadError(f"{path}:{number}: {type(error).__name__}: {str(error)[:200]}") from error
    if not requests:
        raise WorkloadError(f"{path} holds 0 requests; there is nothing to replay")
    return replace(found, requests=tuple(requests))


def _request(row: Mapping[str, Any], found: Recording, place: int) -> WorkloadRequest:
    """The request of one line; its outputs and candidates go into `found`.

    Args:
        place: of the line among the requests. A replay numbers its requests so; the run itself numbered those too that
            it refused, which are not in the file.
    """
    outputs = [as_tokens(tokens) for tokens in row["outputs"]]
    found.outputs.update({(place, sample): tokens for sample, tokens in enumerate(outputs)})
    found.tops.update({(place, call): (ids, values) for call, (ids, values) in enumerate(row["tops"])})
    return WorkloadRequest(
        prompt=as_tokens(row["prompt"]),
        sampling=replace(Sampling(**row["sampling"]), seed=row["seed"]),
        arrival_s=float(row["arrival_step"]),
        namespace=Namespace(**row["namespace"]),
        priority=row["priority"],
        tenant=row["tenant"],
        session=row.get("session"),
        turn=row.get("turn"),
        category=row.get("category"),
        hint=Hint.of(row.get("hint")),
        key=row.get("key", ""),
    )
