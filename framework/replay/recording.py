"""A serve run written down, so that a replay without its model makes the same decisions.

`framework.workload.recording` describes the file and reads it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from framework.engine.executors.recording import Candidates, RecordingExecutor
from framework.engine.request import Request
from framework.sampling import Sampling
from framework.workload.traces.recorded import FORMAT, VERSION, WITH_WINDOW


def write_recording(
    path: Path,
    requests: Iterable[Request],
    executor: RecordingExecutor,
    *,
    eos_token_ids: Iterable[int],
    max_model_len: int,
    window: int | None,
) -> None:
    """Write the requests of a drained engine. Refused ones and those that never arrived are left out."""
    with path.open("w", encoding="utf-8") as file:
        header = {
            "format": FORMAT,
            "version": VERSION if window is None else WITH_WINDOW,
            "eos_token_ids": sorted(int(i) for i in eos_token_ids),
            "max_model_len": max_model_len,
            **({} if window is None else {"window": window}),
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
        "key": request.key,
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
