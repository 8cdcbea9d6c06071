"""A Llama-shaped transformer over packed sequences, with the attention left to the caller."""

# Shapes: T packed tokens  R rows  E hidden  V vocabulary  H query heads  K kv heads  D head dim  I intermediate

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.errors import InvalidArgument
from framework.model.config import ModelConfig, RopeScaling
from framework.model.delta import GatedDelta
from framework.model.experts import NewWeight, RoutedExperts
from framework.model.functions import linear, rms_norm, rotate
from framework.model.latent import LatentAttention
from framework.model.shard import WHOLE, Group, Shard

Attention = Callable[..., Tensor]
"""(layer, q (T, H, D), k (T, K, D), v (T, K, D)) -> (T, H, D).

Of latent attention what `LatentAttention.forward` hands to `attend`, after the layer. Of a recurrent layer what
`GatedDelta.forward` hands to `recur`: (layer, (T, C), (T, N), (T, N)) -> (T, N, V).
q and k are rotated, unless the pass was asked to leave that to attention. All are views whose last dimension alone
is contiguous; they stay valid for this call only.
"""


_PRODUCT_CACHES, _KEPT_PRODUCTS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), 128
"""Environment variables of torch's own cache of oneDNN products and of oneDNN's."""

_KEPT_BYTES = 31 * 2**20
"""glibc's malloc maps whatever is larger than anything freed so far, 32 MiB at most, and hands freed memory beyond
twice that back. With one such buffer freed the activations of a step reuse the pages of the last: the page faults, 5 %
of a prefill's time, are a twentieth of what they were. Source: mallopt(3), M_MMAP_THRESHOLD."""

_CACHED_BYTES = 8 * 2**20
"""Bytes of gate and up: prefills of 2,048 rows in float32 took 4 to 12 % longer in one part than in four
(tests/bench/test_bench_serve.py, `-k in_parts`)."""


