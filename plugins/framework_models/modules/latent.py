"""Multi-head latent attention, and the indexer that selects the tokens it reads: the layers of DeepSeek V3 and V3.2."""

# Shapes: T packed tokens  E hidden  H query heads  Q rank of the queries  L latent  N not rotated  R rotated of a head
#         V value dim  I index heads  J elements of an index key

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.functions import linear, rms_norm, rotate
from framework.model.layers import DecoderLayer, Index, Mixer, Mlp, NewWeight, Rope, Target, Targets
from framework.model.shape import Division
from framework_models.latent import LatentModel, MiniCPM3

_EPS = 1e-6
"""Epsilon of norms within attention, whatever a config has for the others. Source: transformers' DeepseekV3."""


class LatentAttention(Mixer):
    """A layer's projections. Source: DeepSeek-V2, arXiv:2405.04434 section 2.1.

    NOTE: the projections from the latent to keys and values are absorbed, in decode and in prefill alike: queries are
    brought into the latent's space, and what attention sums there is projected once. Chunks behind a cached prefix then
    need no keys or values of the prefix; a long prompt costs (2 L + R) / (N + R + V) times the products of attention
    over expanded ones, 3.4 at DeepSeek V3's sizes.
    """

    def __init__(self, config: LatentModel, weight: NewWeight):
        super().__init__()
        assert config.latent_dim is not None
        assert config.rotary_dim is not None
        self.num_heads, self.latent_dim = config.num_heads, config.latent_dim
        self.nope_dim, self.interleaved = config.nope_dim, config.interleaved
        hidden, rank = config.hidden_size, config.query_rank
        # The queries' latent, the tokens' latent, and the key that is rotated.
        self.widths = [rank or 0, config.latent_dim, config.rotary_dim]
        self.inputs = weight(sum(self.widths), hidden)
        self.inputs_bias = weight(sum(self.widths)) if config.attention_bias else None
        self.query_norm = None if rank is None else weight(rank)
        self.queries = weight(config.num_heads * (config.nope_dim + config.rotary_dim), rank or hidden)
        self.latent_norm = weight(config.latent_dim)
        self.expansion = weight(config.num_heads, config.nope_dim + config.value_dim, config.latent_dim)
        self.output = weight(hidden, config.num_heads * config.value_dim)
        self.output_bias = weight(hidden) if config.output_bias else None
        self.indexer = None
        if config.index_dim is not None:
            self.indexer = Indexer(config.index_heads, config.index_dim, hidden, rank or 0, weight)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        """See Mixer.

        Args:
            rope: of the rotated part; None: it stays as it is.
            attend: given q (T, H, L + R), the tokens' rows (T, 1, L + R), their latents (T, 1, L), a view of the rows,
                and an Index if there is an indexer; gives (T, H, L).
        """
        compressed, row, key = torch.split(linear(x, self.inputs, self.inputs_bias), self.widths, -1)
        residual = x if self.query_norm is None else rms_norm(compressed, self.query_norm, _EPS)
        q = linear(residual, self.queries, None).view(len(x), self.num_heads, -1)
        turned = torch.cat((q[..., self.nope_dim :], key.unsqueeze(1)), 1)
        if rope is not None:
            if self.interleaved:
                turned = torch.cat((turned[..., ::2], turned[..., 1::2]), -1)
            turned = rotate(turned, rope)
        to_keys, to_values = self.expansion[:, : self.nope_dim], self.expansion[:, self.nope_dim :]
        absorbed = torch.bmm(q[..., : self.nope_dim].transpose(0, 1), to_keys).transpose(0, 1)
        q = torch.cat((absorbed, turned[:, :-1]), -1)
        tokens = torch.cat((rms_norm(row, self.latent_norm, _EPS).unsqueeze(1), turned[:, -1:]), -1)
        index = [] if self.indexer is None or rope is None else [self.indexer(x, residual, rope)]
        mixed = attend(q, tokens, tokens[..., : self.latent_dim], *index)
        mixed = mixed if rows is None else mixed[rows]
        mixed = torch.bmm(mixed.transpose(0, 1), to_values.transpose(1, 2)).transpose(0, 1).flatten(1)
        return self.project(mixed, self.output, self.output_bias)

    def divisions(self) -> Mapping[str, Division]:
        heads = self.num_heads
        queries, values = len(self.queries) // heads, self.output.shape[1] // heads
        return {
            "queries": (0, ((heads, queries),)), "expansion": (0, ((heads, 1),)), "output": (1, ((heads, values),)),
        }  # fmt: skip

    def targets(self) -> Targets:
        rank, rest = self.widths[0], sum(self.widths[1:])
        views: dict[str, Tensor | Target] = {
            f"self_attn.{'q_b_proj' if rank else 'q_proj'}.weight": self.queries,
            "self_attn.kv_a_layernorm.weight": self.latent_norm,
            "self_attn.kv_b_proj.weight": self.expansion.flatten(0, 1),
        }
        if self.query_norm is not None:
            views["self_attn.q_a_layernorm.weight"] = self.query_norm
        biases = ("bias", self.inputs_bias, self.output_bias)
        for kind, inputs, output in (("weight", self.inputs, self.output), biases):
            if inputs is not None:
                queries, views[f"self_attn.kv_a_proj_with_mqa.{kind}"] = torch.split(inputs, [rank, rest])
                views |= {f"self_attn.q_a_proj.{kind}": queries} if rank else {}
            if output is not None:
                views[f"self_attn.o_proj.{kind}"] = output
        return views if self.indexer is None else {**views, **self.indexer.targets()}


