"""A policy or hash scheme that fails inside an allocator's withdraw or reset: named, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from framework import registry
from framework.errors import PluginError
from framework.guard.allocator import GuardedAllocator
from framework.registry.components import build_allocator
from framework.types import ROOT_NAMESPACE, RequestId, RequestInfo

SIZE = 4
ALLOCATORS = ("prefix", "prefix_cow", "radix")
HOOKS = {"eviction": ("admit", "hit", "pin", "release", "victim", "evicted"), "hash": ("root", "block", "blocks")}
FAULTS: dict[str, Callable[[], Any]] = {
    "raises": lambda: (_ for _ in ()).throw(RuntimeError("broken")),
    "exits": lambda: (_ for _ in ()).throw(SystemExit(0)),
    "answers nonsense": lambda: "text",
}


def unreliable(kind: str, base: str, hook: str, fault: str) -> tuple[type, dict[str, Any]]:
    """A built-in plugin whose `hook` fails while `state["armed"]`, and that state; `calls` counts those."""
    parent: Any = registry.load(kind, base)
    state: dict[str, Any] = {"armed": False, "calls": 0}

    def method(self: Any, *args: Any, **options: Any) -> Any:
        if not state["armed"]:
            return getattr(parent, hook)(self, *args, **options)
        state["calls"] += 1
        return FAULTS[fault]()

    return type("Unreliable", (parent,), {hook: method}), state


def made(allocator: str, kind: str, hook: str, fault: str) -> tuple[GuardedAllocator, dict[str, Any]]:
    cls, state = unreliable(kind, {"eviction": "fifo", "hash": "xxh64"}[kind], hook, fault)
    parts: dict[str, Any] = {"eviction": "fifo", "hash": "xxh64", kind: cls()}
    built = build_allocator(
        allocator, parts["eviction"], parts["hash"], num_blocks=12, block_size=SIZE, max_model_len=40
    )
    return GuardedAllocator(built), state


def tokens(count: int, first: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(first, first + count, dtype=np.int32)


def running(guarded: GuardedAllocator) -> None:
    """One request has ended and left cached blocks; one runs on part of them; one has promised what it will compute."""
    for number, text in ((1, tokens(13)), (2, tokens(13)), (3, tokens(13, 100))):
        hit = guarded.lookup(text, ROOT_NAMESPACE)
        guarded.allocate(RequestInfo(id=RequestId(number), max_total_tokens=21), text, hit)
        if number == 3:
            guarded.promise(RequestId(3), 13)
        else:
            guarded.commit(RequestId(number), text)
        if number == 1:
            guarded.free(RequestId(1))
    guarded.extend(RequestId(2), 18)


CALLS: dict[str, Callable[[GuardedAllocator], Any]] = {
    "withdraw": lambda guarded: guarded.withdraw(RequestId(3)),
    "reset": lambda guarded: guarded.reset(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("kind", "hook"), [(kind, hook) for kind, hooks in HOOKS.items() for hook in hooks])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_what_fails_inside_is_named_and_nothing_is_lost(
    allocator: str, call: str, kind: str, hook: str, fault: str
) -> None:
    guarded, state = made(allocator, kind, hook, fault)
    running(guarded)
    state["armed"] = True
    said = ""
    try:
        CALLS[call](guarded)
    except PluginError as error:
        said = str(error)
    assert not said or f"Unreliable.{hook}" in said, said
    assert said or not state["calls"] or fault == "answers nonsense", f"{hook} failed and nobody says so"
    state["armed"] = False
    guarded.check()
    if call == "reset":
        assert guarded.lookup(tokens(13), ROOT_NAMESPACE).num_tokens == 0, "what came before the reset is hit"
    if call == "withdraw":
        assert guarded.lookup(tokens(13, 100), ROOT_NAMESPACE).num_tokens == 0, "a withdrawn promise is hit"
    for number in (2, 3):
        guarded.free(RequestId(number))
    guarded.check()
    assert guarded.stats().used_blocks == 0
    text = tokens(40, 500)
    guarded.allocate(RequestInfo(id=RequestId(9), max_total_tokens=40), text, guarded.lookup(text, ROOT_NAMESPACE))
    guarded.commit(RequestId(9), text)
    guarded.free(RequestId(9))
    guarded.check()


def test_each_of_these_calls_reaches_a_policy() -> None:
    for call in ("withdraw", "reset"):
        reached = set()
        for hook in HOOKS["eviction"]:
            guarded, state = made("prefix_cow", "eviction", hook, "answers nonsense")
            running(guarded)
            state["armed"] = True
            with contextlib.suppress(PluginError):
                CALLS[call](guarded)
            if state["calls"]:
                reached.add(hook)
        assert reached, f"{call} calls no policy, and the grid above proves nothing for it"
