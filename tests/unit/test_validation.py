"""What pydantic checks for us, and what it refuses as one sentence."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import Field

from framework.config.sections import CacheOptions, EngineOptions, RunOptions
from framework.engine.engine import ModelLimits
from framework.errors import ConfigError, did_you_mean
from framework.validation import check


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


Blocks = NewType("Blocks", int)

FITS: list[tuple[Any, Any, Any]] = [
    (1, float, 1.0),
    (None, int | None, None),
    (1, int | float, 1),
    ([1, 2], tuple[float, ...], (1.0, 2.0)),
    ([1, "a"], tuple[int, str], (1, "a")),
    ({"a": 1}, Mapping[str, float], {"a": 1.0}),
    (1, Colour, Colour.RED),
    ("/x", Path, Path("/x")),
    ([1], list["Unresolved"], [1]),  # type: ignore[name-defined]  # noqa: F821
    (1e3, int, 1000),
    ("128", int, 128),
    ("128", int | None, 128),
    ("128", int | str, "128"),
    ("0.5", float, 0.5),
    ("yes", bool, True),
    ("Off", bool, False),
    ("no", Literal["auto"] | bool, False),
    ("auto", Literal["auto"] | bool, "auto"),
    ("yes", Literal["yes", True], "yes"),
    (4.0, Blocks, 4),
    ([1], tuple, (1,)),
]
FAILS: list[tuple[Any, Any, str]] = [
    (True, int, "x must be a number, found True"),
    ("1.5", int, "x must be a valid integer, found '1.5'"),
    ("1", Literal[1, 2], "x must be 1 or 2, found '1'"),
    ("maybe", bool, "x must be a valid boolean, found 'maybe'"),
    (float("inf"), int, "x must be a finite number, found inf"),
    (True, float, "x must be a number, found True"),
    (1, bool, "x must be true or false, found 1"),
    ("a", int | None, "x must be a valid integer, found 'a'"),
    ("a", int | float, "x must be a valid integer or a valid number, found 'a'"),
    ("mix", Literal["max", "min"], "x must be 'max' or 'min', found 'mix'; did you mean 'min'?"),
    (["a"], list[int], "x[0] must be a valid integer, found 'a'"),
    ([1], tuple[int, str], "x[1] has no value"),
    ("ab", list[str], "x must be a list, found 'ab'"),
    (5, Sequence[int], "x must be a list, found 5"),
    ({"a": "b"}, dict[str, int], "x.a must be a valid integer, found 'b'"),
    ([], dict[str, int], "x must be a mapping, found []"),
    ("GREN", Colour, "x must be 1 or 2, found 'GREN'"),
    ("maybe", Literal["auto"] | bool, "x must be 'auto' or a valid boolean, found 'maybe'"),
    (9, Annotated[int, Field(le=5)] | None, "x must be at most 5, found 9"),
    (2**64, Annotated[int, Field(le=2**63 - 1)], f"x must be at most {2**63 - 1}, found {2**64}"),
    (2.0**64, Annotated[float, Field(le=1e9)], f"x must be at most 1000000000, found {2**64}"),
    (1e30, Annotated[float, Field(ge=0, le=0.5)], "x must be at most 0.5, found 1e+30"),
]


@pytest.mark.parametrize(("value", "annotation", "expected"), FITS)
def test_a_value_that_fits_is_converted(value: Any, annotation: Any, expected: Any) -> None:
    found = check(value, annotation, "x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("value", "annotation", "says"), FAILS)
def test_a_value_that_does_not_fit_is_named(value: Any, annotation: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(value, annotation, "x")
    assert str(caught.value).startswith(says), caught.value


def test_values_are_converted_to_their_types() -> None:
    limits = ModelLimits(max_model_len=8, eos_token_ids=[1, 8])  # type: ignore[arg-type]
    assert limits.eos_token_ids == (1, 8)
    assert limits.plain()["eos_token_ids"] == [1, 8]
    assert type(RunOptions(dir="x", timeout_s=5).timeout_s) is float


def test_a_bound_holds_in_python_too_and_for_a_changed_copy() -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_batch_requests must be at most 65536, found 10000000"):
        EngineOptions(max_batch_requests=10**7)
    with pytest.raises(ConfigError, match=r"cache\.block_size must be at least 1, found 0"):
        CacheOptions().changed(block_size=0)
    with pytest.raises(ConfigError, match=r"run\.timeout_s must be a finite number, found inf"):
        RunOptions(dir="x", timeout_s=math.inf)


def test_only_a_near_word_is_suggested() -> None:
    assert did_you_mean("lruu", ["lru", "fifo"]) == "; did you mean 'lru'?"
    assert did_you_mean("zzz", ["lru", "fifo"]) == ""
