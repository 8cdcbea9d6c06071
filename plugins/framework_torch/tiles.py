"""A step's batch cut into tiles that the torch backend answers one by one."""

# Shapes: R rows of a tile  Tq queries a row  C keys a row  S tokens a block  K kv heads

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.interfaces.backend import AttentionSpec, Batch

_CALL_BYTES = 2**19
"""KV bytes that cost about as much to read as one more call: padding below it is cheaper than another tile."""

_MASK_ELEMENTS = 2**22
"""Most entries of a tile's mask (queries x keys); 16 MiB in fp32."""

_RUNNING_QUERIES = 256
"""Queries at a time with a running maximum: their scores leave room for hundreds of keys in a tile."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries answered in one go: R decode rows of like length, a chunk of one row's, or rows' over a common prefix.

    Attributes:
        tokens: which packed queries, R * Tq of them.
        queries: positions (R, Tq) int64. keys: positions (R, C) int64; those past the row's context are padding.
        where: flat pool indices, in the order the layout wants; padding repeats the row's last token.
        mask: (R, 1, Tq or 1, C), 0 or -inf; None when every key is seen, or when `causal`.
        causal: keys and queries are the same positions.
    """

    tokens: slice | Tensor
    queries: Tensor
    keys: Tensor
    where: Tensor
    mask: Tensor | None
    causal: bool


class Tiler:
    """Cuts decode rows of like length, and chunks of one row's queries, to a budget of KV bytes.

    Args:
        token_bytes: of K and V of one token in one layer's pool.
        tile_bytes: KV gathered at once for decode rows.
        prefill_bytes: KV of one row gathered at once for a prefill chunk.
        plain: whether SDPA can answer; without, chunks are as small as a running maximum wants them.
    """

    def __init__(
        self, spec: AttentionSpec, *, token_bytes: int, tile_bytes: int, prefill_bytes: int, plain: bool
    ) -> None:
        self.spec = spec
        self._token_bytes, self._tile_bytes, self._prefill_bytes = token_bytes, tile_bytes, prefill_bytes
        self._plain = plain

    def decode_tiles(
        self, batch: Batch, rows: npt.NDArray[np.int64], contexts: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
    ) -> Iterator[Tile]:
        """Tiles of rows with one query each; `contexts` and `starts` are of all rows of the batch."""
        return (self._decode_tile(batch, group, contexts, starts) for group in self.groups(rows, contexts))

    def fits(self, tile: Tile) -> bool:
        """Whether the tile's K and V may be gathered at once."""
        rows, keys = tile.keys.shape
        limit = self._prefill_bytes if tile.queries.shape[1] > 1 else 2 * self._tile_bytes
        return rows * keys * self._token_bytes <= limit

    def groups(self, rows: npt.NDArray[np.int64], contexts: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Rows sorted by length, cut where a tile is full or padding would cost more than a call."""
        spans = contexts[rows] - self.spec.first_seen(contexts[rows] - 1)
        order = np.argsort(spans, kind="stable")
        rows, sizes = rows[order], spans[order] * self._token_bytes
        first, padding = 0, 0
        for end in range(1, len(rows)):
            padding += int(sizes[end] - sizes[end - 1]) * (end - first)
            if (end - first + 1) * int(sizes[end]) > self._tile_bytes or padding > _CALL_BYTES:
                yield rows[first:end]
                first, padding = end, 0
        if len(rows):
            yield rows[first:]

    def _decode_tile(
        self, batch: Batch, rows: npt.NDArray[np.int64], contexts: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
    ) -> Tile:
        lengths = contexts[rows]
        first = self.spec.first_seen(lengths - 1)
        spans = lengths - first
        keys = first[:, None] + np.arange(int(spans.max()))
        mask = None
        if int(spans.min()) < int(spans.max()):
            mask = torch.zeros(keys.shape, dtype=getattr(torch, self.spec.dtype))
            mask.masked_fill_(torch.from_numpy(keys >= lengths[:, None]), -math.inf)
            mask = mask[:, None, None, :].to(batch.block_tables.device)
        return self._tile(batch, rows, starts[rows], lengths[:, None] - 1, keys, mask, causal=False)

    def prefill_tiles(self, batch: Batch, row: int, context: int, start: int, count: int) -> Iterator[Tile]:
        """Tiles of `count` queries of one row, which begin at `start` of the packed queries."""
        sees_all = self.spec.sliding_window is None and self.spec.attention_chunk is None
        chunked = not self._plain or context * self._token_bytes > self._prefill_bytes
        causal = count == context and sees_all and not chunked
        step = count if causal else max(1, _MASK_ELEMENTS // context)
        if chunked:
            step = min(step, _RUNNING_QUERIES)
        for offset in range(0, count, step):
            queries = np.arange(context - count + offset, context - count + min(offset + step, count))
            first = self.spec.first_seen(queries)
            keys = np.arange(int(first[0]), int(queries[-1]) + 1)
            mask = None
            if not causal:
                seen = (keys[None, :] <= queries[:, None]) & (keys[None, :] >= first[:, None])
                mask = torch.zeros(seen.shape, dtype=getattr(torch, self.spec.dtype))
                mask = mask.masked_fill_(torch.from_numpy(~seen), -math.inf)[None, None].to(batch.block_tables.device)
            tokens = np.arange(start + offset, start + offset + len(queries))
            yield self._tile(batch, np.array([row]), tokens, queries[None], keys[None], mask, causal)

    def _tile(
        self,
        batch: Batch,
        rows: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        queries: npt.NDArray[np.int64],
        keys: npt.NDArray[np.int64],
        mask: Tensor | None,
        causal: bool,
    ) -> Tile:
        device, size = batch.block_tables.device, self.spec.block_size
        read = np.minimum(keys, queries[:, -1:])  # padding reads the row's own last token: written, and finite
        row = torch.from_numpy(rows).to(device)[:, None]
        block = batch.block_tables[row, torch.from_numpy(read // size).to(device)].long()
        offset = torch.from_numpy(read % size).to(device)
        if self.spec.layout == "NHD":
            where = block * size + offset
        else:
            head = torch.arange(self.spec.num_kv_heads, device=device)[None, :, None]
            where = (block[:, None] * self.spec.num_kv_heads + head) * size + offset[:, None]
        whole = len(tokens) == 1 or bool((np.diff(tokens) == 1).all())
        return Tile(
            slice(int(tokens[0]), int(tokens[-1]) + 1) if whole else torch.from_numpy(tokens).to(device),
            torch.from_numpy(queries).to(device),
            torch.from_numpy(keys).to(device),
            where,
            mask,
            causal,
        )
