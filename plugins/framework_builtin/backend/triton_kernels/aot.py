"""Registers, spills and shared memory of a kernel on a chip that is not present, by compiling ahead of time.

What is compiled is what a launch would have compiled: the launch is made, on a driver that has no device. Run it in a
process whose environment has no TRITON_INTERPRET: the language's own helpers are decorated at its import.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework_builtin.backend.triton_kernels import steps
from framework_builtin.backend.triton_kernels.configs import ARCHS, ArchConfig
from framework_builtin.backend.triton_kernels.kernels import compiled
from framework_builtin.backend.triton_kernels.pretended import pretended
from framework_builtin.backend.triton_kernels.variants import Variant


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes.

    Attributes:
        matrix_instructions, async_loads: of the kernels that attend.
        spills: instructions that move registers to or from local memory.
        stack_bytes: local memory a thread; a few bytes without spills are the ABI's frame.
        async_loads: instructions that copy global to shared memory past the registers.
    """

    registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    matrix_instructions: str
    async_loads: int


def compile_variant(variant: Variant) -> Resources:
    """Compile one variant for its chip, which need not be here. 1 to 6 s."""
    binary = compiled_kernel(variant, ARCHS[variant.arch])
    return _nvidia_resources(binary, attends=variant.kernel in ("decode", "prefill"))


def compiled_kernel(variant: Variant, arch: ArchConfig) -> Any:
    """What Triton makes of the variant's launch; from its cache, where that has it."""
    only = _Only(variant.kernel)
    shared = steps.SHORT if variant.shared else None
    launcher = steps.launcher_for(variant.spec, arch, only, tma=variant.tma, shared_tokens=shared)
    with pretended(arch.target, arch.shared_bytes):
        steps.run(variant.step, launcher, variant.spec)
    assert only.found is not None, f"{variant.name}: its step launches no such kernel"
    return only.found


class _Only:
    """Wraps kernels so that the first launch of the one named is compiled; no launch runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.found: Any = None

    def __call__(self, function: Callable[..., None]) -> _Only:
        self._kernel = compiled(function) if function.__name__ == self._name and self.found is None else None
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *args: Any, **constants: Any) -> None:
        if self._kernel is not None:
            self.found = self._kernel.run(*args, grid=None, warmup=True, **constants)


def _nvidia_resources(binary: Any, *, attends: bool) -> Resources:
    """A kernel that does not attend is disassembled only where it uses local memory: without, nothing can spill."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
        numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        wanted = attends or numbers["STACK"] + numbers["LOCAL"] > 0
        # Its analysis of data flow would cost more than all the rest.
        sass = _tool("nvdisasm", "-c", "-ndf", str(cubin)) if wanted else ""
    found = [name for name in ("HGMMA", "HMMA", "FFMA") if re.search(rf"\b{name}\b", sass)]
    return Resources(
        registers=numbers["REG"],
        spills=len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        stack_bytes=numbers["STACK"] + numbers["LOCAL"],
        shared_bytes=binary.metadata.shared,
        matrix_instructions=found[0] if found else "",
        async_loads=len(re.findall(r"\b(?:LDGSTS|UTMALDG)\b", sass)),
    )


def _tool(name: str, *arguments: str) -> str:
    """Run a tool of the CUDA toolkit that the triton wheel carries."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(path), *arguments], check=True, capture_output=True, text=True).stdout


def as_dict(resources: Resources) -> dict[str, int | str]:
    """The fields by name."""
    return dataclasses.asdict(resources)