class Indexer(nn.Module):
    """Scores of tokens to attend to: weights . relu(q k), over heads. Source: arXiv:2512.02556 section 2.1.

    The released model turns q and k by a Hadamard matrix and rounds them to fp8: the first changes no score, and the
    second is left out, as in transformers.
    """

    def __init__(self, num_heads: int, dim: int, hidden: int, rank: int, weight: NewWeight):
        super().__init__()
        self.num_heads, self.dim = num_heads, dim
        self.queries = weight(num_heads * dim, rank)
        self.key = weight(dim, hidden)
        self.key_norm, self.key_norm_bias = weight(dim), weight(dim)
        self.weights = weight(num_heads, hidden)

    def forward(self, x: Tensor, residual: Tensor, rope: tuple[Tensor, ...]) -> Index:
        """The index of x (T, E), its queries from their normalised latent (T, Q)."""
        heads, dim = self.num_heads, self.dim
        q = linear(residual, self.queries, None).view(len(x), heads, dim)
        key = F.layer_norm(linear(x, self.key, None), (dim,), self.key_norm, self.key_norm_bias, _EPS)
        weights = F.linear(x, self.weights) * (heads * dim) ** -0.5
        return Index(rotate(q, rope), weights, rotate(key.unsqueeze(1), rope).squeeze(1))

    def targets(self) -> Targets:
        """As of a Mixer."""
        return {
            "self_attn.indexer.wq_b.weight": self.queries,
            "self_attn.indexer.wk.weight": self.key,
            "self_attn.indexer.k_norm.weight": self.key_norm,
            "self_attn.indexer.k_norm.bias": self.key_norm_bias,
            "self_attn.indexer.weights_proj.weight": self.weights,
        }


class ScaledLayer(DecoderLayer):
    """What attention and MLP add to the residual stream is scaled."""

    def __init__(self, config: MiniCPM3, index: int, weight: NewWeight, attention: Mixer, mlp: Mlp):
        super().__init__(config, index, weight, attention, mlp)
        self.scale = config.residual_scale

    def mix(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None) -> Tensor:
        return super().mix(x, rope, attend, rows) * self.scale

    def think(self, x: Tensor) -> Tensor:
        return super().think(x) * self.scale
