"""Attention to the tokens that an indexer selects, over the same pool and tables."""

# Shapes: T query tokens  H query heads  D elements of a row  V of its latent

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from framework.errors import Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, LayerKV
from framework.model.decoder import Decoder
from framework.model.layers import Index


class SparseAttention:
    """What is selected is a block table for blocks of one token, and each query then a row: any backend reads those.

    While no context is longer than what is selected, everything is, and the step's own batch is attended to.

    Args:
        backend: set up for the model's attention: selects, and attends while nothing is left out.
        reader: set up for blocks of one token: attends to what is selected.
        count: tokens that are selected.

    Attributes:
        bytes_read, bytes_dense: of the pool so far: the indexer's keys and the rows that were selected; and what
            attention to whole contexts would have read. A query counts for itself, as decode reads.
    """

    def __init__(self, backend: AttentionBackend, reader: AttentionBackend, count: int) -> None:
        self._backend, self._reader, self._count = backend, reader, count
        self.bytes_read = self.bytes_dense = 0
        self._batch: Batch | None = None
        self._seen: list[int] = []

    def attend(self, q: Tensor, kv: LayerKV, index: Index, batch: Batch, out: Tensor) -> None:
        """Write the new keys of the indexer, then attend q (T, H, D) into `out` (T, H, V)."""
        assert kv.index is not None
        self._backend.write_index(kv, index.keys, batch.slot_mapping)
        if self._batch is not batch:
            self._batch, self._seen = batch, _seen(batch)
        row, key = (stored[0].nbytes // kv.block_size for stored in (kv.k, kv.index))
        total = sum(self._seen)
        self.bytes_dense += total * row
        if batch.max_context_len <= self._count:
            self.bytes_read += total * row
            self._backend.attend(q, kv, batch, out)
            return
        chosen = [min(count, self._count) for count in self._seen]
        self.bytes_read += total * key + sum(chosen) * row
        slots = self._backend.select(index.queries, index.weights, kv, batch, self._count)
        sparse = Batch.of(slots, batch.slot_mapping, chosen, [1] * len(chosen))
        self._reader.plan(sparse)
        self._reader.attend(q, _tokens(kv), sparse, out)


def sparse_attention(
    decoder: Decoder, backends: Sequence[AttentionBackend], spec: AttentionSpec
) -> SparseAttention | None:
    """That of a decoder with an indexer; None of any other.

    Args:
        backends: one a layer, all the same, set up for `spec` on the decoder's device.

    Raises:
        Unsupported: the backend cannot be copied, or not attend over blocks of one token.
    """
    if not decoder.config.index_count:
        return None
    backend = backends[0]
    try:
        reader = copy.deepcopy(backend)
    except Exception as error:
        raise Unsupported(
            f"{type(backend).__name__} cannot be copied ({error}), and a copy reads what an indexer selects; give the "
            "backend by name"
        ) from error
    reader.setup(replace(spec, block_size=1, index_dim=None), str(decoder.device))
    return SparseAttention(backend, reader, decoder.config.index_count)


def _tokens(kv: LayerKV) -> LayerKV:
    """The same rows, as blocks of one token."""
    scale = kv.k_scale if kv.k_scale is None or kv.k_scale.dim() == 1 else kv.k_scale.view(-1, 1, 1)
    return LayerKV.of_rows(kv.k.view(-1, 1, 1, kv.k.shape[-1]), kv.v.shape[-1], kv.layout, scale)


def _seen(batch: Batch) -> list[int]:
    """Tokens that each query sees."""
    counts = np.diff(batch.host_query_starts)
    rows = zip(batch.host_context_lens.tolist(), counts.tolist(), strict=True)
    return [seen for context, count in rows for seen in range(context - count + 1, context + 1)]
