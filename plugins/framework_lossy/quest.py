"""backend=quest: attention that reads only the blocks which a query is likely to attend to. Nothing is dropped."""

# Shapes: Tq queries of one row  C its context  S tokens a block  M blocks of a row  K kv heads  H query heads
#         G = H / K  D head dim

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from framework.errors import ConfigError
from framework.interfaces.backend import Capabilities, DenseBackend, LayerKV, Loss, Row

if TYPE_CHECKING:
    from torch import Tensor


class Quest(DenseBackend):
    """Each kv head reads the blocks whose largest possible score is highest, and the last one.

    A block's bound for a query is the sum over dimensions of max(q * smallest key, q * largest key) of its tokens.
    Heads that share keys take the highest of theirs. Rows of more than `max_queries` new tokens, as prompts are, read
    all.

    In plain PyTorch, row by row: what is counted is right, a time says nothing. The bounds are computed anew at each
    call; counted are two vectors a block, which an engine would keep beside it.

    Args:
        share: of the context's blocks that a query reads, the last one included; at least one. 1: all.
        blocks: how many in place of that; None: `share` decides.
        max_queries: most new tokens of a row that selects; a question of a few tokens then does.

    Raises:
        ConfigError: a value outside its bounds.

    Source: Tang et al. 2024, Quest, arXiv:2406.10774, section 3.3: blocks of 16. The paper reads all in the first two
    layers; a backend here does not know its layer.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        kv_dtypes=frozenset({"float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"}),
        devices=frozenset({"cpu", "cuda"}),
        layouts=frozenset({"NHD", "HND"}),
        batch_invariant=True,
        lossy=Loss(max_error=0.999, reason="most blocks of a context are not read"),
    )

    def __init__(self, *, share: float = 1.0, blocks: int | None = None, max_queries: int = 1) -> None:
        if (blocks is not None and blocks < 1) or not 0 < share <= 1 or max_queries < 1:
            raise ConfigError(
                f"backend.blocks and backend.max_queries (quest) must be at least 1 and backend.share above 0 and at "
                f"most 1, found {blocks}, {max_queries} and {share}"
            )
        self._blocks, self._share, self._max_queries = blocks, share, max_queries
        self._read = self._dense = self._found = self._wanted = 0
        self._mass = self._queries = 0.0

    def facts(self) -> dict[str, str | int | float]:
        """Shares: of the context's keys and values those that were read, bounds included; of the attention what was
        kept; of the blocks with the most attention those that were read."""
        if not self._queries:
            return {}
        return {
            "read_share": self._read / self._dense,
            "kept_attention_mass": self._mass / self._queries,
            "top_block_recall": self._found / max(1, self._wanted),
        }

    def gather(self, pool: LayerKV, block_table: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """See DenseBackend; in the dtype of the queries, whatever the pool's."""
        if self.spec.kv_dtype in (None, self.spec.dtype):
            return super().gather(pool, block_table, context)
        import torch

        where = pool.index_of(block_table.cpu().numpy(), np.arange(context)[None])
        keys, values = pool.values_at(where, getattr(torch, self.spec.dtype))
        return keys.transpose(0, 1), values.transpose(0, 1)

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, row: Row) -> Tensor:
        import torch

        spec = row.spec
        heads, size, context = spec.num_kv_heads, spec.block_size, row.context
        grouped = q.transpose(0, 1).reshape(heads, -1, *q.shape[::2])  # (K, G, Tq, D)
        keys, values = k.transpose(0, 1), v.transpose(0, 1)
        scores = grouped @ keys[:, None].transpose(-1, -2) * spec.softmax_scale
        scores = scores.masked_fill(~row.visible(q.device), -torch.inf)
        count = -(-context // size)
        most = self._blocks if self._blocks is not None else max(1, int(count * self._share))
        if row.queries <= self._max_queries and most < count:
            chosen = self._choose(grouped, keys, size, most)  # (K, Tq, M)
            self._count(scores, chosen, size, most)
            seen = chosen.repeat_interleave(size, -1)[..., :context]
            scores = scores.masked_fill(~seen[:, None], -torch.inf)
        weights = scores.softmax(-1).to(q.dtype)
        return (weights @ values[:, None]).flatten(0, 1).transpose(0, 1)

    def _choose(self, q: Tensor, keys: Tensor, size: int, most: int) -> Tensor:
        """(K, Tq, M) bool: the blocks that each query of each kv head reads."""
        import torch
        from torch.nn import functional

        heads, context, dim = keys.shape
        count = -(-context // size)
        last = keys[:, -1:].expand(-1, count * size - context, -1)
        blocks = torch.cat((keys, last), 1).view(heads, count, size, dim)
        low, high = (one[:, None].transpose(-1, -2) for one in (blocks.amin(2), blocks.amax(2)))
        bounds = (functional.relu(q) @ high - functional.relu(-q) @ low).amax(1)  # (K, Tq, M), of heads that share keys
        bounds[..., -1] = torch.inf
        chosen = torch.zeros_like(bounds, dtype=torch.bool)
        return chosen.scatter_(-1, bounds.topk(most, -1).indices, value=True)

    def _count(self, scores: Tensor, chosen: Tensor, size: int, most: int) -> None:
        from torch.nn import functional

        heads, queries, count = chosen.shape
        context = scores.shape[-1]
        weights = functional.pad(scores.softmax(-1).mean(1), (0, count * size - context))  # (K, Tq, M * S)
        mass = weights.view(heads, queries, count, size).sum(-1)
        best = mass.topk(most, -1).indices
        self._found += int(chosen.gather(-1, best).sum())
        self._wanted += best.numel()
        self._mass += float((mass * chosen).sum()) / heads
        self._queries += queries
        read = chosen.sum(-1) * size - (count * size - context)  # the last block is always read
        self._read += int(read.sum()) + heads * queries * count
        self._dense += heads * queries * context
