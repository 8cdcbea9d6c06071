"""What a constructor takes, read without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from framework.errors import PluginError
from framework.registry.signatures import MISSING, signature


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
