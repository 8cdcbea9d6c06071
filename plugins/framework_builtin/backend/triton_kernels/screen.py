"""What kernels take on chips that are not present: registers, spills, and whether that is fit to ship."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from framework.errors import Unsupported
from framework.interfaces.backend import AttentionSpec, CompiledKernel
from framework_builtin.backend.triton_kernels.aot import Resources, as_dict, compile_variant
from framework_builtin.backend.triton_kernels.configs import ARCHS, is_aligned, kind_of
from framework_builtin.backend.triton_kernels.plan import tma_config
from framework_builtin.backend.triton_kernels.variants import Variant


def compile_all(variants: Iterable[Variant], num_processes: int = 2) -> Iterator[tuple[Variant, Resources | str]]:
    """Each variant with what it takes, or with the compiler's last line where it fails; in the order given.

    One process: this one.
    """
    variants = list(variants)
    if num_processes == 1:
        yield from ((variant, _compile(variant)) for variant in variants)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from zip(variants, pool.map(_compile, variants), strict=True)


def _compile(variant: Variant) -> Resources | str:
    try:
        return compile_variant(variant)
    except Exception as error:  # a compiler may fail in any way
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"


def problems(variant: Variant, found: Resources | str) -> list[str]:
    """Why a configuration must not ship; empty when it may."""
    if isinstance(found, str):
        return [f"does not compile: {found}"]
    arch, spec = ARCHS[variant.arch], variant.spec
    reasons = []
    if found.spills:
        reasons.append(f"{found.spills} spills")
    if found.shared_bytes > arch.shared_bytes:
        reasons.append(f"{found.shared_bytes} bytes of shared memory, the chip has {arch.shared_bytes}")
    if variant.kernel == "prefill" and spec.dtype != "float32" and is_aligned(spec.head_dim):
        wanted = {"sm_80": "HMMA", "sm_90": "HGMMA"}[variant.arch]
        if found.matrix_instructions != wanted:
            reasons.append(f"uses {found.matrix_instructions or 'no matrix instruction'} instead of {wanted}")
    piped = is_aligned(spec.head_dim) and kind_of(spec.dtype, spec.kv_dtype) != "float_bytes"
    if piped and variant.kernel in ("decode", "prefill") and not found.async_loads:
        reasons.append("no asynchronous load")
    return reasons


def screened(spec: AttentionSpec, arch: str, *, tma: bool = False) -> list[CompiledKernel]:
    """Decode and prefill of a spec, compiled for a chip of the table.

    Args:
        tma: prefill by tensor descriptors where the pages hold their tiles.

    Raises:
        Unsupported: a kernel does not compile, with the compiler's last line.
    """
    import triton

    tma = tma and tma_config(spec, ARCHS[arch]) is not None
    source, kernels = f"compiled now, triton {triton.__version__}", []
    for variant, found in compile_all(
        [Variant(arch, "decode", spec), Variant(arch, "prefill", spec, split=False, tma=tma)]
    ):
        if isinstance(found, str):
            raise Unsupported(f"{variant.name} does not compile: {found}")
        kernels.append(CompiledKernel(name=variant.name, arch=arch, source=source, **as_dict(found)))  # type: ignore[arg-type]
    return kernels
