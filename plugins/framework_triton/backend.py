"""Paged attention by our own Triton kernels; without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from typing import TYPE_CHECKING, ClassVar

from framework.errors import InvalidArgument
from framework.interfaces.backend import (
    AttentionBackend,
    AttentionSpec,
    Batch,
    Capabilities,
    CompiledKernel,
    LayerKV,
    Rope,
)
from framework_triton.configs import ARCHS, ArchConfig, arch_of

if TYPE_CHECKING:
    from torch import Tensor

    from framework_triton.launch import Launcher, StepPlan


class TritonBackend(AttentionBackend):
    """Split-KV decode and ragged chunked prefill in Triton; interpreted on a machine without a GPU.

    Args:
        split_tokens: cut every row's context at multiples of this many tokens, so that a row's result does not depend
            on the other rows; None: by the work that is left, to fill the device.
        arch: a row of the configuration table ("sm_80", "sm_90"); None: the device's own, and on
            a CPU shapes that suit the interpreter.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
        kv_dtypes=frozenset({"float8_e4m3fn", "int8"}),
        devices=frozenset({"cpu", "cuda"}),
        head_dims=frozenset(range(8, 257, 2)),
        layouts=frozenset({"NHD", "HND"}),
        max_block_size=256,
        features=frozenset(
            {"sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi", "latent", "lse", "rope"}
        ),
        graph_safe=True,
        simulated_devices=frozenset({"cpu"}),
    )

    def __init__(self, split_tokens: int | None = None, arch: str | None = None) -> None:
        if split_tokens is not None and split_tokens < 1:
            raise InvalidArgument(f"split_tokens must be at least 1, found {split_tokens}")
        if arch is not None and arch not in ARCHS:
            raise InvalidArgument(f"no configuration for arch {arch!r}; the table has {', '.join(ARCHS)}")
        self._split_tokens = split_tokens
        self._arch = arch
        self._launcher: Launcher | None = None
        self._step: StepPlan | None = None

    def check(self, spec: AttentionSpec, device: str) -> list[str]:
        """Why not: also a missing triton, a GPU older than the table, and a latent cache without a tile."""
        reasons = self.capabilities.reasons_against(spec, device) + _latent_reasons(spec, device)
        if importlib.util.find_spec("triton") is None:
            reasons.append(
                "the package triton is not installed (Linux x86-64: pip install triton); or use +backend=torch"
            )
        elif device.split(":")[0] == "cuda" and not reasons:
            reasons += _cuda_reasons(device, self._arch)
        return reasons

    def screen(self, spec: AttentionSpec, arch: str) -> list[CompiledKernel] | None:
        """The decode and prefill kernels on a chip of the table, compiled here."""
        if arch not in ARCHS or self.capabilities.reasons_against(spec, "cuda") or _latent_reasons(spec, "cuda"):
            return None
        from framework_triton.aot import screened

        return screened(spec, arch)

    def setup(self, spec: AttentionSpec, device: str) -> None:
        """Choose the configuration; on a CPU say once on stderr that the interpreter runs."""
        super().setup(spec, device)
        from framework_triton.launch import Launcher

        if device.split(":")[0] == "cpu":
            _say_interpreted()
            _hasten_interpreter()
            arch, num_sms = (ARCHS[self._arch] if self._arch else None), 0
        else:
            arch, num_sms = _device_config(device, self._arch)
        self._step = None
        self._launcher = Launcher(
            spec,
            device,
            arch=arch,
            num_sms=num_sms,
            split_tokens=self._split_tokens,
        )

    def plan(self, batch: Batch) -> None:
        """Cut the decode rows into splits, on the device."""
        self._step = self._kernels().plan(batch)

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        """Write softmax(q k^T * scale) v, causally masked, into `out`; one launch for decode rows, one for chunks."""
        self.require(q, pool, batch, out, lse)
        if self._step is None or self._step.batch is not batch:
            self.plan(batch)
        assert self._step is not None
        self._kernels().attend(q, pool, self._step, out, lse)

    def write(self, pool: LayerKV, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Store k, v (T, K, D) at `slot_mapping` (T,) int64 in one launch; e4m3 and int8 pools are quantised so."""
        if pool.is_latent:
            super().write(pool, k, v, slot_mapping)
        else:
            self._kernels().write(pool, k, v, slot_mapping)

    def rotate_and_write(
        self, pool: LayerKV, q: Tensor, k: Tensor, v: Tensor, rope: Rope, slot_mapping: Tensor
    ) -> Tensor:
        """Rotate q and k, store k and v, one launch; returns q rotated (T, H, D), contiguous."""
        return self._kernels().rotate_and_write(pool, q, k, v, rope, slot_mapping)

    def copy_blocks(self, pool: LayerKV, copies: Tensor) -> None:
        """Copy blocks (source, destination) as if in order: one launch, and one for the scales of an int8 pool.

        Looking at them waits for the device if they lie there.

        Raises:
            InvalidArgument: a destination is named twice. Nothing was copied.
        """
        if len(copies) == 0:
            return
        if pool.is_latent:
            super().copy_blocks(pool, copies)
            return
        sources, destinations = copies.t().tolist()
        if len(set(destinations)) != len(destinations):
            raise InvalidArgument("copy_blocks: a destination block is named twice")
        ordered = not set(sources).isdisjoint(destinations)
        self._kernels().copy_blocks(pool, copies.to(pool.k.device, non_blocking=True), ordered=ordered)

    def _kernels(self) -> Launcher:
        if self._launcher is None:
            raise InvalidArgument("the triton backend was not set up; call setup(spec, device) first")
        return self._launcher


def _latent_reasons(spec: AttentionSpec, device: str) -> list[str]:
    if spec.latent_dim is None:
        return []
    reasons = []
    if spec.latent_dim > 512 or spec.head_dim - spec.latent_dim > 128:
        reasons.append(f"a row of {spec.latent_dim} + {spec.head_dim - spec.latent_dim} elements is above 512 + 128")
    if device.split(":")[0] == "cuda" and (spec.dtype == "float32" or spec.kv_dtype not in (None, spec.dtype)):
        reasons.append("a latent cache on a GPU is read in half precision alone")
    return reasons


@functools.cache
def _say_interpreted() -> None:
    """One sentence, once a process: the interpreter's speed says nothing about the kernels'."""
    sys.stderr.write("triton: no GPU in use, the kernels run in Triton's interpreter (correct, and slow)\n")


def _hasten_interpreter() -> None:
    """Without its check for overflows: it repeats each sum and product of integers, and tells only a debugger."""
    from triton.runtime.interpreter import interpreter_builder

    options = interpreter_builder.options
    if options.sanitize_overflow and not options.debug:
        interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _device_config(device: str, arch: str | None) -> tuple[ArchConfig, int]:
    """The table's row for a device, and its multiprocessors."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    config = ARCHS[arch or arch_of(properties.major, properties.minor)]
    return config, properties.multi_processor_count


def _cuda_reasons(device: str, arch: str | None) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [f"device {device}: torch finds no CUDA device; use device=cpu, where Triton's interpreter runs"]
    if torch.version.hip is not None:
        return [f"device {device} is AMD's, for which there is no configuration"]
    if arch is None and torch.cuda.get_device_capability(device) < (8, 0):
        return [f"device {device} is older than compute capability 8.0"]
    return []
