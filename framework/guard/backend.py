"""Checks of what attention backends answer before a run, and of what they report."""

from __future__ import annotations

from typing import Any

from framework.guard.boundary import Guard
from framework.guard.facts import Facts, checked_facts
from framework.interfaces.backend import AttentionBackend, AttentionSpec, CompiledKernel


class GuardedBackend(Guard):
    """A backend whose reasons, kernels and facts are what they must be; else a PluginError names it.

    What a step asks of it is asked of the backend itself: it writes into tensors that it is given.
    """

    def __init__(self, backend: AttentionBackend) -> None:
        super().__init__("attention backend", backend)

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        answer: Any = self.plugin.check(spec, device)
        if not isinstance(answer, (list, tuple)) or not all(isinstance(reason, str) for reason in answer):
            self.wrong("check", "must return a list of reasons (str)", answer)
        return list(answer)

    def screen(self, spec: AttentionSpec, arch: str) -> list[CompiledKernel] | None:
        answer: Any = self.plugin.screen(spec, arch)
        if answer is None:
            return None
        if not isinstance(answer, (list, tuple)) or not all(isinstance(kernel, CompiledKernel) for kernel in answer):
            self.wrong("screen", "must return a list of CompiledKernel, or None", answer)
        return list(answer)

    def facts(self) -> Facts:
        return checked_facts(self, self.plugin.facts())
