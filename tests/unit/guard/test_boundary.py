"""Plugins by name, their flags, and what they answer as text."""

from __future__ import annotations

import pytest
from planted_faults import Unreadable

from framework.errors import PluginError
from framework.guard.boundary import construct, origin_of, text_of
from framework.registry.components import build_component
from framework_builtin.eviction.lru import Lru


class NoTruth:
    def __bool__(self) -> bool:
        raise RuntimeError("neither")


@pytest.mark.parametrize("value", [NoTruth(), 1, None, "no"])
@pytest.mark.parametrize("flag", ["bypass", "needs_future", "needs_requests", "needs_groups", "recency_stack"])
def test_a_flag_that_is_neither_true_nor_false_names_the_plugin(flag: str, value: object) -> None:
    odd = type("Odd", (Lru,), {flag: value})
    for make in (lambda: construct("eviction", "odd", odd, {}), lambda: build_component("eviction", odd(), {})):
        with pytest.raises(PluginError, match=rf"eviction Odd\.{flag}: "):
            make()


def test_what_a_plugin_returns_is_shown_short_and_on_one_line() -> None:
    class Worst:
        def __repr__(self) -> str:
            return "a\nb\ud800" + "c" * 10_000

    text = text_of(Worst())
    assert text.startswith("a b")
    assert len(text) < 500
    text.encode()
    assert text_of(Unreadable()) == "Unreadable (its text cannot be read)"
    assert len(text_of(list(range(100_000)))) < 500
    assert text_of([1, 2]) == "[1, 2]"


def test_a_class_is_named_by_its_distribution_or_else_its_module() -> None:
    assert origin_of(NoTruth).startswith("module ")
    assert origin_of(pytest.Session).startswith("pytest ")
