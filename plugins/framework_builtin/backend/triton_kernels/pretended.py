"""A GPU that is not there, as Triton sees one: kernels are compiled for it, and launched into nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class PretendedDriver:
    """What Triton asks of a driver. Loads and launches nothing; `num_launches` counts what it was asked to launch.

    Args:
        target: as in ArchConfig: backend, architecture, threads a warp.
        shared_bytes: shared memory one program may use.
    """

    _made = itertools.count()

    def __init__(self, target: tuple[str, int, int], shared_bytes: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._device = f"pretended {next(self._made)}"
        self._target = GPUTarget(*target)
        self._shared_bytes = shared_bytes
        self.num_launches = 0
        self.utils = self

    def get_current_target(self) -> Any:
        """What Triton compiles for."""
        return self._target

    def get_current_device(self) -> str:
        """Triton keeps kernels in memory by device: a name of its own for each."""
        return self._device

    def get_current_stream(self, device: str) -> int:
        """The null stream."""
        return 0

    def get_device_properties(self, device: str) -> dict[str, int]:
        """As much as Triton reads before it loads a kernel."""
        return {"max_shared_mem": self._shared_bytes}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: str) -> tuple[None, None, int, int, int]:
        """No module, no function, no registers, no spills, 1,024 threads a program at most."""
        return None, None, 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What Triton calls to start a loaded kernel."""
        return self._launch

    def _launch(self, *grid_and_arguments: Any) -> None:
        self.num_launches += 1


@contextmanager
def pretended(target: tuple[str, int, int], shared_bytes: int) -> Iterator[PretendedDriver]:
    """Triton's driver within the block, whatever the machine has."""
    from triton.runtime.driver import driver

    before = driver._active
    stand_in = PretendedDriver(target, shared_bytes)
    driver.set_active(stand_in)
    try:
        yield stand_in
    finally:
        driver.set_active(before)
