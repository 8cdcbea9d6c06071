"""The executor whose KV heads have block tables of their own, layer by layer."""

# Shapes: B rows  T new tokens  L layers  K kv heads  H query heads  G = H / K  D head dim  S tokens a block
#         M blocks of a row's table  n tokens of a row in the pool

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.executors.base import Step
from framework.engine.executors.model import ModelExecutor
from framework.engine.sizes import Sizes
from framework.interfaces.backend import Batch
from framework.interfaces.compression import PAST, LayerCache
from framework.types import BlockCopy, BlockId

IntArray = npt.NDArray[np.int64]


class HeadExecutor(ModelExecutor):
    """Each KV head of each layer is a row of its own to the backend, which serves one KV head and its G query heads.

    A block of the allocator is K blocks of the pool, one a head: head h of block b is block b * K + h. Of a row whose
    heads kept different numbers of tokens, each layer's full blocks, head by head, share the row's first blocks; the
    blocks behind them, which are written to, are as of any other row. So the allocator sees one table, in which blocks
    are shared, copied and given back as always.

    NOTE. Tokens are gathered and scattered by head in each layer, and tables are made on the host: what is counted is
    right, a time says nothing.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config, rows = self.decoder.config, self.tables.max_rows
        self._heads, self._backend_rotates = config.num_kv_heads, False
        self._full = np.zeros((rows, len(self.pool.layers), self._heads), dtype=np.int64)
        """Full blocks that each head of each layer has in each row's first ones."""
        for kv in self.pool.layers:  # heads share the blocks of a layer, and so the largest of their scales
            if kv.k_scale is not None and kv.v_scale is not None and kv.k_scale.dim() == 1:
                kv.k_scale, kv.v_scale = kv.k_scale.amax(0, keepdim=True), kv.v_scale.amax(0, keepdim=True)
        self._where: tuple[Tensor, Tensor] = torch.empty(0), torch.empty(0)  # token and head of each query

    @classmethod
    def pool_sizes(cls, sizes: Sizes) -> Sizes:
        heads = sizes.spec.num_kv_heads
        spec = replace(sizes.spec, num_heads=sizes.spec.num_heads // heads, num_kv_heads=1)
        return replace(sizes, spec=spec, num_blocks=(sizes.num_blocks + 1) * heads - 1)

    def clear_table(self, row: int) -> None:
        super().clear_table(row)
        self._full[row] = 0

    def reset(self) -> None:
        super().reset()
        self._full[:] = 0

    def fork_heads(self, parent: int, child: int) -> None:
        self._full[child] = self._full[parent]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        heads = range(self._heads)
        super().copy_blocks([
            BlockCopy(BlockId(one.source * self._heads + head), BlockId(one.destination * self._heads + head))
            for one in copies for head in heads
        ])  # fmt: skip

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self.pool.freed((ids[:, None] * self._heads + np.arange(self._heads)).ravel())

    def _blocks(
        self, table: npt.NDArray[np.int32], full: IntArray, shared: IntArray, num_blocks: IntArray
    ) -> npt.NDArray[np.int32]:
        """The pool's blocks of each head, (B, K, most of `num_blocks`); 0 behind those that it has.

        Args:
            table: (B, M), of the allocator. full: (B, K) of one layer. shared: (B,) leading blocks that hold them.
            num_blocks: (B, K) that each head has.
        """
        heads, at = self._heads, np.arange(int(num_blocks.max()))
        first, full = (np.cumsum(full, 1) - full)[..., None], full[..., None]
        behind = (shared[:, None, None] + at - full) * heads + np.arange(heads)[:, None]
        there = at < num_blocks[..., None]
        place = np.where(there, np.where(at < full, first + at, behind), 0)
        block = np.take_along_axis(table, (place // heads).reshape(len(table), -1), 1).reshape(place.shape)
        return np.where(there, block * heads + place % heads, 0).astype(np.int32)

    def _shared(self, full: IntArray) -> IntArray:
        """(B,): the blocks of a row in which the full blocks (B, L, K) of its heads lie."""
        found: IntArray = (-(-full.sum(2) // self._heads)).max(1)
        return found

    def _eager(
        self,
        step: Step,
        packed: tuple[IntArray, IntArray],
        tokens: IntArray,
        slots: Sequence[IntArray],
        context: IntArray,
    ) -> Tensor:
        [place] = slots
        heads, size, num_new = self._heads, self.tables.block_size, step.num_new
        table, full = self.tables.host[step.rows], self._full[step.rows]
        shared, ends = self._shared(full), np.cumsum(num_new)
        each = np.repeat(num_new, heads)
        starts = np.array([0, *np.cumsum(each)], dtype=np.int32)
        head = np.repeat(np.tile(np.arange(heads), len(num_new)), each)
        token = np.arange(starts[-1]) - np.repeat(starts[:-1] - np.repeat(ends - num_new, heads), each)
        slot = (place[token] // size * heads + head) * size + place[token] % size
        sent = self._inputs.upload(tokens, packed[1], slot, starts, token, head, (ends - 1)[step.sampled])
        self._where = sent[4], sent[5]
        batches = []
        for layer in range(full.shape[1] if full.any() else 1):  # else all layers have the same tables
            lengths = (context - shared * size)[:, None] + full[:, layer] * size
            blocks = self._blocks(table, full[:, layer], shared, -(-lengths // size)).reshape(len(starts) - 1, -1)
            contexts = lengths.ravel().astype(np.int32)
            batches.append(Batch(
                block_tables=torch.from_numpy(blocks).to(self.device),
                context_lens=torch.from_numpy(contexts).to(self.device),
                query_starts=sent[3], slot_mapping=sent[2], max_query_len=int(num_new.max()),
                max_context_len=int(contexts.max()), num_decodes=step.num_decodes * heads,
                host_context_lens=contexts, host_query_starts=starts,
            ))  # fmt: skip
        return self.decoder.logits(self._hidden(sent[0], sent[1], batches, sent[6]))

    def attend(self, layer: int, q: Tensor, *inputs: Any) -> Tensor:
        place, where = self._kv_of[layer], self._where
        k, v = inputs
        kv, backend = self.pool.layers[place], self.by_layer[place]
        batch = self._batches[place % len(self._batches)]
        if len(self._batches) > 1:
            backend.plan(batch)
        if self._listener is not None:
            self._listener(place, q)
        backend.write(kv, k[where][:, None], v[where][:, None], batch.slot_mapping)
        asked = q.reshape(len(q), self._heads, -1, q.shape[2])[where]  # rows and heads packed, (., G, D)
        found = torch.empty_like(asked)
        backend.attend(asked, kv, batch, found)
        out = q.new_empty(len(q), self._heads, *found.shape[1:])
        out[where] = found
        return out.flatten(1, 2)

    def _index(self, table: npt.NDArray[np.int32], full: IntArray, layer: int, at: IntArray) -> Any:
        """Where the pool's tensors of a layer have the tokens `at` (K, n) of each head of a row with this table and
        these full blocks (L, K); of -1, the null block's first."""
        size = self.tables.block_size
        blocks = self._blocks(table[None], full[None, layer], self._shared(full[None]), at.max(1)[None] // size + 1)[0]
        block = np.where(at < 0, 0, np.take_along_axis(blocks, np.maximum(at, 0) // size, 1))
        first, second = (torch.from_numpy(one.astype(np.int64)).to(self.device) for one in (block, at % size))
        return (first, second, 0) if self.pool.layout == "NHD" else (first, 0, second)

    @torch.inference_mode()
    def read(
        self, row: int, positions: npt.NDArray[np.int64], queries: Sequence[Sequence[Tensor]], computed: int
    ) -> Sequence[LayerCache]:
        places = np.broadcast_to(positions, (*self._full.shape[1:], positions.shape[2]))
        found = []
        for layer, kv in enumerate(self.pool.layers):
            at = np.where(places[layer] == PAST, -1, np.arange(places.shape[2]))
            index = self._index(self.tables.host[row], self._full[row], layer, at)
            found.append(self._cache(kv, index, places[layer], queries[layer : layer + 1], computed))
        return found

    @torch.inference_mode()
    def compact(
        self,
        row: int,
        source: npt.NDArray[np.int32],
        destination: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int64],
        start: int,
    ) -> None:
        each = np.broadcast_to(tokens, (*self._full.shape[1:], tokens.shape[2]))
        full = (each >= 0).sum(2) // self.tables.block_size
        for layer, kept in enumerate(each):
            old = self._index(source, self._full[row], layer, kept)
            new = self._index(destination, full, layer, np.where(kept < 0, -1, np.arange(each.shape[2])))
            there = torch.from_numpy(kept >= 0).to(self.device)
            new = tuple(one if isinstance(one, int) else one[there] for one in new)
            for stored in self.pool.layers[layer].tensors.values():
                stored[new] = stored[old][there]
        self._full[row] = full
