"""What several readers of traces share: the first line, the facts of a request, how it is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from framework_builtin.trace.format import FieldError, JsonLinesReader, Line, Record, hint, integer, json_object, text


def first_object(head: Sequence[Line]) -> dict[str, Any]:
    """The object on a file's first line; an empty one where there is none."""
    try:
        return json_object(head[0][1]) if head else {}
    except FieldError:
        return {}


class HeadedReader(JsonLinesReader):
    """One JSON object a line, after a header line with the format's name and version.

    Attributes:
        header: both.
    """

    header: ClassVar[tuple[str, int]]

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By the header."""
        return first_object(head).get("format") == cls.header[0]

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """See TraceReader; the header is checked first."""
        check_header(first_object(head), *self.header)
        return super().block_size(head, asked)

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader; the first line is the header."""
        next(lines, None)
        return super().read(lines, path)


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
