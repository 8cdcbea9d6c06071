"""Every hook of every kind of plugin, with every kind of fault: named, contained, and gone with the request it hit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import planted_faults
import pytest
from fake_engines import FakeModel, describe, expected, fake_engine, prompts, tokens_of
from planted_faults import Unreadable, raising

from framework import registry
from framework.engine.engine import Engine
from framework.errors import FrameworkError, InvariantViolation, PluginError
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.sampling import Sampling


class Worst:
    """A value that cannot be shown, compared or counted."""

    def __repr__(self) -> str:
        raise SystemExit(0)

    __str__ = __repr__


SILENT = ("None", "text", "NaN", "worst")
"""Of a hook that returns nothing: it did nothing either."""
VOID = ("allocate", "free", "advance", "promise", "admit", "hit", "pin", "release", "evicted")


def answering(make: Callable[[], Any]) -> Callable[..., Any]:
    return lambda real, *args, **options: make()


def huge(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """100,000 entries of what it should return, whatever that is."""
    import numpy as np

    found = real(*args, **options)
    return np.resize(found, 100_000) if isinstance(found, np.ndarray) else [found] * 100_000


FAULTS: dict[str, Callable[..., Any]] = {
    "RuntimeError": raising(lambda: RuntimeError("broken")),
    "SystemExit": raising(lambda: SystemExit(0)),
    "GeneratorExit": raising(GeneratorExit),
    "unreadable": raising(Unreadable),
    "FrameworkError": raising(lambda: FrameworkError("broken")),
    "late": raising(lambda: RuntimeError("broken"), late=True),
    "late SystemExit": raising(lambda: SystemExit(0), late=True),
    "None": answering(lambda: None),
    "text": answering(lambda: "text"),
    "NaN": answering(lambda: float("nan")),
    "worst": answering(Worst),
    "huge": huge,
}
HOOKS = {
    "allocator": ("lookup", "fits", "allocate", "extend", "commit", "fork", "free", "table", "stats",
                  "advance", "promise", "unref_leading", "step_end"),
    "eviction": ("admit", "hit", "pin", "release", "victim", "evicted", "keep"),
    "hash": ("root", "block", "blocks"),
}  # fmt: skip
NOT_CALLED = {
    "allocator": {"withdraw", "reset", "check", "listen", "facts"},
    "eviction": {"attach", "victims", "facts", "parameters"},
    "hash": set(),
}
"""Methods that no request reaches: tested one by one, here or beside their caller."""
BASES = {"allocator": "prefix_cow", "eviction": "fifo", "hash": "xxh64"}
INTERFACES = {"allocator": Allocator, "eviction": EvictionPolicy, "hash": HashScheme}


@pytest.mark.parametrize("kind", HOOKS)
def test_the_grid_has_every_method_of_its_interface(kind: str) -> None:
    methods = {name for name, _ in inspect.getmembers(INTERFACES[kind], callable) if not name.startswith("_")}
    assert methods == {*HOOKS[kind], *NOT_CALLED[kind]}, methods


def faulty(kind: str, hook: str, fault: Callable[..., Any], when: Callable[[int], bool]) -> tuple[Any, list[int]]:
    """See planted_faults.faulty: a built-in plugin of this kind."""
    cls, calls = planted_faults.faulty(registry.load(kind, BASES[kind]), hook, fault, when)
    if hook == "step_end":
        cls.ends_steps = True
    if hook == "block":  # what the scheme would not call
        cls.blocks = HashScheme.blocks
    return cls, calls


def serve(engine: Engine, count: int, limit: int = 400) -> list[Any]:
    samplings = [Sampling(max_tokens=6), Sampling(max_tokens=6, n=2, temperature=1.0)]
    requests = [engine.submit(prompt, samplings[i % 2]) for i, prompt in enumerate(prompts(count))]
    for _ in range(limit):
        if not engine.num_unfinished:
            return requests
        engine.step()
    raise AssertionError(f"{engine.num_unfinished} requests never end: {describe(engine)}")


def options_for(hook: str) -> dict[str, Any]:
    """Of an engine that calls it."""
    if hook == "promise":
        return {"max_batch_requests": 6, "max_batch_tokens": 24, "share_within_step": True}
    if hook == "unref_leading":
        return {"max_batch_requests": 3, "window": 5, "model": FakeModel(window=5)}
    return {"max_batch_requests": 3}


def right(engine: Engine, requests: list[Any]) -> None:
    model = engine.executor.model  # type: ignore[attr-defined]
    for request in requests:
        if request.status.value == "finished":
            assert tokens_of(request) == expected(model, request), f"request {request.number} has wrong tokens"
        else:
            assert request.status.value == "failed", request.status
            assert "Faulty." in request.reason or "raise cache.num_blocks" in request.reason, request.reason


ALWAYS = [(kind, hook, fault) for kind, hooks in HOOKS.items() for hook in hooks
          for fault in ("SystemExit", "unreadable", "late", "None", "NaN", "huge")]  # fmt: skip
GRID = [(kind, hook, fault) for kind, hooks in HOOKS.items() for hook in hooks for fault in FAULTS]


@pytest.mark.parametrize(("kind", "hook", "fault"), GRID, ids=lambda value: value)
def test_a_fault_that_happens_once_costs_the_request_it_hit_and_nothing_after(kind: str, hook: str, fault: str) -> None:
    cls, calls = faulty(kind, hook, FAULTS[fault], lambda call: call == (1 if hook == "root" else 3))
    component: Any = cls if kind == "allocator" else cls()
    engine = fake_engine(**{"num_blocks": 14, kind: component}, **options_for(hook))
    requests = serve(engine, 8)
    assert calls[0] >= (1 if hook == "root" else 3), f"{hook} was called {calls[0]} times"
    right(engine, requests)
    failed = [request for request in requests if request.status.value == "failed"]
    assert len(failed) <= 3, [request.reason for request in failed]
    if hook in ("advance", "stats"):  # called for the whole engine: the others of the step go on
        assert len(failed) == (0 if hook == "advance" and (fault in SILENT or fault == "huge") else 1), failed
    for request in failed:
        assert f"Faulty.{hook}" in request.reason or hook == "block" or fault in SILENT, request.reason
    engine.allocator.check()
    if hook == "free" and fault in SILENT:
        with pytest.raises(InvariantViolation, match="every request has ended, yet"):
            engine.check()
        return
    engine.check()
    later = serve(engine, 3)
    assert [request.status.value for request in later] == ["finished"] * 3, [request.reason for request in later]
    right(engine, later)
    engine.check()


@pytest.mark.parametrize(("kind", "hook", "fault"), ALWAYS, ids=lambda value: value)
def test_a_fault_that_happens_always_ends_requests_and_not_the_engine(kind: str, hook: str, fault: str) -> None:
    cls, _ = faulty(kind, hook, FAULTS[fault], lambda call: True)
    component: Any = cls if kind == "allocator" else cls()
    try:
        engine = fake_engine(**{"num_blocks": 14, kind: component}, **options_for(hook))
        requests = serve(engine, 4)
    except FrameworkError as error:
        raise AssertionError(f"{hook}: {error} left the engine") from error
    right(engine, requests)
    ended = {request.status.value for request in requests}
    if hook in VOID and (fault in SILENT or fault == "huge"):
        return
    assert "failed" in ended, ended


@pytest.mark.parametrize("fault", ["RuntimeError", "SystemExit", "unreadable", "late"])
@pytest.mark.parametrize("hook", ["attach", "victims", "__init__"])
def test_a_policy_that_cannot_be_set_up_is_named_before_anything_runs(hook: str, fault: str) -> None:
    cls, _ = faulty("eviction", hook, FAULTS[fault], lambda call: True)
    if hook == "victims":  # called only for a policy that has its own, when several blocks are needed at once
        engine = fake_engine(eviction=cls(), num_blocks=14)
        right(engine, serve(engine, 8))
        return
    says = r"its constructor raised" if hook == "__init__" else r"Faulty\.attach: raised"
    with pytest.raises(PluginError, match=says):
        fake_engine(eviction=cls, num_blocks=14)


@pytest.mark.parametrize("fault", ["RuntimeError", "SystemExit", "unreadable", "late"])
@pytest.mark.parametrize("hook", ["listen", "check"])
def test_what_is_called_around_a_run_is_named(hook: str, fault: str) -> None:
    cls, _ = faulty("allocator", hook, FAULTS[fault], lambda call: True)
    with pytest.raises(PluginError, match=rf"allocator Faulty\.{hook}: raised"):
        fake_engine(cls, log=lambda event, **facts: None).check()


@pytest.mark.parametrize("hook", ["allocate", "extend", "free", "pin", "release", "victim", "blocks"])
def test_a_user_s_interrupt_passes(hook: str) -> None:
    kind = next(kind for kind, hooks in HOOKS.items() if hook in hooks)
    cls, _ = faulty(kind, hook, raising(KeyboardInterrupt), lambda call: call == 3)
    component: Any = cls if kind == "allocator" else cls()
    engine = fake_engine(**{"num_blocks": 14, kind: component}, max_batch_requests=3)
    with pytest.raises(KeyboardInterrupt):
        serve(engine, 8)
