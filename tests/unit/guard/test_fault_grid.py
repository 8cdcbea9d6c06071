"""Every hook of allocators, policies and hashes that raises ends the step with its name; a reset begins anew."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import planted_faults
import pytest
from fake_engines import FakeModel, drive, fake_engine, finished, prompts
from planted_faults import raising

from framework import registry
from framework.engine.engine import Engine
from framework.errors import EngineInterrupted, FrameworkError, PluginError, plugin_note
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import KVGroup
from framework.interfaces.hash import HashScheme
from framework.sampling import Sampling

FAULTS: dict[str, tuple[Callable[[], BaseException], type[BaseException], str]] = {
    "RuntimeError": (lambda: RuntimeError("broken"), RuntimeError, r"raised RuntimeError\('broken'\)"),
    "SystemExit": (lambda: SystemExit(0), PluginError, r"raised SystemExit\(0\)"),
    "FrameworkError": (lambda: FrameworkError("broken"), FrameworkError, "broken"),
}
"""What is raised, what leaves the engine, and what the note says."""
HOOKS = {
    "allocator": ("lookup", "fits", "allocate", "extend", "commit", "fork", "free", "table", "stats",
                  "advance", "publish", "unref_leading", "step_end", "steady_tokens"),
    "eviction": ("admit", "hit", "pin", "release", "victim", "evicted", "keep"),
    "hash": ("root", "block", "blocks"),
}  # fmt: skip
NOT_CALLED = {
    "allocator": {"reset", "check", "listen", "facts", "drop"},
    "eviction": {"attach", "victims", "facts", "parameters"},
    "hash": set(),
}
"""Methods that no request reaches: tested one by one, here or beside their caller."""
WORDS = {"allocator": "allocator", "eviction": "eviction policy", "hash": "hash scheme"}
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
    if hook == "steady_tokens":
        cls.groups = (KVGroup(name="full", kind="full", block_tokens=4, block_bytes=1),)
    if hook == "block":  # what the scheme would not call
        cls.blocks = HashScheme.blocks
    return cls, calls


def engine_with(kind: str, hook: str, cls: Any) -> Engine:
    """One that calls the hook."""
    options: dict[str, Any] = {"max_batch_requests": 3}
    if hook == "publish":
        options = {"max_batch_requests": 6, "max_batch_tokens": 24}
    if hook == "unref_leading":
        options |= {"window": 5, "model": FakeModel(window=5)}
    return fake_engine(**{"num_blocks": 14, kind: cls}, **options)


def serve(engine: Engine) -> list[Any]:
    samplings = [Sampling(max_tokens=6), Sampling(max_tokens=6, n=2, temperature=1.0)]
    requests = [engine.submit(prompt, samplings[i % 2]) for i, prompt in enumerate(prompts(8))]
    drive(engine)
    return requests


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("kind", "hook"), [(kind, hook) for kind, hooks in HOOKS.items() for hook in hooks])
def test_a_hook_that_raises_ends_the_step_with_its_name_and_a_reset_engine_serves(
    kind: str, hook: str, fault: str
) -> None:
    error, leaves, says = FAULTS[fault]
    turn = 1 if hook == "root" else 3
    cls, calls = faulty(kind, hook, raising(error), lambda call: call == turn)
    engine = engine_with(kind, hook, cls)
    with pytest.raises(leaves, match=rf"module planted_faults: {WORDS[kind]} Faulty\.{hook}: {says}") as found:
        serve(engine)
    assert type(found.value) is leaves
    assert plugin_note(found.value)
    assert calls[0] == turn, f"{hook} was called {calls[0]} times"
    assert engine.interrupted
    with pytest.raises(EngineInterrupted):
        engine.step()
    engine.reset(engine_with(kind, hook, cls).allocator)
    finished(serve(engine))
    engine.check()


@pytest.mark.parametrize("hook", ["allocate", "extend", "free", "pin", "release", "victim", "blocks"])
def test_a_user_s_interrupt_passes(hook: str) -> None:
    kind = next(kind for kind, hooks in HOOKS.items() if hook in hooks)
    cls, _ = faulty(kind, hook, raising(KeyboardInterrupt), lambda call: call == 3)
    with pytest.raises(KeyboardInterrupt) as found:
        serve(engine_with(kind, hook, cls))
    assert not plugin_note(found.value)
