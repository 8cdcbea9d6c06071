"""Check that an allocator's own reader of JSON lines reads them as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from framework.guard.json_lines import read_lines
from framework.guard.replay_cores import has_core
from framework.interfaces.json_lines import Column, LineField
from framework.testing.driver import Violation
from framework.testing.subjects import Make, fresh
from framework.testing.trace import damaged

FIELDS = (
    LineField("timestamp", "number"),
    LineField("input_length", "integer", True, 1, 10**8),
    LineField("hash_ids", "integers", True, 0, 2**62),
    LineField("session", "text", False),
    LineField("turn", "integer", False, 0, 9),
)
_PUT_IN = (
    b"01", b"-0", b"1e2", b"2.5", b".5", b"5.", b"0.1234567891", b"9007199254740993", b"4503599627370497.5", b"10",
    b"0", b"100000001", b"4611686018427387904", b"4611686018427387905", b"18446744073709551617", b"1 2", b"true",
    b"null", b'"5"', b"[]", b"[,]", b"[1,]", b"[[1]]", b"[ ]", b"{}", b"NaN", b'"\\n"', '"é"'.encode(), b'"\x7f"',
    b'"\t"', b"\r", b"\n", b"\t", b" ", b",", b'"turn": 1, "turn": 1', b'"a": 1', b"\xff", b"\x00",
)  # fmt: skip


def check_json_lines_are_read_as_json(make: Make) -> None:
    """With `read_json_lines`: plain lines are read, and whatever is done to them, what is read is what JSON says."""
    kind = type(fresh(make, 4, 2))
    if not has_core(kind, "read_json_lines"):
        return
    draw = Random(0)
    for _ in range(20):
        good = _lines(draw)
        if read_lines(kind, good, FIELDS) is None:
            raise Violation(f"{kind.__name__}.read_json_lines does not read plain lines: {good!r}")
        for content in (good, good.rstrip(b"\n"), *_changed(good, draw), *damaged(good, draw, 60)):
            found = read_lines(kind, content, FIELDS)
            if found is None:
                continue
            wanted = slowly(content, FIELDS)
            if wanted is None or _shown(found) != _shown(wanted):
                meant = "is not of these fields" if wanted is None else f"holds {_shown(wanted)}"
                raise Violation(f"{kind.__name__}.read_json_lines reads {_shown(found)} where {content!r} {meant}")


def _lines(draw: Random) -> bytes:
    """Up to 12 plain lines, with spaces or without, the optional fields in some of them."""
    optional = draw.sample(("session", "turn"), draw.randint(0, 2))
    spaced = (", ", ": ") if draw.random() < 0.5 else (",", ":")
    rows = []
    for _ in range(draw.randint(1, 12)):
        time = draw.choice((draw.randrange(10**7), draw.randrange(10**7) / 2 ** draw.randint(1, 5), 0.1))
        row: dict[str, Any] = {"timestamp": time, "input_length": draw.randint(1, 10**8)}
        row["hash_ids"] = [draw.randrange(10 ** draw.randint(1, 18)) for _ in range(draw.randint(0, 6))]
        row |= {name: {"session": draw.choice(("", "s", "a b")), "turn": draw.randint(0, 9)}[name] for name in optional}
        keys = list(row)[:3] + [key for key in list(row)[3:] if draw.random() < 0.6]
        rows.append(json.dumps({key: row[key] for key in keys}, separators=spaced))
    return ("\n".join(rows) + "\n").encode()


def _changed(good: bytes, draw: Random) -> list[bytes]:
    """Copies with something odd put in, or in place of up to eight bytes."""
    changed = []
    for odd in _PUT_IN:
        start = draw.randrange(len(good))
        changed += [good[:start] + odd + good[start + draw.choice((0, 1, 2, 8)) :] for start in (start, start // 2)]
        places = [at for at, byte in enumerate(good) if chr(byte).isdigit() and not chr(good[at - 1]).isdigit()]
        at = draw.choice(places)
        end = next(end for end in range(at, len(good)) if chr(good[end]) not in "0123456789.")
        changed.append(good[:at] + odd + good[end:])
    return changed


class _Object(tuple[Any, ...]):
    """A JSON object's pairs: no list, and with its repeated keys."""


def slowly(content: bytes, fields: Sequence[LineField]) -> tuple[Column, ...] | None:
    """The columns by Python's `json`; None where the content is not of these fields."""
    rows: list[dict[str, Any]] = []
    for line in content.rstrip(b"\n").split(b"\n"):
        try:
            pairs = json.loads(line.decode(), object_pairs_hook=_Object, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        row = dict(pairs) if type(pairs) is _Object else {}
        if len(row) != len(pairs) or not row.keys() <= {field.name for field in fields}:
            return None
        rows.append(row)
    if not all(_is_of(field, row.get(field.name)) for row in rows for field in fields):
        return None
    return tuple(_column(field, [row.get(field.name) for row in rows]) for field in fields)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _is_of(field: LineField, value: Any) -> bool:
    if value is None:
        return not field.required
    if field.kind == "text":
        return type(value) is str
    if field.kind == "number":
        return type(value) in (int, float)
    values = value if field.kind == "integers" and type(value) is list else [value]
    return all(type(one) is int and field.low <= one <= field.high for one in values) and (
        field.kind == "integer" or values is value
    )


def _column(field: LineField, values: list[Any]) -> Column:
    if field.kind == "integers":
        starts = np.cumsum([0, *map(len, values)], dtype=np.int64)
        return np.array([one for ids in values for one in ids], dtype=np.int64), starts
    if field.kind == "number":
        return np.array(values, dtype=np.float64)
    if field.kind == "integer" and field.required:
        return np.array(values, dtype=np.int64)
    return None if values.count(None) == len(values) else values


def _shown(columns: tuple[Column, ...]) -> list[Any]:
    return [
        [part.tolist() for part in column] if isinstance(column, tuple)
        else column.tolist() if isinstance(column, np.ndarray)
        else column if column is None or any(value is not None for value in column) else None
        for column in columns
    ]  # fmt: skip
