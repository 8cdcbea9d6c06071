"""A recorded serve run as a token-level trace: what was asked and what the model answered."""

from __future__ import annotations

import json
from typing import Any

from framework.workload.traces.own_format import name_blocks
from framework.workload.traces.record import FieldError, TraceRequest, integer, integers, number, text

FORMAT, VERSION = "kvlab-recording", 2
"""Of the header; framework.replay.recording describes and writes the file."""


def recorded(record: dict[str, Any], block_tokens: int) -> TraceRequest:
    """One request line. A step counts as a second: with `replay.step_s=1` requests arrive as they did.

    Of several samples only the first's tokens are kept, of beams none: a trace holds one output a request. Namespaces
    become scopes.
    """
    sampling, outputs = record.get("sampling"), record.get("outputs")
    if not isinstance(sampling, dict) or not isinstance(outputs, list):
        raise FieldError("sampling", "expected an object, and outputs a list")
    tokens = integers(record, "prompt", limit=2**31 - 1).astype("int32")
    if not len(tokens):
        raise FieldError("prompt", "a prompt has at least one token")
    answers = [integers({"outputs": answer}, "outputs", limit=2**31 - 1).astype("int32") for answer in outputs]
    return TraceRequest(
        arrival_s=number(record, "arrival_step"),
        input_tokens=len(tokens),
        output_tokens=len(answers[0]) if answers else integer(sampling, "max_tokens", 1),
        block_ids=name_blocks(tokens, block_tokens),
        block_tokens=block_tokens,
        scope=_scope(record),
        tenant=text(record, "tenant"),
        tokens=tokens,
        output=answers[0] if answers else None,
        n=integer(sampling, "n", 1),
        beam_width=integer(sampling, "beam_width", 1),
    )


def _scope(record: dict[str, Any]) -> str:
    namespace = record.get("namespace") or {}
    return json.dumps(namespace, sort_keys=True) if any(namespace.values()) else ""