class Decoder(nn.Module):
    """The families of `framework.model.config`: everything of the model but attention's memory.

    Sequences are packed one after another without padding; only `attention` knows where one ends. Weights need no
    gradient, so no graph is built. q, k and v are one matrix (E, (H + 2K) * D), gate and up another (E, 2I).

    Args:
        shard: hold this rank's part only: H, K and I below are then its share, and it computes once it has joined the
            ranks of the others. See `framework.model.shard`.

    Attributes:
        config: the shape of the whole model.
        during_dense: given the token ids, the context of a pass that the engine has not announced to the other ranks.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        shard: Shard = WHOLE,
    ):
        super().__init__()
        self.config, self.shard = config, shard
        self.group: Group | None = None
        self.during_dense: Callable[[Tensor], AbstractContextManager[None]] = lambda _: nullcontext()
        shard_config, self.vocabulary = shard.config(config), shard.split(config.vocab_size)
        dtype = getattr(torch, config.dtype) if dtype is None else dtype

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)

        self.embedding = weight(len(self.vocabulary), config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shard_config, index, weight) for index in range(config.num_layers))
        self.norm = weight(config.hidden_size)
        self._embedding_scale = float(torch.tensor(config.embedding_scale).to(dtype))  # rounded, as it was trained
        self.lm_head = self.embedding
        if not config.tie_word_embeddings:
            self.lm_head = weight(len(self.vocabulary), config.hidden_size)
        frequencies = rotary_frequencies(config.rotary_dim or config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)
        local = None
        if config.local_rope_theta is not None:
            local = rotary_frequencies(config.head_dim, config.local_rope_theta, None).to(device)
        self.register_buffer("local_frequencies", local, persistent=False)

    frequencies: Tensor
    local_frequencies: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, hidden states, and the KV it hands to attention."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where `forward` wants its arguments."""
        return self.embedding.device

    @torch.no_grad()
    def forward(
        self, tokens: Tensor, positions: Tensor, attention: Attention, rotate: bool = True, rows: Tensor | None = None
    ) -> Tensor:
        """The last layer's normalised hidden states (T, E), or (R, E) of `rows`, the same on every rank.

        Args:
            tokens: (T,) int64 token ids on the model's device.
            positions: (T,) int64, each token's place in its own sequence, from 0.
            attention: called once a layer, in order.
            rotate: False leaves q and k as they are: `attention` rotates them by `angles`.
            rows: (R,) int64, the tokens whose states are wanted, None for all. What follows the last layer's attention
                is computed for them alone: of a prefill that is nearly a layer less.

        Raises:
            InvalidArgument: a part that has not joined the others.
        """
        rope = self.rope(positions) if rotate else None
        local = self.rope(positions, local=True) if rotate and self.local_frequencies is not None else rope
        x = self._embed(tokens)
        if self._embedding_scale != 1.0:
            x = x * self._embedding_scale
        for layer in self.layers:
            x = layer(x, local if layer.slides else rope, attention, rows if layer is self.layers[-1] else None)
        return rms_norm(x, self.norm, self.config.rms_norm_eps, self.config.norms_plus_one)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """(R, E) hidden states, as `forward` gives them, to (R, V) float32 logits (float64 for a float64 model).

        Of several ranks rank 0 alone gets them; the others keep the columns of their own vocabulary.
        """
        if self.config.logit_scale != 1.0:
            hidden = hidden * self.config.logit_scale
        logits = linear(hidden, self.lm_head, None)
        if self.config.logit_cap is not None:
            logits = self.config.logit_cap * torch.tanh(logits / self.config.logit_cap)
        if self.group is not None:
            ranks = (Shard(rank, self.shard.size) for rank in range(self.shard.size))
            logits = self.group.gather(logits, [len(rank.split(self.config.vocab_size)) for rank in ranks])
        return logits if logits.dtype == torch.float64 else logits.float()

    def join(self, group: Group) -> None:
        """Compute with the ranks that hold the other parts, from here on."""
        self.group = group
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            layer.group = group

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.group is None:
            if self.shard.size > 1:
                raise InvalidArgument(
                    f"part {self.shard.rank} of {self.shard.size} of a model computes nothing alone; load the whole "
                    "model, or all its parts with tensor_parallel_size"
                )
            return F.embedding(tokens, self.embedding)
        rows = tokens - self.vocabulary.start
        elsewhere = (rows < 0) | (rows >= len(self.vocabulary))
        x = F.embedding(rows.masked_fill(elsewhere, 0), self.embedding)
        return self.group.sum(x.masked_fill_(elsewhere[:, None], 0))

    def prepack(self, num_rows: int = 32) -> bool:
        """Keep a second copy of every matrix in the layout that oneDNN multiplies fastest, for about `num_rows` rows.

        On a CPU only, in float32 or bfloat16; elsewhere nothing happens. Doubles the memory of the weights, which must
        not change afterwards. Returns whether it was done.

        NOTE: torch and oneDNN each keep compiled products, one a matrix shape and number of rows, 1024 by default: that
        grew to 600 MB over 364 prompts of different lengths on the tiny model. 128 are kept here, unless the
        environment says otherwise: growth ends, and nothing was slower (tests/bench/test_bench_memory.py).
        """
        available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if self.device.type != "cpu" or not available or self.dtype not in (torch.float32, torch.bfloat16):
            return False
        for variable in _PRODUCT_CACHES:  # read when the first product is made
            os.environ.setdefault(variable, str(_KEPT_PRODUCTS))
        lookup_only = None if self.lm_head is self.embedding else self.embedding
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and not name.endswith("qk_norm") and weight is not lookup_only:
                packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), num_rows)
                weight.packed = packed  # type: ignore[attr-defined]
        torch.empty(_KEPT_BYTES, dtype=torch.uint8)  # freed at once
        return True

    def angles(self, positions: Tensor, *, local: bool = False) -> tuple[Tensor, Tensor]:
        """cos and sin, each (T, D / 2), or half of what is rotated of a head, in the model's dtype.

        Computed in float32, as transformers does.

        `local`: of the layers with a sliding window, where they have angles of their own.
        """
        uses_local = local and self.local_frequencies is not None
        frequencies = self.local_frequencies if uses_local else self.frequencies
        assert frequencies is not None
        angles = positions.to(frequencies.dtype)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        if not uses_local and self.config.rope_scaling is not None and self.config.rope_scaling.attention_factor != 1.0:
            cos, sin = (x * self.config.rope_scaling.attention_factor for x in (cos, sin))
        return cos.to(self.dtype), sin.to(self.dtype)

    def rope(self, positions: Tensor, *, local: bool = False) -> tuple[Tensor, Tensor]:
        """cos and signed sin, each (T, 1, R), for both halves of what is rotated; `local` as in `angles`."""
        cos, sin = self.angles(positions, local=local)
        return torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind an RMS norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int, weight: NewWeight):
        super().__init__()
        self.group: Group | None = None
        self.index, self.eps, self.plus_one = index, config.rms_norm_eps, config.norms_plus_one
        self.slides, self.activation = config.slides(index), config.activation
        self.residual_scale = config.residual_scale
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        hidden = config.hidden_size
        self.input_norm = weight(hidden)
        self.delta: GatedDelta | None = None
        self.latent: LatentAttention | None = None
        self.sinks: nn.Parameter | None = None
        if config.recurrent is not None and config.recurrent.layers[index]:
            self.delta = GatedDelta(config.recurrent, hidden, config.rms_norm_eps, weight)
        elif config.latent is not None:
            self.latent = LatentAttention(config, config.latent, weight)
        else:
            self._make_attention(config, weight)
        self.attention_end_norm = weight(hidden) if config.sandwich_norms else None
        self.post_norm = weight(hidden)
        self.mlp_end_norm = weight(hidden) if config.sandwich_norms else None
        self.experts, width = None, config.intermediate_size
        if config.experts is not None and index >= config.experts.first_layer:
            self.experts, width = RoutedExperts(config.experts, hidden, weight), config.experts.shared_size
        self.has_mlp = width > 0
        self.shared_gate = weight(1, hidden) if config.experts is not None and config.experts.shared_gate else None
        if not self.has_mlp:
            return
        self.gate_up = weight(2 * width, hidden)
        self.gate_up_bias = weight(2 * width) if config.mlp_bias else None
        self.down = weight(hidden, width)
        self.down_bias = weight(hidden) if config.mlp_bias else None

    def _make_attention(self, config: ModelConfig, weight: NewWeight) -> None:
        """With an output gate each query head has two in `qkv`: itself, and its gate."""
        hidden, width, self.output_gate = config.hidden_size, config.head_dim, config.output_gate
        rotated = config.num_heads + config.num_kv_heads
        rows = rotated + config.num_kv_heads + config.num_heads * config.output_gate
        self.qkv = weight(rows * width, hidden)
        self.qkv_bias = weight(rows * width) if config.attention_bias else None
        # One weight row a head, so that queries and keys are normalised by one call.
        self.qk_norm = weight(rotated, width) if config.qk_norm else None
        self.output = weight(hidden, config.num_heads * width)
        self.output_bias = weight(hidden) if config.output_bias else None
        self.sinks = weight(config.num_heads) if config.sinks else None

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor] | None, attention: Attention, rows: Tensor | None = None
    ) -> Tensor:
        """(T, E) to (T, E), or (R, E) of `rows` alone; without `rope` attention gets q and k unrotated."""
        if self.delta is not None:
            mixed = self.delta(self._norm(x, self.input_norm), partial(attention, self.index))
            x = x + mixed if rows is None else x[rows] + mixed[rows]
        else:
            x = self._attend(x, rope, attention, rows)
        for part in self._parts(x):
            thought = self._mlp(self._norm(part, self.post_norm))
            if self.mlp_end_norm is not None:
                thought = self._norm(thought, self.mlp_end_norm)
            part.add_(thought, alpha=self.residual_scale)
        return x

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (T, E), on a CPU in parts of so many rows that an MLP's activations of one stay in the cache."""
        if self.group is not None or self.experts is not None or getattr(self.gate_up, "packed", None) is None:
            return (x,)
        return torch.split(x, max(1, _CACHED_BYTES // (len(self.gate_up) * x.element_size())))

    def _attend(
        self, x: Tensor, rope: tuple[Tensor, Tensor] | None, attention: Attention, rows: Tensor | None
    ) -> Tensor:
        if self.latent is not None:
            assert rope is not None
            mixed = self.latent(self._norm(x, self.input_norm), rope, partial(attention, self.index))
            x, mixed = (x, mixed) if rows is None else (x[rows], mixed[rows])
            mixed = self._from_parts(mixed, self.latent.output, self.latent.output_bias)
            return torch.add(x, mixed, alpha=self.residual_scale)
        qkv = linear(self._norm(x, self.input_norm), self.qkv, self.qkv_bias)
        qkv = qkv.view(len(x), -1, self.head_dim)
        qk, v = qkv[:, : -self.num_kv_heads], qkv[:, -self.num_kv_heads :]
        if self.output_gate:
            queries = qk[:, : 2 * self.num_heads]
            gate, qk = queries[:, 1::2], torch.cat((queries[:, ::2], qk[:, 2 * self.num_heads :]), 1)
        if self.qk_norm is not None:
            qk = self._norm_heads(qk, self.qk_norm)
        if rope is not None:
            qk = rotate(qk, rope)
        mixed = attention(self.index, qk[:, : self.num_heads], qk[:, self.num_heads :], v)
        if self.output_gate:
            mixed = mixed * gate.sigmoid()
        if rows is not None:
            x, mixed = x[rows], mixed[rows]
        mixed = self._from_parts(mixed.flatten(1), self.output, self.output_bias)
        if self.attention_end_norm is not None:
            mixed = self._norm(mixed, self.attention_end_norm)
        return x + mixed

    def _mlp(self, x: Tensor) -> Tensor:
        if self.experts is not None:
            routed: Tensor = self.experts(x)
            if not self.has_mlp:
                return routed
            shared = self._gated(x)
            return routed + (
                shared if self.shared_gate is None else shared * linear(x, self.shared_gate, None).sigmoid()
            )
        return self._gated(x)

    def _gated(self, x: Tensor) -> Tensor:
        gate, up = linear(x, self.gate_up, self.gate_up_bias).chunk(2, -1)
        gate = F.silu(gate) if self.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self._from_parts(gate.mul_(up), self.down, self.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.eps, self.plus_one)

    def _norm_heads(self, qk: Tensor, weight: Tensor) -> Tensor:
        """qk (T, N, D) with a row of weights (N, D) for each head."""
        if self.plus_one:
            return (rms_norm(qk.float(), None, self.eps) * (1 + weight.float())).to(qk.dtype)
        return rms_norm(qk, None, self.eps) * weight

    def _from_parts(self, x: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
        """x times weight plus bias, where each rank holds its columns of both factors; the bias is added once."""
        if self.group is None:
            return linear(x, weight, bias)
        total = self.group.sum(linear(x, weight, None))
        return total if bias is None else total.add_(bias)


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """(D / 2,) float32 angles per position, scaled as the checkpoint asks. Source: arXiv:2104.09864; transformers."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "yarn":
        return _yarn(frequencies, theta, scaling)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def _yarn(frequencies: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Source: Peng et al. 2023, arXiv:2309.00071 section 3.2, as transformers computes it."""
    dim, positions = 2 * len(frequencies), scaling.original_max_position_embeddings

    def dimension(turns: float) -> float:
        return dim * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2).float() - low) / (high - low if high != low else 0.001)
    stretched = ramp.clamp(0, 1)
    return frequencies / scaling.factor * stretched + frequencies * (1 - stretched)
