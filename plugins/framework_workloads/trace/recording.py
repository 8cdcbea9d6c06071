"""A recorded serve run: read as a workload, whose replay makes the same decisions without the model, and as a trace.

File: one JSON header line `{"format": "kvlab-recording", "version": 2, "eos_token_ids": [...], "max_model_len": ...,
"window": ...}`, then one object a request, in order of submission: `number`, `arrival_step`, `prompt` (token ids),
`sampling` (fields of Sampling), `seed`, `priority`, `tenant`, `namespace`, `outputs` (token ids of each sample), `tops`
(for beam search: the ids and log-probabilities, null for -inf, of the candidates at each of its steps), and `key`,
`session`, `turn`, `category` and `hint` where they are known. A reader refuses a version it does not know.
`framework.replay.items` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from framework.errors import FrameworkError, WorkloadError
from framework.interfaces.workload import (
    Candidates,
    Namespace,
    Recording,
    Sampling,
    Workload,
    WorkloadRequest,
    answer,
    name_blocks,
)
from framework.replay.items import FORMAT, VERSION
from framework.types import TokenArray
from framework_workloads.lines import read_lines
from framework_workloads.trace.format import (
    FieldError,
    HeadedReader,
    Line,
    check_header,
    contents,
    facts_of,
    integer,
    integers,
    json_object,
    number,
    text,
    token_ids,
)
from framework_workloads.trace.own_format import DEFAULT_BLOCK_TOKENS


class RecordedRun(HeadedReader):
    """A serve run with `run.record=true`: its prompts and the answers. Arrivals are steps.

    Of several samples only the first's tokens are kept, of beams none: a trace holds one output a request.
    """

    header = FORMAT, VERSION
    block_tokens = DEFAULT_BLOCK_TOKENS
    sizes_vary = True

    example: ClassVar[Mapping[str, str]] = {
        "recording.jsonl": '{"format": "kvlab-recording", "version": 2, "eos_token_ids": [0], "max_model_len": 64, '
        '"window": null}\n'
        '{"number": 0, "arrival_step": 3, "prompt": [5, 6, 7], "sampling": {"max_tokens": 8, "n": 1, "beam_width": 1}, '
        '"seed": 1, "priority": 0, "tenant": "t", "namespace": {"model": "m"}, "outputs": [[1, 2, 0]], "tops": []}\n'
    }

    def in_steps(self, head: Sequence[Line]) -> bool:
        """Always."""
        return True

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One request line."""
        request, outputs = _request(record), _outputs(record)
        asked = request.sampling
        length = len(outputs[0]) if outputs else asked.max_tokens
        assert request.tokens is not None
        return replace(
            request,
            output=outputs[0] if outputs else None,
            output_tokens=length,
            block_ids=name_blocks(request.tokens, self.block_tokens, request.namespace),
            block_tokens=self.block_tokens,
            sampling=answer(length, asked.n, asked.beam_width),
            key="",
        )


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

    def in_steps(self) -> bool:
        return True

    def requests(self) -> Iterator[WorkloadRequest]:
        """See Workload; a step counts as a second."""
        return iter(self.recording().requests)


def read_recording(path: Path) -> Recording:
    """Read a recorded run.

    Raises:
        WorkloadError: no such file, another format or version, no request, or a broken line; names line and field.
    """
    if not path.is_file():
        raise WorkloadError(f"{path}: no such file; a serve run with run.record=true writes one")
    recording: Recording | None = None
    for line_number, line in read_lines(path):
        try:
            record = json_object(line)
            if recording is None:
                recording = _begun(record)
                continue
            place = len(recording.requests)
            recording.requests.append(_request(record))
            recording.outputs.update({(place, sample): tokens for sample, tokens in enumerate(_outputs(record))})
            recording.tops.update({(place, call): one for call, one in enumerate(_tops(record))})
        except FieldError as error:
            raise WorkloadError(f"{path}:{line_number}: {error}") from error
    if recording is None or not recording.requests:
        raise WorkloadError(f"{path} holds 0 requests; there is nothing to replay")
    return recording


def _begun(header: Mapping[str, Any]) -> Recording:
    check_header(header, FORMAT, VERSION)
    return Recording(
        eos_token_ids=tuple(integers(header, "eos_token_ids").tolist()),
        max_model_len=integer(header, "max_model_len", 1),
        window=None if header.get("window") is None else integer(header, "window", 1),
    )


def _request(record: Mapping[str, Any]) -> WorkloadRequest:
    """What was asked, without the answers."""
    tokens = token_ids(record, "prompt")
    if not len(tokens):
        raise FieldError("prompt", "a prompt has at least one token")
    return WorkloadRequest(
        prompt=tokens,
        sampling=_sampling(record),
        arrival_s=number(record, "arrival_step"),
        namespace=_namespace(record, len(tokens)),
        **facts_of(record),
    )


def _outputs(record: Mapping[str, Any]) -> list[TokenArray]:
    return [token_ids({"outputs": tokens}, "outputs") for tokens in _list(record, "outputs")]


def _tops(record: Mapping[str, Any]) -> list[Candidates]:
    try:
        return [
            (ids, [[-math.inf if value is None else value for value in row] for row in values])
            for ids, values in _list(record, "tops")
        ]
    except (TypeError, ValueError):
        raise FieldError("tops", "expected pairs of ids and log-probabilities") from None


def _list(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    if not isinstance(value, list):
        raise FieldError(name, "expected a list")
    return value


def _sampling(record: Mapping[str, Any]) -> Sampling:
    fields = record.get("sampling")
    if not isinstance(fields, dict):
        raise FieldError("sampling", "expected an object")
    try:
        return replace(Sampling(**fields), seed=record.get("seed"))
    except (FrameworkError, TypeError) as error:
        raise FieldError("sampling", str(error)) from None


def _namespace(record: Mapping[str, Any], num_tokens: int) -> Namespace:
    namespace = record.get("namespace") or {}
    if not isinstance(namespace, dict):
        raise FieldError("namespace", "expected an object")
    fields = {f"namespace.{name}": namespace.get(name) for name in ("model", "adapter", "salt")}
    model, adapter, salt = (text(fields, name) or "" for name in fields)
    return Namespace(model, adapter, salt, contents(namespace, num_tokens))
