"""The shape of a decoder-only transformer, within bounds that this framework can run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from framework.errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = ("float32", "bfloat16", "float16", "float64")
ROPE_TYPES = ("default", "linear", "llama3")

_LARGEST = {
    "vocab_size": 2**24, "hidden_size": 2**20, "num_layers": 2**12, "num_heads": 2**12, "num_kv_heads": 2**12,
    "head_dim": 2**12, "intermediate_size": 2**24, "max_position_embeddings": 2**30,
}  # fmt: skip
"""Far beyond any model there is: what is larger is a damaged file, and building it would take for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides every frequency by `factor`. `llama3` divides those whose wavelength is longer than
    `original_max_position_embeddings / low_freq_factor`, keeps those shorter than `.../high_freq_factor`, and blends
    between (Llama 3.1 model card; transformers' `rope_utils`).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer of one of `FAMILIES`. Sizes in elements, positions in tokens.

    Attributes:
        attention_bias: q, k and v projections have a bias. output_bias: so has the output projection.
        mlp_bias: all three MLP projections have a bias.
        qk_norm: queries and keys are RMS-normalised per head before rotation (Qwen3).
        sliding_window: every layer sees only the last so many tokens, itself included; None sees all.
        eos_token_ids: as config.json has them; a checkpoint's generation_config.json overrides them on loading.
        dtype: torch's name of the dtype the weights were saved in.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelError(f"{name} must be an integer of at least 1, found {value!r}")
            if value > largest:
                raise ModelError(f"{name} must be at most {largest:,}, found {value:,}; is config.json damaged?")
        if self.family not in FAMILIES:
            raise ModelError(f"no model family '{self.family}'; supported: {', '.join(FAMILIES)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} query heads are not a multiple of {self.num_kv_heads} kv heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even and at least 2, found {self.head_dim}")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelError(f"sliding_window must be at least 1 token, found {self.sliding_window}")
        for name in ("rope_theta", "rms_norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ModelError(f"{name} must be above 0 and finite, found {getattr(self, name)}")
        if self.dtype not in DTYPES:
            raise ModelError(f"no model dtype '{self.dtype}'; supported: {', '.join(DTYPES)}")

    @property
    def num_parameters(self) -> int:
        """All weights, embeddings included; a tied embedding counts once."""
        heads, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * heads + 2 * kv)
        attention += (heads + 2 * kv) * self.attention_bias + self.hidden_size * self.output_bias
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * (attention + mlp + norms) + embeddings + self.hidden_size
