"""Error boundary around attention backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from framework.errors import InvalidArgument, InvariantViolation, OutOfMemory, PluginError, Unsupported
from framework.guard.boundary import Boundary, contained
from framework.guard.facts import Facts, checked_facts
from framework.interfaces.backend import (
    AttentionBackend,
    AttentionSpec,
    Capabilities,
    CompiledKernel,
    LayerKV,
    Rope,
)

if TYPE_CHECKING:
    from torch import Tensor

Timed = TypeVar("Timed")
# InvariantViolation: a recorder of device calls, below the backend, found one that a captured step must not make.
_CONTRACT = (Unsupported, InvalidArgument, OutOfMemory, InvariantViolation, PluginError)


class GuardedBackend:
    """A backend whose every failure is an error of the contract or a PluginError, and whose answers are checked.

    Attributes:
        plugin: the backend itself.
    """

    def __init__(self, backend: AttentionBackend) -> None:
        self.plugin = backend
        self._boundary = Boundary("backend", type(backend), _CONTRACT)
        self._contain = self._boundary.contain

    @property
    def capabilities(self) -> Capabilities:
        """What the backend declares."""
        try:
            found: Any = self.plugin.capabilities
        except BaseException as error:
            self._contain("capabilities", error)
        if not isinstance(found, Capabilities):
            self._boundary.wrong("capabilities", "must be Capabilities", found)
        return found

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        found: Any = self._boundary.call("check", self.plugin.check, spec, device)
        if not isinstance(found, (list, tuple)) or not all(isinstance(reason, str) for reason in found):
            self._boundary.wrong("check", "must return a list of reasons (str)", found)
        return list(found)

    def screen(self, spec: AttentionSpec, arch: str) -> list[CompiledKernel] | None:
        found: Any = self._boundary.call("screen", self.plugin.screen, spec, arch)
        if found is None:
            return None
        if not isinstance(found, (list, tuple)) or not all(isinstance(kernel, CompiledKernel) for kernel in found):
            self._boundary.wrong("screen", "must return a list of CompiledKernel, or None", found)
        return list(found)

    def facts(self) -> Facts:
        return checked_facts(self._boundary, self._boundary.call("facts", self.plugin.facts))

    setup, plan = contained(AttentionBackend.setup), contained(AttentionBackend.plan)
    attend, require = contained(AttentionBackend.attend), contained(AttentionBackend.require)
    write, copy_blocks = contained(AttentionBackend.write), contained(AttentionBackend.copy_blocks)

    def timed(self, work: Callable[[], Timed]) -> Timed:
        """`work`, which calls the plugin's `attend` directly so that nothing but it is timed."""
        try:
            return work()
        except BaseException as error:
            self._contain("attend", error)

    def rotate_and_write(
        self, pool: LayerKV, q: Tensor, k: Tensor, v: Tensor, rope: Rope, slot_mapping: Tensor
    ) -> Tensor:
        try:
            rotated: Any = self.plugin.rotate_and_write(pool, q, k, v, rope, slot_mapping)
        except BaseException as error:
            self._contain("rotate_and_write", error)
        if type(rotated) is not type(q) or rotated.shape != q.shape or rotated.dtype != q.dtype:
            rule = f"must return q rotated, {tuple(q.shape)} {q.dtype}"
            self._boundary.wrong("rotate_and_write", rule, getattr(rotated, "shape", rotated))
        return rotated
