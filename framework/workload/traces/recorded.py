"""A recorded serve run as a token-level trace: what was asked and what the model answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from framework.errors import FrameworkError
from framework.interfaces.trace import (
    FieldError,
    JsonLinesReader,
    Line,
    Namespace,
    Record,
    Sampling,
    WorkloadRequest,
    hint,
    integer,
    integers,
    number,
    text,
)
from framework.workload.traces.block_ids import first_object
from framework.workload.traces.own_format import DEFAULT_BLOCK_TOKENS, answer, check_header, name_blocks

FORMAT, VERSION = "kvlab-recording", 2
"""Of the header; framework.replay.items writes the file."""


class RecordedRun(JsonLinesReader):
    """A serve run with `run.record=true`: its prompts and the answers. Arrivals are steps.

    Of several samples only the first's tokens are kept, of beams
    none: a trace holds one output a request.
    """

    block_tokens = DEFAULT_BLOCK_TOKENS
    sizes_vary = True

    example: ClassVar[Mapping[str, str]] = {
        "recording.jsonl": '{"format": "kvlab-recording", "version": 2, "eos_token_ids": [0], "max_model_len": 64}\n'
        '{"number": 0, "arrival_step": 3, "prompt": [5, 6, 7], "sampling": {"max_tokens": 8, "n": 1, "beam_width": 1}, '
        '"seed": 1, "priority": 0, "tenant": "t", "namespace": {"model": "m"}, "outputs": [[1, 2, 0]], "tops": []}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By the header."""
        return first_object(head).get("format") == FORMAT

    def in_steps(self, head: Sequence[Line]) -> bool:
        """Always."""
        return True

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader; the first line is the header."""
        next(lines, None)
        return super().read(lines, path)

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """What is asked, since prompts are tokens."""
        check_header(first_object(head), FORMAT, VERSION)
        return super().block_size(head, asked)

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One request line."""
        sampling, outputs = record.get("sampling"), record.get("outputs")
        if not isinstance(sampling, dict) or not isinstance(outputs, list):
            raise FieldError("sampling", "expected an object, and outputs a list")
        tokens = integers(record, "prompt", limit=2**31 - 1).astype("int32")
        if not len(tokens):
            raise FieldError("prompt", "a prompt has at least one token")
        answers = [integers({"outputs": answer}, "outputs", limit=2**31 - 1).astype("int32") for answer in outputs]
        length = len(answers[0]) if answers else integer(sampling, "max_tokens", 1)
        return WorkloadRequest(
            prompt=tokens,
            arrival_s=number(record, "arrival_step"),
            output=answers[0] if answers else None,
            output_tokens=length,
            block_ids=name_blocks(tokens, self.block_tokens),
            block_tokens=self.block_tokens,
            sampling=_sampling(sampling, length),
            namespace=_namespace(record),
            priority=integer(record, "priority", -(2**62), 2**62) if "priority" in record else 0,
            tenant=text(record, "tenant") or "",
            session=text(record, "session"),
            turn=integer(record, "turn", 0) if record.get("turn") is not None else None,
            category=text(record, "category"),
            hint=hint(record),
        )


def _sampling(record: Mapping[str, Any], output_tokens: int) -> Sampling:
    n, beam_width = (integer(record, key, 1) if key in record else 1 for key in ("n", "beam_width"))
    try:
        return answer(output_tokens, n, beam_width)
    except FrameworkError as error:
        raise FieldError("sampling", str(error)) from None


def _namespace(record: Mapping[str, Any]) -> Namespace:
    namespace = record.get("namespace") or {}
    if not isinstance(namespace, dict):
        raise FieldError("namespace", "expected an object")
    fields = {f"namespace.{name}": namespace.get(name) for name in ("model", "adapter", "salt")}
    return Namespace(*(text(fields, field) or "" for field in fields))
