"""`framework.api.run`: what a machine without enough memory says."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework import api, modes
from framework.errors import OutOfMemory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                     "tried to allocate 67108864 bytes. Error code 12 (Cannot allocate memory)"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)  # fmt: skip
def test_memory_that_cannot_be_had_is_our_error_whoever_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*given: object) -> None:
        raise error

    monkeypatch.setattr(modes.Serve, "run", fails)
    with pytest.raises(OutOfMemory, match=r"memory is too small for the run .*lower cache\.num_blocks"):
        api.run({"run": {"dir": str(tmp_path / "run")}})


def test_another_fault_of_the_runtime_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(modes.Serve, "run", fails)
    with pytest.raises(RuntimeError, match="shapes differ"):
        api.run({"run": {"dir": str(tmp_path / "run")}})
