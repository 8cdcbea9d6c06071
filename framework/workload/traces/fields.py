"""What several readers of traces share: the first line, the facts of a request, how it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.interfaces.trace import FieldError, Line, Sampling, hint, integer, json_object, text


def first_object(head: Sequence[Line]) -> dict[str, Any]:
    """The object on a file's first line; an empty one where there is none."""
    try:
        return json_object(head[0][1]) if head else {}
    except FieldError:
        return {}


def check_header(record: Mapping[str, Any], name: str, version: int) -> None:
    """The header names a format and a version that can be read.

    Raises:
        FieldError: it does not.
    """
    if record.get("format") != name:
        raise FieldError("format", f"expected {name!r}, found {str(record.get('format'))[:40]!r}")
    if record.get("version") != version:
        raise FieldError("version", f"this reader knows version {version}, found {str(record.get('version'))[:40]}")


def facts_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a line says of its request under WorkloadRequest's own names: `priority`, `tenant`, `session`, `turn`,
    `category`, `hint` and `key`, each optional.

    Raises:
        FieldError: one of them is wrong.
    """
    return {
        "priority": integer(record, "priority", -(2**31), 2**31) if "priority" in record else 0,
        "tenant": text(record, "tenant") or "",
        "session": text(record, "session"),
        "turn": integer(record, "turn", 0) if record.get("turn") is not None else None,
        "category": text(record, "category"),
        "hint": hint(record),
        "key": text(record, "key") or "",
    }


def answer(output_tokens: int, n: int = 1, beam_width: int = 1) -> Sampling:
    """How a trace's request is answered: with exactly as many tokens as recorded, at least one."""
    return Sampling(max_tokens=max(1, output_tokens), n=n, beam_width=beam_width, ignore_eos=True)
