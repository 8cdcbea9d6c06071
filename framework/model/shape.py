"""The sizes of a decoder-only transformer, within bounds that this framework can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from framework.errors import ModelError

DTYPES = ("float32", "bfloat16", "float16", "float64")
FULL, SLIDING, CHUNKED, STATE = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
"""What `layer_types` calls a layer."""

Division = tuple[int, tuple[tuple[int, int], ...]]
"""How ranks share a weight: the dimension that is divided, and what lies along it, so many things of so many elements
each, which `Shard.split` divides. Where nothing does rank 0 alone has it, and the others have zeros: what is added to
what the ranks sum."""

LARGEST = {
    "vocab_size": 2**24, "hidden_size": 2**20, "num_layers": 2**12, "num_heads": 2**12, "num_kv_heads": 2**12,
    "head_dim": 2**12, "intermediate_size": 2**24, "max_position_embeddings": 2**30,
}  # fmt: skip
"""Far beyond any model there is: what is larger is a damaged file, and building it would take for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides every frequency by `factor`. `llama3` divides those whose wavelength is longer than
    `original_max_position_embeddings / low_freq_factor`, keeps those shorter than `.../high_freq_factor`, and blends
    between (Llama 3.1 model card; transformers' `rope_utils`). `yarn` divides those that turn less than `beta_slow`
    times over `original_max_position_embeddings`, keeps those that turn more than `beta_fast` times, blends between by
    dimension (whole dimensions with `truncate`), and multiplies cos and sin by `attention_factor` (arXiv:2309.00071).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer: sizes in elements, positions in tokens; by itself, one of plain attention and MLPs.

    Attributes:
        family: `model_type`, for messages.
        attention_bias: q, k and v projections have a bias. output_bias: so has the output projection.
        mlp_bias: all three MLP projections have a bias.
        qk_norm: queries and keys are RMS-normalised per head before rotation (Qwen3).
        sliding_window: a layer sees only the last so many tokens, itself included; None sees all.
        sliding_layers: which layers have the window, one flag each; None: all.
        attention_chunk, chunked_layers: the layers that see the tokens of their own chunk of so many alone; None and
            empty: there are none.
        local_rope_theta: of the layers with a window, whose frequencies are not scaled; None: as the others.
        attention_scale: of q . k; None: 1 / sqrt(head_dim). soft_cap: of the scores. logit_cap: of the logits.
        norms_plus_one: norms multiply by 1 + weight.
        embedding_scale: of the embeddings. logit_scale: of the last hidden states.
        sinks: one more logit a head in every softmax.
        rotary_dim: elements of a head that are rotated, the first ones, of latent attention the last; None: all.
        latent_dim: a token keeps one row of `head_dim` elements for all heads, whose first so many are its value too;
            None: K and V of `num_kv_heads`.
        index_dim, index_count: elements of an indexer's key, which a token keeps besides, and how many tokens it
            selects; None and 0: there is none.
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
    sliding_layers: tuple[bool, ...] | None = None
    attention_chunk: int | None = None
    chunked_layers: tuple[int, ...] = ()
    local_rope_theta: float | None = None
    attention_scale: float | None = None
    soft_cap: float | None = None
    logit_cap: float | None = None
    norms_plus_one: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    sinks: bool = False
    rotary_dim: int | None = None
    latent_dim: int | None = None
    index_dim: int | None = None
    index_count: int = 0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelError(f"{name} must be an integer of at least 1, found {value!r}")
            if value > largest:
                raise ModelError(f"{name} must be at most {largest:,}, found {value:,}; is config.json damaged?")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} query heads are not a multiple of {self.num_kv_heads} kv heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even and at least 2, found {self.head_dim}")
        if self.rotary_dim is not None and (self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim):
            raise ModelError(f"rotary_dim must be even and 2 to head_dim {self.head_dim}, found {self.rotary_dim}")
        if self.dtype not in DTYPES:
            raise ModelError(f"no model dtype '{self.dtype}'; supported: {', '.join(DTYPES)}")

    def undivided(self, size: int) -> tuple[str, ...]:
        """What else keeps the model from being divided over so many ranks, in a sentence each."""
        return ()

    def divided(self, share: Callable[[int], int]) -> dict[str, Any]:
        """The fields that differ in one rank's part, which has `share(n)` of n heads or columns."""
        return {name: share(getattr(self, name)) for name in ("num_heads", "num_kv_heads", "intermediate_size")}

    @property
    def rotates_plainly(self) -> bool:
        """Whether every layer rotates its queries and keys whole and in halves, and attends to them as they are then:
        a backend may do it."""
        return self.rotary_dim is None

    def slides(self, layer: int) -> bool:
        """Whether that layer has the sliding window."""
        if self.sliding_window is None:
            return False
        return self.sliding_layers is None or self.sliding_layers[layer]

    def window(self, layer: int) -> int | None:
        """The sliding window of that layer, tokens; None: it sees all."""
        return self.sliding_window if self.slides(layer) else None

    def chunk(self, layer: int) -> int | None:
        """The attention chunk of that layer, tokens; None: it has none."""
        return self.attention_chunk if layer in self.chunked_layers else None

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that have K and V."""
        return tuple(range(self.num_layers))

    @property
    def state_layers(self) -> tuple[int, ...]:
        """The layers that keep a recurrent state: see `framework.model.layers.Recurrence`."""
        return ()

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of one such layer's state, of a model whose numbers have `itemsize` bytes."""
        return 0

    @property
    def window_of_all_layers(self) -> int | None:
        """Tokens that a token reads in any layer, itself included, where every layer has a window; else None."""
        return self.sliding_window if all(map(self.slides, range(self.num_layers))) else None
