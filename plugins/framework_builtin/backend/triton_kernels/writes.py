"""Starts the kernels that write to the pool: new tokens, rotated or not, and copies of whole blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from framework.errors import InvalidArgument
from framework_builtin.backend.triton_kernels import plan as plans
from framework_builtin.backend.triton_kernels.kernels import compiled, interpreted

if TYPE_CHECKING:
    from torch import Tensor

    from framework.interfaces.backend import AttentionSpec, LayerKV, Rope
    from framework_builtin.backend.triton_kernels.configs import ArchConfig


class PoolWriter:
    """The kernels that write to the pool, for one spec on one device.

    Args:
        arch: the configuration's row; None: the interpreter's own shapes (CPU only).
        wrap: what makes a kernel of a function; None: Triton's interpreter on a CPU, else its compiler.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        device: str,
        *,
        arch: ArchConfig | None,
        wrap: Callable[[Callable[..., None]], Any] | None = None,
    ) -> None:
        self._spec = spec
        self._device = device
        self._interpreted = wrap is None and device.split(":")[0] == "cpu"
        self._arch = arch
        self._wrap = wrap or (interpreted if self._interpreted else compiled)
        self._on_device = _current(device)
        self._constants = plans.feature_constants(spec, arch)
        self._upcast = self._interpreted and spec.dtype == "bfloat16"

    def write(self, pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store k, v (T, K, D) at `slots` (T,) int64; negative ones are skipped."""
        if len(slots):
            self._store(pool, k, v, slots, None)

    def rotate_and_write(self, pool: LayerKV, q: Tensor, k: Tensor, v: Tensor, rope: Rope, slots: Tensor) -> Tensor:
        """`write` with k rotated; returns q (T, H, D) rotated, contiguous. One launch."""
        import torch

        spec, num_tokens = self._spec, len(slots)
        require("q", q, (num_tokens, spec.num_heads, spec.head_dim))
        if rope.positions is not None:
            require("positions", rope.positions, (num_tokens,))
        num_angles = num_tokens if rope.positions is None else len(rope.cos)
        for name, x in (("cos", rope.cos), ("sin", rope.sin)):
            require(name, x, (num_angles, spec.head_dim // 2))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if len(slots):
            self._store(pool, k, v, slots, (dense(q, 2), out, rope))
        return out

    def _store(
        self, pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor, rotation: tuple[Tensor, Tensor, Rope] | None
    ) -> None:
        from framework_builtin.backend.triton_kernels.store import write_kv

        spec, num_tokens = self._spec, len(slots)
        for name, x in (("k", k), ("v", v)):
            require(name, x, (num_tokens, spec.num_kv_heads, spec.head_dim))
        shape = plans.store_shape(spec, num_tokens, rotates=rotation is not None, interpreted=self._arch is None)
        q = out = cos = sin = positions = None
        if rotation is not None:
            q, out, rope = rotation
            cos, sin = dense(rope.cos, 1), dense(rope.sin, 1)
            positions = None if rope.positions is None else rope.positions.contiguous()
        k, v = dense(k, 2), dense(v, 2)
        pool_k, pool_v = as_stored(pool.k), as_stored(pool.v)
        self._start(
            write_kv,
            (-(-num_tokens // shape.tokens), shape.parts),
            q,
            k,
            v,
            out,
            pool_k,
            pool_v,
            cos,
            sin,
            positions,
            slots.contiguous(),
            *self._scales(pool),
            num_tokens,
            *token_strides(q),
            *token_strides(k),
            *token_strides(v),
            *token_strides(out),
            0 if cos is None else cos.stride(0),
            0 if sin is None else sin.stride(0),
            *strides(pool_k, pool.layout),
            *strides(pool_v, pool.layout),
            *self._scale_strides(pool),
            NUM_HEADS=spec.num_heads,
            NUM_KV_HEADS=spec.num_kv_heads,
            HEAD_DIM=spec.head_dim,
            PAGE=pool.block_size,
            PAIRS=shape.pairs,
            HEADS=shape.heads,
            TOKENS=shape.tokens,
            INTERLEAVED=rotation is not None and rotation[2].interleaved,
            QUANTISE=plans.quantised(self._constants["STORED"]),
            UPCAST=self._upcast,
        )

    def copy_blocks(self, pool: LayerKV, copies: Tensor, *, ordered: bool) -> None:
        """Copy whole blocks (source, destination), with int8's scales; in order, unless no destination is a source."""
        pairs = [(as_stored(pool.k), as_stored(pool.v))]
        if self._constants["STORED"] == plans.INT8:
            pairs.append(self._token_scales(pool))
        for stored in itertools.chain(*pairs):
            if not stored[0].is_contiguous():
                raise InvalidArgument(f"a block must be contiguous to be copied, found strides {stored.stride()}")
        for k, v in pairs:
            self._copy(k, v, copies, ordered=ordered)

    def _copy(self, k: Tensor, v: Tensor, copies: Tensor, *, ordered: bool) -> None:
        from framework_builtin.backend.triton_kernels.store import copy_blocks

        elements = k[0].numel()
        slice_size = min(plans.next_power(elements), 1 << 20) if self._interpreted else 1024
        self._start(
            copy_blocks,
            (-(-elements // slice_size), 1 if ordered else len(copies)),
            k,
            v,
            copies.contiguous(),
            len(copies),
            k.stride(0),
            v.stride(0),
            NUM_ELEMENTS=elements,
            E=slice_size,
            ORDERED=ordered,
            **({} if self._interpreted else {"num_stages": 1}),
        )

    def _scales(self, pool: LayerKV) -> tuple[Tensor | None, Tensor | None]:
        """What K and V are multiplied by, of a head or of a token and head; None where nothing is."""
        if self._constants["STORED"] == plans.AS_QUERIES:
            return None, None
        if self._constants["STORED"] == plans.INT8:
            return self._token_scales(pool)
        return pool.k_scale, pool.v_scale

    def _scale_strides(self, pool: LayerKV) -> tuple[int, int, int]:
        """Of tokens' scales: elements from block to block, token to token, head to head; zeros where there are none."""
        if self._constants["STORED"] != plans.INT8:
            return 0, 0, 0
        return strides(self._token_scales(pool)[0], pool.layout)

    def _token_scales(self, pool: LayerKV) -> tuple[Tensor, Tensor]:
        k, v = pool.k_scale, pool.v_scale
        if k is None or v is None or k.shape != pool.k.shape[:3] or v.shape != pool.v.shape[:3]:
            found = [None if scale is None else tuple(scale.shape) for scale in (k, v)]
            raise InvalidArgument(
                f"an int8 pool needs a scale of each token and head, {tuple(pool.k.shape[:3])}, found {found}"
            )
        if k.stride() != v.stride():
            raise InvalidArgument(f"the scales of K and V must lie alike, found strides {k.stride()} and {v.stride()}")
        return k, v

    def _start(self, kernel: Callable[..., None], grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        """Launch on this launcher's device: Triton takes whichever is current.

        Compiled kernels may fuse multiplications and additions: said here, as Triton's default is to change in 3.10.
        """
        if not self._interpreted:
            constants["enable_fp_fusion"] = True
        with self._on_device:
            self._wrap(kernel)[grid](*args, **constants)


def _current(device: str) -> AbstractContextManager[Any]:
    """Makes a CUDA device with an index the current one; may be entered again and again."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index:
        return nullcontext()
    import torch

    return torch.cuda.device(int(index))


def as_stored(stored: Tensor) -> Tensor:
    """The pool as the kernels take it: e4m3 and int8 as bytes."""
    if stored.stride(-1) != 1:
        raise InvalidArgument(f"the head dim of a KV pool must be contiguous, found strides {stored.stride()}")
    if stored.element_size() == 1:
        import torch

        return stored.view(torch.uint8)
    return stored


def strides(stored: Tensor, layout: str) -> tuple[int, int, int]:
    """Elements from block to block, token to token, head to head, of K or V or of their scales."""
    block, second, third = stored.stride()[:3]
    return (block, second, third) if layout == "NHD" else (block, third, second)


def token_strides(x: Tensor | None) -> tuple[int, int]:
    """Elements from token to token, head to head."""
    return (0, 0) if x is None else (x.stride(0), x.stride(1))


def require(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """The kernels trust shapes: what is too small would be read or written beyond its end."""
    if tuple(x.shape) != shape:
        raise InvalidArgument(f"{name} is {tuple(x.shape)}, should be {shape}")


def dense(x: Tensor, axis: int) -> Tensor:
    """`x`, or a copy of it, whose elements lie side by side along its last axis."""
    return x if x.stride(axis) == 1 else x.contiguous()
