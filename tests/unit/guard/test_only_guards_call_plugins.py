"""Only the error boundary calls a plugin's methods: a run in which every plugin looks at who calls it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fake_engines import Heard, make_llm

from framework import registry
from framework.interfaces.allocator import Allocator
from framework.interfaces.backend import AttentionBackend
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.interfaces.store import Store
from framework.interfaces.tiering import Tiering
from framework.llm import EngineOptions
from framework.sampling import Sampling

MAY_CALL = ("framework.guard.", "framework.interfaces.", "framework_builtin.", "framework.paged.")
"""The boundary; base classes and other plugins of ours; and the toolkit, where the caller is the allocator itself."""


def watch(patch: pytest.MonkeyPatch, kind: str, name: str, interface: type, others: set[str]) -> str:
    """Note each call of a method of the plugin's interface by anybody else."""
    plugin: type = registry.load(kind, name)

    def noting(method: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            caller = frame.f_globals["__name__"]
            toolkit = caller.startswith("framework.paged.") and frame.f_locals.get("self") is not self
            if not caller.startswith(MAY_CALL) or toolkit:
                others.add(f"{kind}.{method} by {caller}, line {frame.f_lineno}")
            return real(self, *args, **options)

        return call

    for method, _ in inspect.getmembers(interface, inspect.isfunction):
        if not method.startswith("_"):
            patch.setattr(plugin, method, noting(method, getattr(plugin, method)))
    return name


@pytest.mark.parametrize("scheduling", ["admit_first", "running_first"])
def test_only_the_guard_calls_methods_of_plugins(scheduling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    others: set[str] = set()
    parts: dict[str, Any] = {
        "allocator": watch(monkeypatch, "allocator", "prefix_cow", Allocator, others),
        "eviction": watch(monkeypatch, "eviction", "fifo", EvictionPolicy, others),
        "hash": watch(monkeypatch, "hash", "sha256", HashScheme, others),
        "backend": watch(monkeypatch, "backend", "torch", AttentionBackend, others),
    }
    if scheduling == "admit_first":
        store = watch(monkeypatch, "store", "host", Store, others)
        parts["tiers"] = [{"store": store, "num_blocks": 40, "eviction": parts["eviction"]}]
        parts["tiering"] = watch(monkeypatch, "tiering", "write_through", Tiering, others)
    options = EngineOptions(scheduling=scheduling, max_batch_requests=4, max_batch_tokens=16)
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, number] for number in range(6)]
    with make_llm(
        "tiny", num_blocks=24, block_size=2, device="cpu", engine=options, observers=(Heard(),), **parts
    ) as llm:
        for sampling in (Sampling(max_tokens=6), Sampling(max_tokens=6, beam_width=2)):
            for request in llm.generate(prompts, sampling):
                assert request.status.value == "finished", request.reason
        llm.stats()
        llm.engine.check()
        llm.reset()
    assert not others, "\n".join(sorted(others))
