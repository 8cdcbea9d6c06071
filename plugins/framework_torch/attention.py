"""Paged attention in plain PyTorch: gather a cache-sized tile of KV, attend, forget it; big decodes are compiled."""

# Shapes: T query tokens (packed)  R rows of a tile  Tq queries a row  C keys a row  S tokens a block  M blocks a row
#         H query heads  K kv heads  G = H / K  D head dim  V value dim

from __future__ import annotations

import math
import sys
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionSpec, Batch, LayerKV
from framework_torch import compiled
from framework_torch.tiles import Tile, Tiler

_COMPILE_BYTES = 2**24
"""KV bytes of one layer's decode from which compiling is worth its seconds."""


class TorchAttention:
    """What `TorchBackend` does for one layer's shapes on one device; its arguments are those of the backend."""

    def __init__(
        self,
        spec: AttentionSpec,
        device: str,
        *,
        compile: bool | Literal["auto"],
        tile_bytes: int,
        prefill_bytes: int,
    ) -> None:
        self.spec, self._compile, self._tile_bytes = spec, compile, tile_bytes
        dtype: torch.dtype = getattr(torch, spec.kv_dtype or spec.dtype)
        self._token_bytes: int = sum(spec.planes.values()) * dtype.itemsize
        self._plain = (
            spec.soft_cap is None and not spec.sinks and not spec.alibi and spec.kv_dtype in (None, spec.dtype)
        )
        self._tiler = Tiler(
            spec,
            token_bytes=self._token_bytes,
            tile_bytes=tile_bytes,
            prefill_bytes=prefill_bytes,
            plain=self._plain,
        )
        self._buffers = (torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype))
        self._planned: Batch | None = None
        self._decode: compiled.CompiledDecode | None = None
        self._ran: set[str] = set()
        self._not_compiled = ["compile=false"] if compile is False else compiled.reasons_against(device)
        if spec.kv_dtype not in (None, spec.dtype):
            self._not_compiled.append(f"a {spec.kv_dtype} pool is read by the eager path alone")
        if spec.latent_dim is not None:
            self._not_compiled.append("a latent cache is read by the eager path alone")
        if compile is True and not self._not_compiled:
            self._decode = compiled.CompiledDecode(spec)

    def facts(self) -> dict[str, str | int | float]:
        """See `TorchBackend.facts`."""
        facts: dict[str, str | int | float] = {"decode": " and ".join(sorted(self._ran, reverse=True)) or "none"}
        if self._decode is not None:
            facts["compile_s"] = round(self._decode.compile_s, 2)
        return facts | ({"not_compiled": "; ".join(self._not_compiled)} if self._not_compiled else {})

    def plan(self, batch: Batch) -> None:
        """Cut the batch into tiles, and into chunks for the compiled decode; may compile, once."""
        contexts = batch.host_context_lens.astype(np.int64)
        starts = batch.host_query_starts.astype(np.int64)
        if len(contexts) != len(batch.context_lens):
            contexts, starts = batch.context_lens.cpu().numpy(), batch.query_starts.cpu().numpy()
        self._check_widths(batch, contexts)
        counts = np.diff(starts)
        live = np.nonzero(contexts)[0]
        decodes, prefills = live[counts[live] == 1], live[counts[live] > 1]
        self._chunks: list[compiled.Chunks] = []
        self._tiles: list[Tile] = []
        if len(decodes) and self._compiles(contexts[decodes]):
            self._chunks += compiled.cut(self.spec, batch, decodes, contexts, starts)
        else:
            self._tiles += self._tiler.decode_tiles(batch, decodes, contexts, starts)
        if len(decodes):
            self._ran.add("compiled" if self._chunks else "eager")
        for row in prefills.tolist():
            self._tiles += self._tiler.prefill_tiles(batch, row, int(contexts[row]), int(starts[row]), int(counts[row]))
        empty = np.repeat(contexts == 0, counts)
        self._empty = torch.from_numpy(np.nonzero(empty)[0]).to(batch.block_tables.device) if empty.any() else None
        self._planned = batch

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, lse: Tensor | None) -> None:
        """As `AttentionBackend.attend`, its arguments checked before."""
        if self._planned is not batch:
            self.plan(batch)
        if not (pool.k.is_contiguous() and (pool.is_latent or pool.v.is_contiguous())):
            raise Unsupported(f"the torch backend reads contiguous pools, found K of strides {pool.k.stride()}")
        with torch.no_grad():
            if self._decode is not None:
                for chunks in self._chunks:
                    self._decode(q, pool, chunks, out, lse)
            if self._empty is not None:
                out[self._empty] = 0
                if lse is not None:
                    lse[self._empty] = -math.inf
            for tile in self._tiles:
                if self._plain and lse is None and self._tiler.fits(tile):
                    out[tile.tokens] = self._sdpa(q[tile.tokens], pool, tile)
                    continue
                out[tile.tokens], sums = self._running(q[tile.tokens], pool, tile)
                if lse is not None:
                    lse[tile.tokens] = sums.to(lse.dtype)

    def _compiles(self, contexts: npt.NDArray[np.int64]) -> bool:
        """Whether decode rows of these contexts go to the compiled loops, which are compiled now if need be."""
        if self._not_compiled:
            return False
        spans = contexts - self.spec.first_seen(contexts - 1)
        if self._compile is not True and int(spans.sum()) * self._token_bytes < _COMPILE_BYTES:
            return False
        if self._decode is None:
            try:
                self._decode = compiled.CompiledDecode(self.spec)
            except Unsupported as error:
                self._not_compiled = [str(error)]
                sys.stderr.write(f"torch backend: decode stays eager: {error}\n")
        return self._decode is not None

    def _check_widths(self, batch: Batch, contexts: npt.NDArray[np.int64]) -> None:
        capacity = batch.block_tables.shape[1] * self.spec.block_size
        if len(contexts) and int(contexts.max()) > capacity:
            row = int(contexts.argmax())
            raise InvalidArgument(
                f"row {row} has {int(contexts[row])} tokens of context, its block table holds {capacity}: widen it"
            )

    def _gather(self, pool: LayerKV, where: Tensor) -> tuple[Tensor, Tensor]:
        """K (R, K, C, D) and V (R, K, C, V) at `where`: views of the reused buffers, overwritten by the next call."""
        heads, dim = self.spec.num_kv_heads, self.spec.head_dim
        nhd, width = pool.layout == "NHD", dim * (heads if pool.layout == "NHD" else 1)
        need = where.numel() * width
        if self._buffers[0].numel() < need or self._buffers[0].device != where.device:
            self._buffers = (
                torch.empty(need, dtype=pool.k.dtype, device=where.device),
                torch.empty(need, dtype=pool.k.dtype, device=where.device),
            )
        pair = []
        for stored, buffer in zip((pool.k,) if pool.is_latent else (pool.k, pool.v), self._buffers, strict=False):
            target = buffer[:need].view(-1, width)
            if stored.dtype.itemsize == 1:  # index_select knows no fp8; int8 goes the same way
                stored, target = stored.view(torch.uint8), target.view(torch.uint8)
            torch.index_select(stored.view(-1, width), 0, where.reshape(-1), out=target)
            tokens = buffer[:need].view(*where.shape, *((heads, dim) if nhd else (dim,)))
            pair.append(tokens.transpose(1, 2) if nhd else tokens)
        return pair[0], pair[-1][..., : self.spec.value_dim]

    def _scale(self, scale: Tensor | None, where: Tensor) -> Tensor | None:
        """What the tokens at `where` are multiplied by, to be broadcast over (R, K, C, D); None: nothing."""
        if scale is None or scale.dim() == 1:
            return None if scale is None else scale[None, :, None, None]
        if self.spec.layout == "NHD":
            return scale.flatten(0, 1)[where].transpose(1, 2).unsqueeze(-1)
        return scale.flatten()[where].unsqueeze(-1)

    def _sdpa(self, q: Tensor, pool: LayerKV, tile: Tile) -> Tensor:
        """(R * Tq, H, V). Query heads of a group become queries (decode) or heads of stride 0 (prefill)."""
        rows, count = tile.queries.shape
        heads, dim, value_dim = self.spec.num_kv_heads, self.spec.head_dim, self.spec.value_dim
        group = self.spec.num_heads // heads
        k, v = self._gather(pool, tile.where)
        scale = self.spec.softmax_scale
        if count == 1:
            q = q.reshape(rows, heads, group, dim)
            attended = scaled_dot_product_attention(q, k, v, attn_mask=tile.mask, scale=scale)
            return attended.reshape(rows, heads * group, value_dim)
        k, v = (tensor[0, :, None].expand(heads, group, -1, -1) for tensor in (k, v))
        q = q.view(count, heads, group, dim).permute(1, 2, 0, 3)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=tile.mask, is_causal=tile.causal, scale=scale)
        return attended.permute(2, 0, 1, 3).reshape(count, heads * group, value_dim)

    def _running(self, q: Tensor, pool: LayerKV, tile: Tile) -> tuple[Tensor, Tensor]:
        """(R * Tq, H, V) in q's dtype and the log-sum-exp (R * Tq, H), over chunks of keys with a running maximum."""
        (rows, count), dtype = tile.queries.shape, q.dtype
        spec, heads, dim = self.spec, self.spec.num_kv_heads, self.spec.head_dim
        group, wide = spec.num_heads // heads, torch.promote_types(q.dtype, torch.float32)
        q = q.reshape(rows, count, heads, group, dim).permute(0, 2, 3, 1, 4).reshape(rows, heads, group * count, dim)
        q = q.to(wide) * spec.softmax_scale
        top, total, summed = self._start(pool.sinks, rows, count, q)
        chunk = self._chunk(rows, count)
        for low in range(0, tile.keys.shape[1], chunk):
            k, v = self._gather(pool, tile.where[..., low : low + chunk])
            where = tile.where[..., low : low + chunk]
            k = _widened(k, self._scale(pool.k_scale, where), wide)
            v = _widened(v, self._scale(pool.v_scale, where), wide)
            scores = self._scores(q, k, pool, tile, low)
            peak = torch.maximum(top, scores.amax(-1, keepdim=True))
            keep = torch.exp(top - peak).nan_to_num_(0.0)  # -inf - -inf: nothing seen so far
            weights = scores.sub_(peak.clamp_min(-torch.finfo(wide).max)).exp_()
            total = total * keep + weights.sum(-1, keepdim=True)
            summed = summed * keep + weights @ v
            top = peak
        shape = (rows, heads, group, count)
        out = (summed / total).view(*shape, spec.value_dim).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
        sums = (top + total.log()).view(shape).permute(0, 3, 1, 2)
        return out.to(dtype), sums.reshape(len(out), -1)

    def _start(self, sinks: Tensor | None, rows: int, count: int, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Running maximum and total, (R, K, G * Tq, 1), and weighted sum; a sink is a key seen already, worth 0."""
        shape = (*q.shape[:3], 1)
        summed = q.new_zeros(*q.shape[:3], self.spec.value_dim)
        if sinks is None or not self.spec.sinks:
            return torch.full(shape, -math.inf, dtype=q.dtype, device=q.device), torch.zeros(shape).to(q), summed
        sinks = sinks.to(q).view(1, self.spec.num_kv_heads, -1, 1).expand(rows, -1, -1, count)
        return sinks.reshape(shape), torch.ones(shape).to(q), summed

    def _chunk(self, rows: int, count: int) -> int:
        """Keys at a time, so that neither their KV nor the scores (fp32) pass the tile's bytes by much."""
        scores = rows * count * self.spec.num_heads * 4
        return max(16, self._tile_bytes // max(rows * self._token_bytes, scores))

    def _scores(self, q: Tensor, k: Tensor, pool: LayerKV, tile: Tile, low: int) -> Tensor:
        """(R, K, G * Tq, C), -inf where not seen; soft-capped, then biased, then masked."""
        spec, (rows, count) = self.spec, tile.queries.shape
        scores = (q[0] @ k[0].transpose(1, 2))[None] if rows == 1 else q @ k.transpose(2, 3)
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        split = scores.view(rows, spec.num_kv_heads, -1, count, scores.shape[-1])
        key = tile.keys[:, None, None, None, low : low + scores.shape[-1]]
        query = tile.queries[:, None, None, :, None]
        if spec.alibi and pool.alibi_slopes is not None:
            slopes = pool.alibi_slopes.to(q).view(1, spec.num_kv_heads, -1, 1, 1)
            split = split + slopes * (key - query)
        if tile.mask is None and not tile.causal:
            return split.view(scores.shape)
        unseen = key > query
        if spec.sliding_window is not None:
            unseen |= key <= query - spec.sliding_window
        if spec.attention_chunk is not None:
            unseen |= key < query // spec.attention_chunk * spec.attention_chunk
        return split.masked_fill(unseen, -math.inf).view(scores.shape)


def _widened(tokens: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(R, K, C, D) in `dtype`, times the scales of fp8 and int8 pools."""
    tokens = tokens.to(dtype)
    return tokens if scale is None else tokens * scale.to(dtype)
