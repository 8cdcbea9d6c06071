"""Paged attention on the CPU, in C++, straight from the block tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, Capabilities, LayerKV
from framework_native._core import Attention

if TYPE_CHECKING:
    from torch import Tensor


_FORMATS = {"float32": 0, "bfloat16": 1, "float16": 2}
_POOL_FORMATS = {**_FORMATS, "float8_e4m3fn": 3, "int8": 4}
"""attention.hpp's Format."""


class NativeBackend(AttentionBackend):
    """Reads each block where it lies, once for all query heads of its kv head; sums in fp32.

    Decode rows are split every 512 tokens of context and merged in order; rows whose tables name the same blocks in
    such a piece, as behind a shared prefix, read it together. Rows of a prompt's chunk are cut into tiles of 96 query
    rows. All cuts follow the row's own lengths alone, and reading together changes no operation on a row's
    numbers: its output does not depend on its batch or on the number of threads. Pools of other dtypes than the
    queries' are widened as they are read: fp8 with a scale a head, int8 with one a token and head, which multiply
    scores and weights. A row of a latent cache is K and, in its first part, V, for all query heads. The inner loops
    exist for AVX-512, AVX2 and plain vectors; the best that the processor has is taken.
    Several threads may call `attend` of one backend: one computes at a time.

    Args:
        threads: the caller's included; None for torch's number.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset(_FORMATS),
        kv_dtypes=frozenset(_POOL_FORMATS),
        devices=frozenset({"cpu"}),
        layouts=frozenset({"NHD", "HND"}),
        features=frozenset({"sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi", "latent", "lse"}),
        batch_invariant=True,
    )

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InvalidArgument(f"threads must be at least 1, found {threads}")
        self.threads = threads

    def __deepcopy__(self, memo: dict[int, object]) -> NativeBackend:
        """One with the same threads, not set up: it has threads and a workspace of its own."""
        return type(self)(self.threads)

    def setup(self, spec: AttentionSpec, device: str) -> None:
        super().setup(spec, device)
        self._core = Attention(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            value_dim=spec.value_dim,
            latent=spec.latent_dim is not None,
            block_size=spec.block_size,
            scale=spec.softmax_scale,
            soft_cap=spec.soft_cap or 0.0,
            window=spec.sliding_window or 0,
            span=spec.attention_chunk or 0,
            format=_FORMATS[spec.dtype],
            kv_format=_POOL_FORMATS[spec.kv_dtype or spec.dtype],
        )

    @property
    def instructions(self) -> str:
        """The instruction set in use: avx512, avx2 or plain. After `setup`."""
        return str(self._core.instructions)

    def facts(self) -> dict[str, str | int | float]:
        """The instruction set that was chosen."""
        return {"instructions": self.instructions}

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        import torch

        self.require(q, pool, batch, out, lse)
        self._require_pool(pool, q)
        q, target = _inner_contiguous(q), _inner_contiguous(out)
        tables, contexts, starts = (
            tensor.to(torch.int32).contiguous()
            for tensor in (batch.block_tables, batch.context_lens, batch.query_starts)
        )
        if int(starts[-1]) > len(q):
            raise InvalidArgument(f"the rows have {int(starts[-1])} queries, q has {len(q)}")
        sums = lse if lse is None or (lse.is_contiguous() and lse.dtype == torch.float32) else lse.float().contiguous()
        token, head = (1, 2) if pool.layout == "NHD" else (2, 1)
        sinks, slopes = _floats(pool.sinks), _floats(pool.alibi_slopes)
        k_scales, v_scales, scale_strides = _scales(pool, token, head)
        try:
            self._core.attend(
                q.data_ptr(), (0, q.stride(0), q.stride(1)),
                target.data_ptr(), (0, target.stride(0), target.stride(1)),
                pool.k.data_ptr(), pool.v.data_ptr(), (pool.k.stride(0), pool.k.stride(token), pool.k.stride(head)),
                _address(k_scales), _address(v_scales), scale_strides,
                pool.num_blocks, _address(sinks), _address(slopes), _address(sums),
                tables.data_ptr(), tables.shape[1], contexts.data_ptr(), starts.data_ptr(), len(contexts),
                self.threads or torch.get_num_threads(),
            )  # fmt: skip
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        if target is not out:
            out.copy_(target)
        if lse is not None and sums is not None and sums is not lse:
            lse.copy_(sums)

    def _require_pool(self, pool: LayerKV, q: Tensor) -> None:
        spec, heads = self.spec, 2 if pool.layout == "NHD" else 1
        stored = spec.kv_dtype or spec.dtype
        if {str(pool.k.dtype), str(pool.v.dtype)} != {f"torch.{stored}"} or pool.k.device.type != "cpu":
            raise Unsupported(f"the pool holds {pool.k.dtype} on {pool.k.device}, set up was {stored} on the CPU")
        scaled = {"float8_e4m3fn": (spec.num_kv_heads,), "int8": tuple(pool.k.shape[:3])}.get(stored)
        for scale in (pool.k_scale, pool.v_scale):
            if (None if scale is None else tuple(scale.shape)) != scaled:
                raise InvalidArgument(
                    f"the scales of a {stored} pool are {scaled}, found {scale if scale is None else scale.shape}"
                )
        if pool.is_latent != (spec.latent_dim is not None):
            raise InvalidArgument(f"the spec has latent_dim={spec.latent_dim}, and the pool is_latent={pool.is_latent}")
        values = (*pool.k.shape[:3], spec.value_dim)
        if pool.v.shape != values or pool.k.shape[heads] != spec.num_kv_heads or pool.k.shape[3] != spec.head_dim:
            raise InvalidArgument(
                f"k is {tuple(pool.k.shape)} and v {tuple(pool.v.shape)}; the spec has {spec.num_kv_heads} kv heads of "
                f"{spec.head_dim}, values of {spec.value_dim}"
            )
        if pool.k.stride() != pool.v.stride() or pool.k.stride(3) != 1:
            raise Unsupported(f"k and v need equal strides and contiguous heads, found {pool.k.stride()}")
        for given, name in ((pool.sinks, "sinks"), (pool.alibi_slopes, "alibi")):
            if (given is not None) != getattr(spec, name):
                raise InvalidArgument(f"the spec says {name}={getattr(spec, name)}, the layer disagrees")


def _inner_contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if its last dimension has gaps."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _floats(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float().contiguous()


def _scales(pool: LayerKV, token: int, head: int) -> tuple[Tensor | None, Tensor | None, tuple[int, int, int]]:
    """Scales of keys and values, and how far apart those of blocks, tokens and heads lie."""
    k, v = _floats(pool.k_scale), _floats(pool.v_scale)
    if k is None or k.dim() == 1:
        return k, v, (0, 0, 1)
    return k, v, (k.stride(0), k.stride(token), k.stride(head))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
