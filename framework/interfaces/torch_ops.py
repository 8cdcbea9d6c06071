"""Plain torch defaults of AttentionBackend: write, copy, and select; correct on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from framework.errors import InvalidArgument
from framework.interfaces.attention import Batch, LayerKV, Rope


def write(pool: LayerKV, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """Store k, v (T, K, D) at slots (T,) int64, skipping negative ones. Waits for no device: graphs can capture it."""
    size, padding = pool.block_size, None
    sources = [(pool.k, k, pool.k_scale)] if pool.is_latent else [(pool.k, k, pool.k_scale), (pool.v, v, pool.v_scale)]
    if slot_mapping.device.type != "cpu":
        padding = slot_mapping < 0
        slot_mapping = slot_mapping.clamp(min=0)
    elif bool((slot_mapping < 0).any()):
        keep = slot_mapping >= 0
        slot_mapping = slot_mapping[keep]
        sources = [(stored, values[keep], scale) for stored, values, scale in sources]
    block, offset = slot_mapping // size, slot_mapping % size
    for stored, values, scale in sources:
        if scale is not None and scale.dim() == 3:
            values, token_scales = per_token_int8(values)
            _place(scale, token_scales, block, offset, pool.layout, padding)
        elif scale is not None:
            values = saturated(values.float() / scale[None, :, None], stored.dtype)
        _place(_raw(stored), _raw(values.to(stored.dtype)), block, offset, pool.layout, padding)


def _place(stored: Tensor, values: Tensor, block: Tensor, offset: Tensor, layout: str, padding: Tensor | None) -> None:
    """Write values (T, K, ...) into a pool of that layout."""
    if padding is not None:
        # Padding goes to the null block's first slot and carries what is there: nothing changes, whatever is first.
        there = stored[0, 0] if layout == "NHD" else stored[0, :, 0]
        values = torch.where(padding.view(-1, *[1] * (values.dim() - 1)), there, values)
    if layout == "NHD":
        stored[block, offset] = values
    else:
        stored[block, :, offset] = values


def saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` within the finite range of `dtype`, as vLLM stores fp8: beyond it a cast makes NaN. NaN stays NaN."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest)


def per_token_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    """values (..., D) as int8, and their scales (...) float32: the largest magnitude of each becomes 127.

    Values that are not finite make their scale so, and with it what is read.
    """
    wide = values.float()
    scale = wide.abs().amax(-1) / 127
    stored = (wide / scale.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)).round_()
    return stored.nan_to_num_(0.0).clamp_(-127, 127).to(torch.int8), scale


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """x (T, N, D) rotated, a new tensor of its dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (a if rope.positions is None else a[rope.positions] for a in (rope.cos, rope.sin))
    cos, sin = cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
    shape = (*x.shape[:2], x.shape[2] // 2, 2) if rope.interleaved else (*x.shape[:2], 2, x.shape[2] // 2)
    axis = -1 if rope.interleaved else -2
    a, b = x.to(wide).reshape(shape).unbind(axis)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), axis).reshape(x.shape).to(x.dtype)


def gather(pool: LayerKV, block_table: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """K (C, K, D) and V (C, K, V) of a row's first `context` tokens, in the pool's dtype; one copy."""
    blocks = block_table[: -(-context // pool.block_size)].long()
    pair = []
    for stored in (pool.k,) if pool.is_latent else (pool.k, pool.v):
        tokens = stored[blocks] if pool.layout == "NHD" else stored[blocks].transpose(1, 2)
        pair.append(tokens.flatten(0, 1)[:context])
    return pair[0], pair[0][..., : pool.v.shape[-1]] if pool.is_latent else pair[1]


def write_index(pool: LayerKV, keys: Tensor, slot_mapping: Tensor) -> None:
    """Store keys (T, `index_dim`) of an indexer at slots (T,) int64, skipping negative ones."""
    assert pool.index is not None
    index = LayerKV.of_rows(pool.index[:, :, None], pool.index.shape[-1])
    write(index, keys[:, None], keys[:, None], slot_mapping)


def select(q: Tensor, weights: Tensor, pool: LayerKV, batch: Batch, count: int) -> Tensor:
    """See `AttentionBackend.select`: row by row, the scores in float32 at least."""
    assert pool.index is not None
    starts, contexts = batch.host_query_starts.tolist(), batch.host_context_lens.tolist()
    slots = torch.zeros(len(q), min(count, batch.max_context_len), dtype=torch.int32, device=q.device)
    wide, size = torch.promote_types(q.dtype, torch.float32), pool.block_size
    for row, context in enumerate(contexts):
        first, last = starts[row], starts[row + 1]
        if context == 0:
            continue
        table = batch.block_tables[row, : -(-context // size)].long()
        keys = pool.index[table].flatten(0, 1)[:context].to(wide)
        scores = torch.relu(q[first:last].to(wide) @ keys.T)
        scores = torch.einsum("th,thc->tc", weights[first:last].to(wide), scores)
        key, query = (
            torch.arange(context, device=q.device),
            torch.arange(context - last + first, context, device=q.device),
        )
        scores.masked_fill_(key > query[:, None], -torch.inf)
        chosen = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        slots_of = table[chosen // size] * size + chosen % size
        seen = torch.arange(slots_of.shape[1], device=q.device) <= query[:, None]
        slots[first:last, : slots_of.shape[1]] = torch.where(seen, slots_of, 0).int()
    return slots


def copy_blocks(pool: LayerKV, copies: Tensor) -> None:
    """Copy blocks (source, destination) in order, so that a chain a->b, b->c moves a's content to c.

    `copies` (n, 2) int64 may lie on the host: looking at several for chains and twins then waits for no device.
    """
    if copies.numel() == 0:
        return
    source, destination = copies[:, 0], copies[:, 1]
    if len(copies) > 1 and len(torch.unique(destination)) != len(destination):
        raise InvalidArgument("copy_blocks: a destination block is named twice")
    if len(copies) > 1 and bool(torch.isin(source, destination).any()):
        for pair in copies.tolist():
            for stored in map(_raw, pool.tensors.values()):
                stored[pair[1]].copy_(stored[pair[0]])
        return
    source, destination = copies.to(pool.k.device, non_blocking=True).unbind(1)
    for stored in map(_raw, pool.tensors.values()):
        stored[destination] = stored[source]


def _raw(tensor: Tensor) -> Tensor:
    """One-byte floats as bytes: indexing knows no fp8."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
