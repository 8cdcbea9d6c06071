"""A transformer over packed sequences, with the attention left to the caller."""

# Shapes: T packed tokens  R rows  E hidden  V vocabulary  H query heads  K kv heads  D head dim  I intermediate

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.errors import InvalidArgument
from framework.model.config import ModelConfig
from framework.model.functions import linear, rms_norm
from framework.model.layers import Mixer, Part
from framework.model.shape import Division, RopeScaling
from framework.model.shard import WHOLE, Group, Shard

Attention = Callable[..., Tensor]
"""(layer, q (T, H, D), k (T, K, D), v (T, K, D)) -> (T, H, D).

Of a latent cache k are the tokens' rows, v (T, 1, V) a view of them, and an Index follows where there is an indexer; a
layer's `Recurrence` hands inputs of its own. q and k are rotated, unless the pass was asked to leave that to attention.
All are views whose last dimension alone is contiguous; they stay valid for this call only.
"""


_PRODUCT_CACHES, _KEPT_PRODUCTS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), 128
"""Environment variables of torch's own cache of oneDNN products and of oneDNN's."""

_KEPT_BYTES = 31 * 2**20
"""glibc's malloc maps whatever is larger than anything freed so far, 32 MiB at most, and hands freed memory beyond
twice that back. With one such buffer freed the activations of a step reuse the pages of the last: the page faults, 5 %
of a prefill's time, are a twentieth of what they were. Source: mallopt(3), M_MMAP_THRESHOLD."""


class Decoder(nn.Module):
    """A model of any installed family: everything of it but attention's memory.

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
        self.layers = nn.ModuleList(shard_config.layer(index, weight) for index in range(config.num_layers))
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
        rope = (*self.rope(positions), positions) if rotate else None
        local = rope
        if rotate and self.local_frequencies is not None:
            local = *self.rope(positions, local=True), positions
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

    def mixer(self, layer: int) -> Mixer:
        """What mixes the tokens of that layer."""
        mixer = self.layers[layer].attention
        assert isinstance(mixer, Mixer)
        return mixer

    def division(self, name: str) -> Division | None:
        """How ranks share the parameter of this name; None: it is whole on each."""
        of, _, own = name.rpartition(".")
        if not of:
            return (0, ((self.config.vocab_size, 1),)) if own in ("embedding", "lm_head") else None
        part = self.get_submodule(of)
        return part.divisions().get(own) if isinstance(part, Part) else None

    def join(self, group: Group) -> None:
        """Compute with the ranks that hold the other parts, from here on."""
        self.group = group
        for part in self.modules():
            if isinstance(part, Part):
                part.group = group

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
    smooth = ((turns - low) / max(high - low, 1e-9)).clamp(0, 1)
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
