"""Values that attention backends work with: specifications, capabilities, and the tensors of a step."""

# Shapes: T query tokens (packed)  B requests  N blocks in the pool, the null block included  S tokens a block
#         M blocks a table row     H query heads  K kv heads  D head dim  V value dim

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAYOUTS = ("NHD", "HND")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The shape of one model's attention over one pool. dtypes are torch's names ("float32", "bfloat16").

    For a query at position p and a key at position j <= p, in this order: score = scale * (q . k); with `soft_cap`,
    soft_cap * tanh(score / soft_cap); with `alibi`, plus slope * (j - p). With `sliding_window` w only the w keys
    p - w < j <= p take part, the query's own among them, with `attention_chunk` c those of its chunk of c positions,
    p // c * c <= j <= p; a layer has one of the two. With `sinks` one more logit a head joins the denominator.
    `kv_dtype` is that of K and V in the pool where it is not `dtype`: a float, "float8_e4m3fn" or "int8"; see LayerKV.

    With `latent_dim` the cache is latent (multi-head latent attention, arXiv:2405.04434 section 2.1): a token keeps one
    row for all heads, its latent and then its rotated key, `head_dim` elements in all. The row is K, its first
    `latent_dim` elements are V, and `num_kv_heads` is 1. With `index_dim` a token keeps the key of an indexer as well,
    in `dtype`, by which `AttentionBackend.select` chooses the tokens that are attended to.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    kv_dtype: str | None = None
    layout: str = "NHD"
    scale: float | None = None
    sliding_window: int | None = None
    attention_chunk: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    latent_dim: int | None = None
    index_dim: int | None = None

    @property
    def value_dim(self) -> int:
        """V: elements of a head's output."""
        return self.latent_dim or self.head_dim

    @property
    def planes(self) -> dict[str, int]:
        """What a token keeps in a layer: elements by name, all heads together."""
        if self.latent_dim is None:
            return dict.fromkeys(("k", "v"), self.num_kv_heads * self.head_dim)
        widths = {"latent": self.latent_dim, "rope": self.head_dim - self.latent_dim, "index": self.index_dim or 0}
        return {name: width for name, width in widths.items() if width}

    @property
    def vectors(self) -> int:
        """Vectors of K and V that a token keeps in a layer, each with a scale of its own in an int8 pool."""
        return 2 * self.num_kv_heads if self.latent_dim is None else 1

    def first_seen(self, query: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """The first position that takes part for a query at each of these, of a window or a chunk; else 0.

        A row without tokens has its query at -1, and 0 too.
        """
        if self.attention_chunk is not None:
            first = query // self.attention_chunk * self.attention_chunk
        else:
            first = query + 1 - (query + 1 if self.sliding_window is None else self.sliding_window)
        seen: npt.NDArray[np.integer] = np.maximum(0, first)
        return seen

    @property
    def softmax_scale(self) -> float:
        """`scale`, or 1 / sqrt(head_dim)."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a backend gives up on purpose: its output differs from exact attention over the K and V it was given.

    Attributes:
        max_error: largest difference of an output element, as a share of the largest magnitude in the row's V.
        reason: what is given up and for what, in a few words: "K and V are read as int8".
    """

    max_error: float
    reason: str

    def __post_init__(self) -> None:
        if not 0.0 < self.max_error < 1.0:
            raise InvalidArgument(f"max_error must be a share above 0 and below 1, found {self.max_error}")
        if not self.reason.strip():
            raise InvalidArgument("a loss needs a reason: what is given up, and for what")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do. None means any.

    Attributes:
        head_dims, dtypes, kv_dtypes, devices, layouts: allowed values. `kv_dtypes` None means: that of q only.
        block_size_multiple_of, max_block_size: rule for the block size, tokens.
        features: of {"sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi", "latent", "lse", "rope"};
            "latent": caches with `latent_dim`, for which `head_dims` says nothing; "rope": `rotate_and_write` is one
            pass, worth calling instead of rotating and `write`.
        batch_invariant: a row's output does not depend, bit for bit, on the other rows of the batch.
        graph_safe: `plan`, `write` and `attend` read no lengths on the host and wait for nothing; launches depend on
            shapes and host bounds only. The engine then captures all three in the CUDA graph of a decode step, whose
            batch stays the same object, and replays them with other values; framework_testing.attention_runs checks it.
        lossy: what the backend loses on purpose; None: nothing but rounding. The kit then allows that much more, and a
            serve run reports agreement with the dense model, logit error, KL divergence and attention error instead
            of asking for equal tokens. What is lost and not declared is an error.
        simulated_devices: of `devices`, where the kernels run in a simulator (Triton's interpreter): right, and a time
            taken there says nothing. Kernel mode never times them.
    """

    dtypes: frozenset[str]
    devices: frozenset[str]
    head_dims: frozenset[int] | None = None
    kv_dtypes: frozenset[str] | None = None
    layouts: frozenset[str] = frozenset({"NHD"})
    block_size_multiple_of: int = 1
    max_block_size: int | None = None
    features: frozenset[str] = frozenset()
    batch_invariant: bool = False
    graph_safe: bool = False
    simulated_devices: frozenset[str] = frozenset()
    lossy: Loss | None = None

    def reasons_against(self, spec: AttentionSpec, device: str) -> list[str]:
        """One sentence for each thing asked that is not offered; empty when all is."""
        reasons = []

        def need(what: str, asked: object, allowed: frozenset[str] | frozenset[int] | None) -> None:
            if allowed is not None and asked not in allowed:
                offered = ", ".join(str(value) for value in sorted(allowed, key=str)) or "none"
                reasons.append(f"{what} {asked} is not supported; supported: {offered}")

        need("device", device.split(":")[0], self.devices)
        need("dtype", spec.dtype, self.dtypes)
        if spec.kv_dtype not in (None, spec.dtype):
            need("KV dtype", spec.kv_dtype, (self.kv_dtypes or frozenset()) | {spec.dtype})
        if spec.latent_dim is None:
            need("head dim", spec.head_dim, self.head_dims)
        else:
            reasons += self._reasons_against_latent(spec, spec.latent_dim)
        need("layout", spec.layout, self.layouts)
        step = self.block_size_multiple_of
        if spec.block_size % step:
            nearest = max(1, round(spec.block_size / step)) * step
            reasons.append(f"block size {spec.block_size} is not a multiple of {step}; nearest: {nearest}")
        if self.max_block_size is not None and spec.block_size > self.max_block_size:
            reasons.append(f"block size {spec.block_size} is larger than {self.max_block_size}")
        for feature in ("sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi"):
            if getattr(spec, feature) and feature not in self.features:
                reasons.append(f"{feature} is not supported")
        if spec.num_heads % spec.num_kv_heads:
            reasons.append(f"{spec.num_heads} query heads are not a multiple of {spec.num_kv_heads} kv heads")
        return reasons

    def _reasons_against_latent(self, spec: AttentionSpec, latent_dim: int) -> list[str]:
        if "latent" not in self.features:
            return [f"a latent cache (one row of {spec.head_dim} for all heads, of which {latent_dim} are V) is not "
                    "supported"]  # fmt: skip
        if spec.num_kv_heads != 1 or not 1 <= latent_dim <= spec.head_dim:
            return [f"a latent cache has one row for all heads, and its latent is part of it: found "
                    f"{spec.num_kv_heads} kv heads, {latent_dim} of {spec.head_dim} elements"]  # fmt: skip
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """What one kernel takes, compiled ahead of time for a chip that need not be here. Nothing in it is a time.

    Attributes:
        arch: the chip, such as "sm_90".
        registers, stack_bytes: of a thread.
        spills: instructions that move registers to or from memory.
        shared_bytes: of a block of threads.
        matrix_instructions: the kind used, such as "HGMMA"; empty for none.
        async_loads: instructions that copy from global to shared memory past the registers.
        source: where the numbers come from, such as "compiled now, triton 3.9.0".
    """

    name: str
    arch: str
    registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    matrix_instructions: str
    async_loads: int
    source: str


@dataclass(frozen=True, slots=True)
class Rope:
    """The angles of a rotary embedding, for the tokens of a step.

    The pair (a, b) of a head becomes (a cos - b sin, b cos + a sin); the pairs of D elements are (i, i + D / 2), or
    (2i, 2i + 1) where `interleaved`. Source: Su et al. 2021, arXiv:2104.09864.

    Attributes:
        cos, sin: (P, D / 2), floating point.
        positions: (T,) int64, each token's row of cos and sin; None: P = T, and a token has its own row.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None
    interleaved: bool = False


@dataclass(slots=True)
class LayerKV:
    """The KV pool of one layer. Block 0 is the null block: finite, never written.

    Attributes:
        k, v: (N, S, K, D) when layout is "NHD", (N, K, S, D) when "HND". Possibly more than 2**31 elements. Of a latent
            cache v is a view, k's first V elements: see `of_rows`.
        k_scale, v_scale: float32, value = stored * scale: (K,), of a head, for fp8 pools; of a token and head for int8
            pools, (N, S, K) or (N, K, S) as the layout has it, written and copied with the block; else None.
        sinks, alibi_slopes: (H,) float32, the layer's own, when the spec has `sinks` or `alibi`, else None.
        index: (N, S, `index_dim`), an indexer's keys, when the spec has `index_dim`, else None.
        is_latent: v is a view of k.
    """

    k: Tensor
    v: Tensor
    layout: str = "NHD"
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    index: Tensor | None = None
    is_latent: bool = False

    @classmethod
    def of_rows(
        cls,
        rows: Tensor,
        latent_dim: int,
        layout: str = "NHD",
        scale: Tensor | None = None,
        index: Tensor | None = None,
    ) -> LayerKV:
        """The planes of a latent cache: rows (N, S, 1, D) or (N, 1, S, D), and what they are scaled by."""
        return cls(rows, rows[..., :latent_dim], layout, scale, scale, index=index, is_latent=True)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that a block has, each tensor once: K and V or rows, tokens' scales, an indexer's keys; (N, ...)."""
        names = ("k", "k_scale", "index") if self.is_latent else ("k", "v", "k_scale", "v_scale", "index")
        present = {name: stored for name in names if (stored := getattr(self, name)) is not None}
        return {name: stored for name, stored in present.items() if stored.dim() > 1}  # an fp8 pool's scales are heads'

    def index_of(self, table: npt.NDArray[np.int32], slots: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Where `k`, `v` and tokens' scales have these slots (K or 1, n) of each head of a request with this table:
        `k[index]` is (K, n, D)."""
        import torch

        heads = np.arange(self.k.shape[2 if self.layout == "NHD" else 1])[:, None]
        blocks, places = table[slots // self.block_size], slots % self.block_size
        order = (blocks, places, heads) if self.layout == "NHD" else (blocks, heads, places)
        block, second, third = (torch.from_numpy(one.astype(np.int64)).to(self.k.device) for one in order)
        return block, second, third

    def values_at(self, index: tuple[Tensor | int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """K and V (K, n, D) at an `index` of `index_of`, multiplied by their scales where they have any."""

        def read(stored: Tensor, scale: Tensor | None) -> Tensor:
            values = stored[index]
            if scale is not None:  # of each token and head in int8 pools, of each head in fp8 pools
                values = values.float() * (scale[index][..., None] if scale.dim() > 1 else scale[:, None, None])
            return values.to(dtype)

        return read(self.k, self.k_scale), read(self.v, self.v_scale)

    def move(self, source: tuple[Tensor | int, ...], destination: tuple[Tensor | int, ...]) -> None:
        """What tokens have at one `index_of`, `source`, goes to another."""
        heads = 2 if self.layout == "NHD" else 1
        for name, stored in self.tensors.items():
            if name == "index":  # one key for all heads, whatever the layout
                places = [[part for number, part in enumerate(one) if number != heads] for one in (source, destination)]
                stored[tuple(places[1])] = stored[tuple(places[0])]
            else:
                stored[destination] = stored[source]

    @property
    def num_blocks(self) -> int:
        """N, the null block included."""
        return int(self.k.shape[0])

    @property
    def block_size(self) -> int:
        """S."""
        return int(self.k.shape[1 if self.layout == "NHD" else 2])


@dataclass(slots=True)
class Batch:
    """One step's ragged batch: chunked prefill and decode rows together. All tensors on the pool's device.

    Row b's queries are the last `query_starts[b+1] - query_starts[b]` positions of its context; query i of a row with
    q queries and context c attends to positions 0 .. c - q + i. The first `num_decodes` rows have one query each.

    Attributes:
        block_tables: (B, M) int32. Entries past a row's context are 0, the null block.
        context_lens: (B,) int32, tokens, this step's included. 0 is allowed: the row has no output.
        query_starts: (B + 1,) int32, row b's first packed query.
        slot_mapping: (T,) int64, where each new token's K and V go; -1 for padding: not written.
        max_query_len, max_context_len: host integers, upper bounds over the rows.
        num_decodes: leading rows with one query.
        host_context_lens, host_query_starts: the same numbers on the host, for backends that are not graph-safe.
    """

    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_context_len: int
    num_decodes: int
    host_context_lens: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    host_query_starts: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @classmethod
    def of(cls, block_tables: Tensor, slot_mapping: Tensor, contexts: Sequence[int], queries: Sequence[int]) -> Batch:
        """The batch of rows of so many tokens of context and queries; lengths go to the tables' device as well."""
        import torch

        lengths, starts = np.array(contexts, np.int32), np.array([0, *accumulate(queries)], np.int32)
        context_lens, query_starts = (torch.tensor(array, device=block_tables.device) for array in (lengths, starts))
        num_decodes = sum(1 for _ in takewhile(lambda count: count == 1, queries))
        longest, farthest = max(queries, default=0), max(contexts, default=0)
        return cls(
            block_tables, context_lens, query_starts, slot_mapping, longest, farthest, num_decodes, lengths, starts
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What `DenseBackend.attend_one` may know of the row it is given.

    Attributes:
        spec: of the model's attention.
        context: tokens, the queries' own included; at least 1.
        queries: the last positions of the context.
        sinks, alibi_slopes: (H,) float32, when the spec has them.
    """

    spec: AttentionSpec
    context: int
    queries: int
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of the queries (Tq, 1) and of the keys (1, C), int64."""
        import torch

        query = torch.arange(self.context - self.queries, self.context, device=device)
        return query[:, None], torch.arange(self.context, device=device)[None, :]

    def visible(self, device: torch.device) -> Tensor:
        """Which keys each query sees: (Tq, C) bool; causal, and within the window or chunk if there is one."""
        query, key = self.positions(device)
        seen = key <= query
        if self.spec.sliding_window is not None:
            seen &= key > query - self.spec.sliding_window
        if self.spec.attention_chunk is not None:
            seen &= key >= query // self.spec.attention_chunk * self.spec.attention_chunk
        return seen
