"""Error boundary around the readers of JSON lines that allocators have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.errors import PluginError
from framework.guard.boundary import Boundary
from framework.interfaces.allocator import Allocator
from framework.interfaces.json_lines import Column, LineField


def read_lines(cls: type[Allocator], content: bytes, fields: Sequence[LineField]) -> tuple[Column, ...] | None:
    """`cls.read_json_lines` with these arguments: one column a field, all of one length.

    Raises:
        PluginError: it failed, or answered what is no such column.
    """
    boundary, hook = Boundary("allocator", cls, (PluginError,)), "read_json_lines"
    found: Any = boundary.call(hook, cls.read_json_lines, content, fields)
    if found is None:
        return None
    if type(found) is not tuple or len(found) != len(fields):
        boundary.wrong(hook, f"must return {len(fields)} columns, or None", found)
    lengths = {_num_lines(boundary, field, column) for field, column in zip(fields, found, strict=True)} - {None}
    if len(lengths) != 1:
        raise boundary.fault(hook, f"must return columns of one length, found {sorted(map(str, lengths))} lines")
    return found


def _num_lines(boundary: Boundary, field: LineField, column: Any) -> int | None:
    """The lines that a column has; None for one of a field that no line has."""
    hook, values = "read_json_lines", column
    if column is None and not field.required:
        return None
    if field.kind == "integers":
        if type(column) is not tuple or len(column) != 2 or not all(map(_is_integers, column)) or not len(column[1]):
            boundary.wrong(hook, f"{field.name}: must be integers and where each line's begin", column)
        values, starts = column
        if starts[0] != 0 or starts[-1] != len(values) or (starts[1:] < starts[:-1]).any():
            boundary.wrong(
                hook, f"{field.name}: must begin in order, from 0 to the {len(values)} integers' end", starts
            )
        return len(starts) - 1
    wanted = np.float64 if field.kind == "number" else np.int64
    is_list = field.kind == "text" or not field.required
    is_array = isinstance(column, np.ndarray) and column.dtype == wanted and column.ndim == 1
    if not (type(column) is list if is_list else is_array):
        boundary.wrong(hook, f"{field.name}: must be a {'list' if is_list else f'{np.dtype(wanted)} array'}", column)
    if is_list and not set(map(type, column)) <= {type(None), str if field.kind == "text" else int}:
        boundary.wrong(hook, f"{field.name}: must hold {field.kind}s and None", column)
    return len(values)


def _is_integers(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1
