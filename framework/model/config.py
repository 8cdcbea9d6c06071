"""The shape of a decoder-only transformer, within bounds that this framework can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.errors import ModelError

FAMILIES = (
    "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss",
    "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "minicpm3",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16", "float64")

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
class RoutingConfig:
    """How DeepSeek V3 chooses experts: sigmoid scores, a bias for the choice alone, and the best groups first.

    Attributes:
        num_groups, groups_per_token: experts in groups of equal size, and from how many of them a token may choose.
        scaling: of the chosen weights.
    """

    num_groups: int
    groups_per_token: int
    scaling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Routed experts in place of a layer's MLP.

    Attributes:
        count, per_token: experts, and how many of them a token goes through.
        intermediate_size: of one expert.
        renormalise: the weights of the chosen experts sum to 1; else they are what a softmax over all gives them.
        bias: the router and all projections have one.
        clamped: gpt-oss's activation, with gate and up interleaved.
        routing: None: by a softmax.
        shared_size: intermediate size of the MLP that every token goes through beside its experts; 0: there is none.
        shared_gate: what that MLP gives is multiplied by the sigmoid of a gate, one for each token.
        first_layer: the layers before it have an MLP alone.
    """

    count: int
    per_token: int
    intermediate_size: int
    renormalise: bool = True
    bias: bool = False
    clamped: bool = False
    routing: RoutingConfig | None = None
    shared_size: int = 0
    shared_gate: bool = False
    first_layer: int = 0

    def __post_init__(self) -> None:
        if self.routing is not None:
            groups = self.routing.num_groups
            if self.count % groups or not 1 <= self.routing.groups_per_token <= groups or self.count < 2 * groups:
                raise ModelError(
                    f"{self.routing.groups_per_token} of {groups} groups of {self.count} experts: groups are of equal "
                    "size, at least 2, and no more are chosen than there are"
                )
        if not 1 <= self.per_token <= self.count <= 2**14 or not 1 <= self.intermediate_size <= 2**24:
            raise ModelError(
                f"a token goes through {self.per_token} of {self.count} experts of {self.intermediate_size} elements: "
                "each must be at least 1, and no more chosen than there are"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig:
    """Layers with a recurrent state in place of attention: the gated delta rule of Qwen3-Next and 3.5.

    Attributes:
        layers: which layers, one flag each.
        num_key_heads, num_value_heads: each key head serves equally many value heads.
        key_dim, value_dim: elements of a head.
        kernel: tokens that the convolution before it reads, the present one included.
        by_key_head: what goes in is projected key head by key head, all that belongs to one together (Qwen3-Next).
    """

    layers: tuple[bool, ...]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    by_key_head: bool = False

    def __post_init__(self) -> None:
        sizes = (self.num_key_heads, self.num_value_heads, self.key_dim, self.value_dim)
        if not all(1 <= size <= 2**12 for size in sizes) or not 2 <= self.kernel <= 64:
            raise ModelError(f"a recurrent layer of heads and sizes {sizes} with a kernel of {self.kernel} tokens: "
                             "sizes are 1 to 4,096, a kernel 2 to 64")  # fmt: skip
        if self.num_value_heads % self.num_key_heads:
            raise ModelError(f"{self.num_value_heads} value heads are not a multiple of {self.num_key_heads} key heads")
        if not any(self.layers) or all(self.layers):
            raise ModelError("a model with recurrent layers has layers of full attention beside them")

    @property
    def num_channels(self) -> int:
        """Elements a token that the convolution reads: queries, keys, values."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of one layer's state: a float32 memory, and the convolution's last inputs of `itemsize` bytes each."""
        memory = self.num_value_heads * self.key_dim * self.value_dim
        return 4 * memory + itemsize * self.num_channels * (self.kernel - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """An indexer: its heads, the elements of its keys, and how many tokens it selects."""

    num_heads: int
    dim: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention: a token keeps one latent and one rotated key for all heads.

    Attributes:
        query_rank: of the queries' own latent; None: queries are projected at once.
        latent_dim: elements of the latent, `kv_lora_rank`.
        nope_dim, rope_dim: elements of a head's queries and keys that are not and that are rotated.
        value_dim: elements of a head's values.
        interleaved: what is rotated are the pairs (2i, 2i + 1).
        index: of an indexer, where attention is to the tokens that it selects alone.
    """

    query_rank: int | None
    latent_dim: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool
    index: IndexConfig | None = None

    def __post_init__(self) -> None:
        sizes = (self.query_rank or 1, self.latent_dim, self.nope_dim, self.rope_dim, self.value_dim)
        if not all(1 <= size <= 2**16 for size in sizes) or self.rope_dim % 2:
            raise ModelError(f"latent attention of sizes {sizes}: each must be 1 to 65,536, and what is rotated even")
        if self.index is not None and self.query_rank is None:
            raise ModelError("an indexer reads the queries' own latent, and there is none: q_lora_rank is missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer of one of `FAMILIES`. Sizes in elements, positions in tokens.

    Attributes:
        attention_bias: q, k and v projections have a bias. output_bias: so has the output projection.
        mlp_bias: all three MLP projections have a bias.
        qk_norm: queries and keys are RMS-normalised per head before rotation (Qwen3).
        sliding_window: a layer sees only the last so many tokens, itself included; None sees all.
        sliding_layers: which layers have the window, one flag each; None: all.
        local_rope_theta: of the layers with a window, whose frequencies are not scaled; None: as the others.
        attention_scale: of q . k; None: 1 / sqrt(head_dim). soft_cap: of the scores. logit_cap: of the logits.
        activation: of the gate.
        norms_plus_one: norms multiply by 1 + weight. sandwich_norms: attention and MLP end in a norm of their own.
        embedding_scale: of the embeddings. residual_scale: of what a layer's attention and MLP add.
        logit_scale: of the last hidden states.
        sinks: one more logit a head in every softmax.
        experts: in place of each layer's MLP.
        recurrent: layers without attention; None: there are none.
        latent: multi-head latent attention; `num_kv_heads` is then 1, and `head_dim` that of a head's queries.
        rotary_dim: elements of a head that are rotated, the first ones, of latent attention the last; None: all.
        output_gate: what attention gives is multiplied by the sigmoid of a gate, one for each element.
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
    local_rope_theta: float | None = None
    attention_scale: float | None = None
    soft_cap: float | None = None
    logit_cap: float | None = None
    activation: Literal["silu", "gelu_tanh"] = "silu"
    norms_plus_one: bool = False
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    sinks: bool = False
    experts: ExpertsConfig | None = None
    recurrent: RecurrentConfig | None = None
    latent: LatentConfig | None = None
    rotary_dim: int | None = None
    output_gate: bool = False
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
        if self.family not in FAMILIES:
            raise ModelError(f"no model family '{self.family}'; supported: {', '.join(FAMILIES)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} query heads are not a multiple of {self.num_kv_heads} kv heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even and at least 2, found {self.head_dim}")
        if self.rotary_dim is not None and (self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim):
            raise ModelError(f"rotary_dim must be even and 2 to head_dim {self.head_dim}, found {self.rotary_dim}")
        if self.dtype not in DTYPES:
            raise ModelError(f"no model dtype '{self.dtype}'; supported: {', '.join(DTYPES)}")

    def slides(self, layer: int) -> bool:
        """Whether that layer has the sliding window."""
        if self.sliding_window is None:
            return False
        return self.sliding_layers is None or self.sliding_layers[layer]

    def window(self, layer: int) -> int | None:
        """The sliding window of that layer, tokens; None: it sees all."""
        return self.sliding_window if self.slides(layer) else None

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that have K and V: all but the recurrent ones."""
        states = (False,) * self.num_layers if self.recurrent is None else self.recurrent.layers
        return tuple(layer for layer, state in enumerate(states) if not state)

    @property
    def window_of_all_layers(self) -> int | None:
        """Tokens that a token reads in any layer, itself included, where every layer has a window; else None."""
        return self.sliding_window if all(map(self.slides, range(self.num_layers))) else None
