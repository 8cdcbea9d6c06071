"""Values checked against a constructor's types."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, Union

import pytest

from framework.errors import ConfigError, PluginError
from framework.registry.signatures import MISSING, convert, did_you_mean, signature


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


Blocks = NewType("Blocks", int)

FITS: list[tuple[Any, Any, Any]] = [
    (1, int, 1),
    (1, float, 1.0),
    (1.5, float, 1.5),
    ("a", str, "a"),
    (True, bool, True),
    (None, int | None, None),
    (3, Optional[int], 3),  # noqa: UP045
    (3, Union[str, int], 3),  # noqa: UP007
    (1, float | None, 1.0),
    (1, int | float, 1),
    ("max", Literal["max", "min"], "max"),
    (2, Literal[1, 2], 2),
    ([1, 2], list[int], [1, 2]),
    ([1, 2], tuple[float, ...], (1.0, 2.0)),
    ([1, "a"], tuple[int, str], (1, "a")),
    ([1], Sequence[int], [1]),
    ([1, 1], frozenset[int], frozenset({1})),
    ({"a": 1}, dict[str, float], {"a": 1.0}),
    ({"a": 1}, Mapping[str, int], {"a": 1}),
    ("RED", Colour, Colour.RED),
    ("/x", Path, Path("/x")),
    (4, Blocks, 4),
    (4, Annotated[int, "tokens"], 4),
    ("x", Any, "x"),
    (1, "Unresolved", 1),
    (1e3, int, 1000),
    ("128", int, 128),
    ("128", int | None, 128),
    ("128", int | str, "128"),
    ("0.5", float, 0.5),
    ("yes", bool, True),
    ("Off", bool, False),
    ("no", Literal["auto", True, False], False),
    ("auto", Literal["auto", True, False], "auto"),
    ("yes", Literal["yes", True], "yes"),
    (4.0, Blocks, 4),
    ([1], tuple, (1,)),
]
FAILS: list[tuple[Any, Any, str]] = [
    (True, int, "x must be int, found True"),
    (1.5, int, "x must be int, found 1.5"),
    ("1.5", int, "x must be int, found '1.5'"),
    ("1", Literal[1, 2], "x must be one of 1, 2, found '1'"),
    ("maybe", bool, "x must be bool, found 'maybe'"),
    (float("inf"), int, "x must be int, found inf"),
    (True, float, "x must be float"),
    (1, str, "x must be str"),
    (1, bool, "x must be bool"),
    (None, int, "x must be int, found None"),
    ("a", int | None, "x must be int or null, found 'a'"),
    ("a", int | float, "x must be int | float, found 'a'"),
    ("mix", Literal["max", "min"], "x must be one of max, min, found 'mix'; did you mean"),
    (True, Literal[1, 2], "x must be one of 1, 2, found True"),
    (["a"], list[int], "x[0] must be int, found 'a'"),
    ([1], tuple[int, str], "x must be tuple[int, str], found [1]"),
    ("ab", list[str], "x must be a list of str, found 'ab'"),
    ({"a": "b"}, dict[str, int], "x.a must be int, found 'b'"),
    ([], dict[str, int], "x must be dict[str, int]"),
    ("GREN", Colour, "x must be one of RED, BLUE, found 'GREN'"),
    (4.5, Blocks, "x must be int"),
]


@pytest.mark.parametrize(("value", "annotation", "expected"), FITS)
def test_a_value_that_fits_is_converted(value: Any, annotation: Any, expected: Any) -> None:
    found = convert(value, annotation, "x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("value", "annotation", "says"), FAILS)
def test_a_value_that_does_not_fit_is_named(value: Any, annotation: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(value, annotation, "x")
    assert str(caught.value).startswith(says), caught.value


def test_a_signature_has_names_types_and_defaults() -> None:
    class Some:
        def __init__(self, a: int, *, b: float = 0.5, c: NotThere = None, d=3, **rest: Any) -> None: ...  # type: ignore  # noqa: F821

    found = signature(Some)
    assert found.open
    assert [(p.name, p.annotation, p.default) for p in found.parameters] == [
        ("a", int, MISSING),
        ("b", float, 0.5),
        ("c", Any, None),
        ("d", Any, 3),
    ]
    assert [p.required for p in found.parameters] == [True, False, False, False]


def test_a_dataclass_and_an_inherited_constructor_have_signatures() -> None:
    @dataclass
    class Base:
        a: int = 1

    class Child(Base):
        pass

    class Bare:
        pass

    assert [(p.name, p.annotation) for p in signature(Child).parameters] == [("a", int)]
    assert signature(Bare).parameters == ()


def test_a_parameter_that_has_no_keyword_is_refused() -> None:
    class Some:
        def __init__(self, a: int, /) -> None: ...

    with pytest.raises(PluginError, match="'a' cannot be given by keyword"):
        signature(Some)


def test_only_a_near_word_is_suggested() -> None:
    assert did_you_mean("lruu", ["lru", "fifo"]) == "; did you mean 'lru'?"
    assert did_you_mean("zzz", ["lru", "fifo"]) == ""
