"""One sequence computed again as it was served, attention by the backend over a pool beside the exact one."""

# Shapes: T tokens of a call  H query heads  K kv heads  D head dim  V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from framework.engine.kv_scales import SCALED
from framework.engine.pool import KVPool
from framework.engine.sparse import sparse_attention
from framework.interfaces.backend import AttentionBackend, Batch, LayerKV
from framework.model.decoder import Decoder
from framework.model.dense import DenseCache

Gaps: TypeAlias = list[tuple[float, float]]
"""For each call and layer, in order: largest difference of an attention output from the exact one, and largest |V|."""


@torch.inference_mode()
def served_pass(
    decoder: Decoder,
    backends: Sequence[AttentionBackend],
    pool: KVPool,
    tokens: Sequence[int],
    num_prompt: int,
) -> tuple[Tensor, Gaps]:
    """The logits that chose each token after the prompt, and what attention lost on the way.

    The first `num_prompt` tokens are one call, each further token but the last another, as they were served. Of a model
    over several ranks all must make the pass at once; each returns the gaps of its own heads, rank 0 the logits.

    Args:
        backends: one a layer, set up.
        pool: of the run; a pool of its kind with one sequence's blocks is allocated beside it.

    Returns:
        (len(tokens) - num_prompt, V) logits on rank 0, in the model's dtype; and the gaps.
    """
    ids = torch.tensor(tokens, dtype=torch.int64, device=decoder.device)
    served = _Pass(decoder, backends, pool, len(ids))
    rows = [served.logits(ids[:num_prompt])[-1:]]
    rows += [served.logits(ids[position : position + 1]) for position in range(num_prompt, len(ids) - 1)]
    return torch.cat(rows), served.gaps


class _Pass:
    """One sequence, call by call, over a pool of its own.

    Attributes:
        gaps: so far.
    """

    def __init__(self, decoder: Decoder, backends: Sequence[AttentionBackend], pool: KVPool, num_tokens: int) -> None:
        self._decoder = decoder
        self._backends, self._planners = backends, list({id(backend): backend for backend in backends}.values())
        self._layers, self._tables = list[LayerKV](), dict[int, Tensor]()  # tables by tokens a block
        for backend, served in zip(backends, pool.layers, strict=True):
            size = backend.spec.block_size
            num_blocks = -(-num_tokens // size)
            self._tables[size] = torch.arange(1, num_blocks + 1, dtype=torch.int32, device=pool.device)[None]
            [layer] = KVPool(backend.spec, 1, num_blocks, pool.device).layers
            self._layers.append(layer)
            layer.sinks, layer.alibi_slopes = served.sinks, served.alibi_slopes
            if pool.dtype == SCALED:
                layer.k_scale, layer.v_scale = served.k_scale, served.v_scale
        self._length, self._exact = 0, DenseCache(decoder)
        self._sparse = sparse_attention(decoder, backends, backends[0].spec)
        self.gaps: Gaps = []
        self._batches: dict[int, Batch] = {}  # by tokens a block

    def logits(self, tokens: Tensor) -> Tensor:
        """(T, V) after each of the next `tokens` (T,)."""
        start, count, device = self._length, len(tokens), tokens.device
        self._length = end = start + count
        positions = torch.arange(start, end, device=device)
        self._batches = {size: Batch.of(table, positions + size, (end,), (count,))  # blocks from 1 on
                         for size, table in self._tables.items()}  # fmt: skip
        for backend in self._planners:
            backend.plan(self._batches[backend.spec.block_size])
        return self._decoder.logits(self._decoder(tokens, positions, self._attend))

    def _attend(self, layer: int, q: Tensor, *inputs: Any) -> Tensor:
        attention_layers = self._decoder.config.attention_layers
        if layer not in attention_layers:
            return self._exact.attend(layer, q, *inputs)
        k, v, *index = inputs
        place, out = attention_layers.index(layer), q.new_empty(*q.shape[:2], v.shape[-1])
        kv, backend = self._layers[place], self._backends[place]
        batch = self._batches[kv.block_size]
        backend.write(kv, k, v, batch.slot_mapping)
        if not index:
            backend.attend(q, kv, batch, out)
        else:
            assert self._sparse is not None
            self._sparse.attend(q, kv, index[0], batch, out)
        exact = self._exact.attend(layer, q.double(), k.double(), v.double(), *index)
        largest = self._exact.kv[layer][1].abs().max()
        self.gaps.append((float((out.double() - exact).abs().max()), float(largest)))
        return out
