"""What an allocator's reader of JSON lines raises or answers is checked, and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.errors import PluginError
from framework.guard.json_lines import read_lines
from framework.interfaces.json_lines import LineField

FIELDS = [
    LineField("time", "number"),
    LineField("size", "integer", True, 0, 9),
    LineField("ids", "integers", True, 0, 9),
    LineField("name", "text", False),
    LineField("turn", "integer", False, 0, 9),
]
SOUND: tuple[Any, ...] = (
    np.array([0.0, 1.5]), np.array([1, 2]), (np.array([7, 8, 9]), np.array([0, 1, 3])), ["a", None], None,
)  # fmt: skip


def reader(answer: object) -> Any:
    """A class whose reader answers, or raises, this."""

    def read(cls: type, content: bytes, fields: object) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return type("Core", (), {"read_json_lines": classmethod(read)})


def changed(field: int, column: object) -> tuple[Any, ...]:
    return (*SOUND[:field], column, *SOUND[field + 1 :])


def test_sound_columns_pass_and_none_is_none() -> None:
    assert read_lines(reader(SOUND), b"", FIELDS) is SOUND
    assert read_lines(reader(None), b"", FIELDS) is None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ZeroDivisionError("oh"), r"raised ZeroDivisionError\('oh'\)"),
        (SystemExit(0), "raised SystemExit"),
        ("text", "must return 5 columns, or None, returned 'text'"),
        (SOUND[:4], "must return 5 columns"),
        (changed(0, np.array([1, 2])), "time: must be a float64 array"),
        (changed(0, None), "time: must be a float64 array"),
        (changed(1, [1, 2]), "size: must be a int64 array"),
        (changed(1, np.array([[1], [2]])), "size: must be a int64 array"),
        (changed(1, np.array([1])), r"must return columns of one length, found \['1', '2'\] lines"),
        (changed(2, np.array([1, 2])), "ids: must be integers and where each line's begin"),
        (changed(2, (np.array([7.0]), np.array([0, 0, 1]))), "ids: must be integers"),
        (changed(2, (np.array([7]), np.array([], dtype=np.int64))), "ids: must be integers"),
        (
            changed(2, (np.array([7, 8]), np.array([0, 2, 1]))),
            "ids: must begin in order, from 0 to the 2 integers' end",
        ),
        (changed(2, (np.array([7, 8]), np.array([1, 1, 2]))), "ids: must begin in order"),
        (changed(2, (np.array([7, 8]), np.array([0, 3, 2]))), "ids: must begin in order"),
        (changed(3, np.array(["a", "b"])), "name: must be a list"),
        (changed(3, ["a", 5]), "name: must hold texts and None"),
        (changed(4, [1, "2"]), "turn: must hold integers and None"),
        (changed(4, [1]), "must return columns of one length"),
    ],
)
def test_a_reader_that_fails_or_answers_what_is_no_column_is_named(answer: object, says: str) -> None:
    with pytest.raises(PluginError, match=rf"allocator Core\.read_json_lines: .*{says}"):
        read_lines(reader(answer), b"", FIELDS)
