"""Multi-head latent attention, and the indexer that selects the tokens it reads: the layers of DeepSeek V3 and V3.2."""

# Shapes: T packed tokens  E hidden  H query heads  Q rank of the queries  L latent  N not rotated  R rotated of a head
#         V value dim  I index heads  J elements of an index key

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.config import IndexConfig, LatentConfig, ModelConfig
from framework.model.experts import NewWeight
from framework.model.functions import linear, rms_norm, rotate

_EPS = 1e-6
"""Epsilon of norms within attention, whatever a config has for the others. Source: transformers' DeepseekV3."""


@dataclass(frozen=True, slots=True)
class Index:
    """What attention selects tokens by: queries (T, I, J), their weights (T, I), and the tokens' own keys (T, J)."""

    queries: Tensor
    weights: Tensor
    keys: Tensor


class LatentAttention(nn.Module):
    """A layer's projections. Source: DeepSeek-V2, arXiv:2405.04434 section 2.1.

    NOTE: the projections from the latent to keys and values are absorbed, in decode and in prefill alike: queries are
    brought into the latent's space, and what attention sums there is projected once. Chunks behind a cached prefix then
    need no keys or values of the prefix; a long prompt costs (2 L + R) / (N + R + V) times the products of attention
    over expanded ones, 3.4 at DeepSeek V3's sizes.
    """

    def __init__(self, config: ModelConfig, latent: LatentConfig, weight: NewWeight):
        super().__init__()
        self._latent, self.num_heads = latent, config.num_heads
        hidden, rank = config.hidden_size, latent.query_rank
        # The queries' latent, the tokens' latent, and the key that is rotated.
        self.widths = [rank or 0, latent.latent_dim, latent.rope_dim]
        self.inputs = weight(sum(self.widths), hidden)
        self.inputs_bias = weight(sum(self.widths)) if config.attention_bias else None
        self.query_norm = None if rank is None else weight(rank)
        self.queries = weight(config.num_heads * (latent.nope_dim + latent.rope_dim), rank or hidden)
        self.latent_norm = weight(latent.latent_dim)
        self.expansion = weight(config.num_heads, latent.nope_dim + latent.value_dim, latent.latent_dim)
        self.output = weight(hidden, config.num_heads * latent.value_dim)
        self.output_bias = weight(hidden) if config.output_bias else None
        self.indexer = None if latent.index is None else Indexer(latent.index, hidden, rank or 0, weight)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Callable[..., Tensor]) -> Tensor:
        """(T, E) to (T, H * V), before `output`.

        Args:
            rope: of the rotated part.
            attend: given q (T, H, L + R), the tokens' rows (T, 1, L + R), their latents (T, 1, L), a view of the rows,
                and an Index if there is an indexer; gives (T, H, L).
        """
        latent = self._latent
        compressed, row, key = torch.split(linear(x, self.inputs, self.inputs_bias), self.widths, -1)
        residual = x if self.query_norm is None else rms_norm(compressed, self.query_norm, _EPS)
        q = linear(residual, self.queries, None).view(len(x), self.num_heads, -1)
        turned = torch.cat((q[..., latent.nope_dim :], key.unsqueeze(1)), 1)
        if latent.interleaved:
            turned = torch.cat((turned[..., ::2], turned[..., 1::2]), -1)
        turned = rotate(turned, rope)
        to_keys, to_values = self.expansion[:, : latent.nope_dim], self.expansion[:, latent.nope_dim :]
        absorbed = torch.bmm(q[..., : latent.nope_dim].transpose(0, 1), to_keys).transpose(0, 1)
        q = torch.cat((absorbed, turned[:, :-1]), -1)
        rows = torch.cat((rms_norm(row, self.latent_norm, _EPS).unsqueeze(1), turned[:, -1:]), -1)
        index = [] if self.indexer is None else [self.indexer(x, residual, rope)]
        mixed = attend(q, rows, rows[..., : latent.latent_dim], *index)
        return torch.bmm(mixed.transpose(0, 1), to_values.transpose(1, 2)).transpose(0, 1).flatten(1)


class Indexer(nn.Module):
    """Scores of tokens to attend to: weights . relu(q k), over heads. Source: arXiv:2512.02556 section 2.1.

    The released model turns q and k by a Hadamard matrix and rounds them to fp8: the first changes no score, and the
    second is left out, as in transformers.
    """

    def __init__(self, config: IndexConfig, hidden: int, rank: int, weight: NewWeight):
        super().__init__()
        self._config = config
        self.queries = weight(config.num_heads * config.dim, rank)
        self.key = weight(config.dim, hidden)
        self.key_norm, self.key_norm_bias = weight(config.dim), weight(config.dim)
        self.weights = weight(config.num_heads, hidden)

    def forward(self, x: Tensor, residual: Tensor, rope: tuple[Tensor, Tensor]) -> Index:
        """The index of x (T, E), its queries from their normalised latent (T, Q)."""
        heads, dim = self._config.num_heads, self._config.dim
        q = linear(residual, self.queries, None).view(len(x), heads, dim)
        key = F.layer_norm(linear(x, self.key, None), (dim,), self.key_norm, self.key_norm_bias, _EPS)
        weights = F.linear(x, self.weights) * (heads * dim) ** -0.5
        return Index(rotate(q, rope), weights, rotate(key.unsqueeze(1), rope).squeeze(1))
