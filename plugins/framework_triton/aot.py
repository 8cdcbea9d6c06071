"""Registers, spills and shared memory of a kernel on a chip that is not here, by compiling ahead of time.

What is compiled is what a launch would have compiled: the launch is made, on a driver that has no device. Run it in a
process whose environment has no TRITON_INTERPRET: the language's own helpers are decorated at its import.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from framework.errors import Unsupported
from framework.interfaces.backend import AttentionSpec, CompiledKernel
from framework_triton.configs import ARCHS, ArchConfig
from framework_triton.kernels import compiled
from framework_triton.launch import Launcher
from framework_triton.variants import Variant, launch


def screened(spec: AttentionSpec, arch: str) -> list[CompiledKernel]:
    """Decode and prefill of a spec, compiled for a chip of the table.

    Raises:
        Unsupported: as `compile_variant`.
    """
    return [
        compile_variant(Variant(arch, "decode", spec)),
        compile_variant(Variant(arch, "prefill", spec, split=False)),
    ]


def compile_variant(variant: Variant) -> CompiledKernel:
    """Compile one variant for its chip, 1 to 6 s; from Triton's cache, where that has it.

    Raises:
        Unsupported: it does not compile, with the compiler's last line.
    """
    import triton
    from triton.runtime.driver import driver

    arch, kernels = ARCHS[variant.arch], _Compiler(variant.kernel)
    launcher = Launcher(variant.spec, "cpu", arch=arch, num_sms=132, split_tokens=None, wrap=kernels)
    before = driver._active
    driver.set_active(_Driver(arch))
    try:
        launch(variant, launcher)
    except Exception as error:  # a compiler may fail in any way
        reason = f"{type(error).__name__}: {[*str(error).splitlines(), ''][-1]}"
        raise Unsupported(f"{variant.name} does not compile: {reason}") from error
    finally:
        driver.set_active(before)
    assert kernels.found is not None, f"{variant.name}: its step launches no such kernel"
    source = f"compiled now, triton {triton.__version__}"
    return CompiledKernel(name=variant.name, arch=variant.arch, source=source, **_resources(kernels.found))


class _Driver:
    """What Triton asks of a driver before it compiles; nothing can be loaded or launched."""

    def __init__(self, arch: ArchConfig) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget(*arch.target)

    def get_current_target(self) -> Any:
        """What Triton compiles for."""
        return self._target

    def get_current_device(self) -> str:
        """Triton keeps kernels in memory by device: a name of its own for each chip."""
        return str(self._target)

    def get_current_stream(self, device: str) -> int:
        """The null stream."""
        return 0


class _Compiler:
    """Wraps kernels so that the first launch of the one named is compiled; no launch runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.found: Any = None

    def __call__(self, function: Callable[..., None]) -> _Compiler:
        self._function = function
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *args: Any, **constants: Any) -> None:
        if self._function.__name__ == self._name and self.found is None:
            self.found = compiled(self._function).run(*args, grid=None, warmup=True, **constants)


def _resources(binary: Any) -> dict[str, Any]:
    """The facts of a CompiledKernel, from what NVIDIA's tools say of the binary."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
        sass = _tool(
            "nvdisasm", "-c", "-ndf", str(cubin)
        )  # its analysis of data flow would cost more than all the rest
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "registers": numbers["REG"],
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "stack_bytes": numbers["STACK"] + numbers["LOCAL"],  # a few bytes without spills are the ABI's frame
        "shared_bytes": binary.metadata.shared,
        "matrix_instructions": next(
            (name for name in ("HGMMA", "HMMA", "FFMA") if re.search(rf"\b{name}\b", sass)), ""
        ),
        "async_loads": len(re.findall(r"\b(?:LDGSTS|UTMALDG)\b", sass)),
    }


def _tool(name: str, *arguments: str) -> str:
    """Run a tool of the CUDA toolkit that the triton wheel carries."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(path), *arguments], check=True, capture_output=True, text=True).stdout
