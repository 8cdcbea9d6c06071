"""Resources that the kernels of one spec take on a chip that is not present."""

from __future__ import annotations

from framework.errors import Unsupported
from framework.interfaces.backend import AttentionSpec, CompiledKernel
from framework_builtin.backend.triton_kernels.aot import Resources, as_dict
from framework_builtin.backend.triton_kernels.configs import ARCHS
from framework_builtin.backend.triton_kernels.plan import tma_config
from framework_builtin.backend.triton_kernels.screen import compile_all, read_table
from framework_builtin.backend.triton_kernels.variants import Variant


def screened(spec: AttentionSpec, arch: str, *, tma: bool = False) -> list[CompiledKernel]:
    """Decode and prefill, from the committed table where this very version of triton made it; else compiled now.

    Args:
        tma: prefill by tensor descriptors where the pages hold their tiles.

    Raises:
        Unsupported: a kernel does not compile, with the compiler's last line.
    """
    import triton

    tma = tma and tma_config(spec, ARCHS[arch]) is not None
    variants = [Variant(arch, "decode", spec), Variant(arch, "prefill", spec, split=False, tma=tma)]
    _, known = read_table(triton.__version__)
    missing = [variant for variant in variants if variant.name not in known]
    compiled: dict[str, Resources | str] = {}
    if missing:
        compiled = {variant.name: found for (variant, _), found in compile_all([(v, None) for v in missing])}
    kernels = []
    for variant in variants:
        found: Resources | str = known[variant.name] if variant.name in known else compiled[variant.name]
        if isinstance(found, str):
            raise Unsupported(f"{variant.name} does not compile: {found}")
        source = "the committed table" if variant.name in known else "compiled now"
        facts = as_dict(found)
        kernels.append(
            CompiledKernel(name=variant.name, arch=arch, source=f"{source}, triton {triton.__version__}", **facts)  # type: ignore[arg-type]
        )
    return kernels
