"""Every method of a plugin has its place at the boundary, and what comes from outside passes it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from planted_faults import Unreadable

from framework.errors import FrameworkError, Interruption, OutOfBlocks, PluginError
from framework.guard.allocator import GuardedAllocator
from framework.guard.backend import GuardedBackend
from framework.guard.boundary import Boundary, construct, origin_of, remember_origin, shown
from framework.guard.hash import GuardedHash
from framework.guard.policy import GuardedPolicy
from framework.interfaces.allocator import Allocator
from framework.interfaces.backend import AttentionBackend
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.registry.components import build_component
from framework_builtin.eviction.lru import Lru


class NoBlocks(Unreadable, OutOfBlocks):
    """The contract's error, but unreadable."""


def public(cls: type) -> set[str]:
    return {name for name, value in inspect.getmembers(cls, callable) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("guard", "interface"),
    [
        (GuardedAllocator, Allocator),
        (GuardedPolicy, EvictionPolicy),
        (GuardedHash, HashScheme),
        (GuardedBackend, AttentionBackend),
    ],
)
def test_every_method_of_an_interface_is_guarded(guard: type, interface: type) -> None:
    own = {name for name in vars(guard) if not name.startswith("_")}
    missing = public(interface) - own
    assert not missing, f"{guard.__name__} lets {sorted(missing)} of {interface.__name__} through unguarded"


def raises(error: BaseException) -> Any:
    return Boundary("hash scheme", Unreadable, (OutOfBlocks,)).contain("blocks", error)


def test_what_a_plugin_raises_becomes_an_error_that_names_it() -> None:
    remember_origin(Unreadable, "acme-names 1.5")
    try:
        for error in (KeyError("x"), SystemExit(0), GeneratorExit(), Unreadable(), FrameworkError("ours")):
            with pytest.raises(PluginError, match=r"acme-names 1\.5: hash scheme Unreadable\.blocks: raised") as caught:
                raises(error)
            assert caught.value.__cause__ is error
    finally:
        remember_origin(Unreadable, "")


def test_errors_of_the_contract_pass_and_can_be_read() -> None:
    with pytest.raises(OutOfBlocks, match=r"^need 3$") as caught:
        raises(OutOfBlocks("need 3"))
    assert caught.value.__cause__ is None
    with pytest.raises(OutOfBlocks, match="text cannot be read") as caught:
        raises(NoBlocks())
    assert type(caught.value) is OutOfBlocks


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interruption()])
def test_what_comes_from_outside_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        raises(error)
    assert caught.value is error
    with pytest.raises(type(error)):
        construct("hash", "x", Raising, {"error": error})


class Raising:
    def __init__(self, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("error", [SystemExit(0), Unreadable(), RuntimeError("no"), GeneratorExit()])
def test_a_constructor_that_raises_is_an_error_of_the_plugin(error: BaseException) -> None:
    with pytest.raises(PluginError, match=r"hash 'x' \(.*\): its constructor raised"):
        construct("hash", "x", Raising, {"error": error})


class NoTruth:
    def __bool__(self) -> bool:
        raise RuntimeError("neither")


@pytest.mark.parametrize("value", [NoTruth(), 1, None, "no", property(lambda self: 1 / 0)])
@pytest.mark.parametrize("flag", ["bypass", "needs_future", "needs_requests", "recency_stack"])
def test_a_flag_that_is_neither_true_nor_false_names_the_plugin(flag: str, value: object) -> None:
    odd = type("Odd", (Lru,), {flag: value})
    for make in (lambda: construct("eviction", "odd", odd, {}), lambda: build_component("eviction", odd(), {})):
        with pytest.raises(PluginError, match=rf"eviction Odd\.{flag}: "):
            make()


def test_what_a_plugin_returns_is_shown_short_and_on_one_line() -> None:
    class Worst:
        def __repr__(self) -> str:
            return "a\nb\ud800" + "c" * 10_000

    text = shown(Worst())
    assert text.startswith("a b")
    assert len(text) < 500
    text.encode()
    assert shown(Unreadable()) == "Unreadable (its text cannot be read)"
    assert len(shown(list(range(100_000)))) < 500
    assert shown([1, 2]) == "[1, 2]"


def test_a_class_is_named_by_its_distribution_or_else_its_module() -> None:
    assert origin_of(Raising).startswith("module ")
    assert origin_of(pytest.Session).startswith("pytest ")
