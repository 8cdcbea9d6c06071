"""Paged-attention problems for backends to be tried on: what varies in them, and how one is built."""

# Shapes: T query tokens (packed)  B rows  N blocks  S tokens a block  M blocks a table row
#         H query heads  K kv heads  D head dim  V value dim  C context length

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from framework.interfaces.backend import AttentionSpec, Batch, LayerKV
from framework_testing.oracles.attention import alibi_slopes_for

if TYPE_CHECKING:
    from torch import Tensor

NULL_FILL = 1e4


@dataclass(frozen=True, slots=True)
class Case:
    """One problem: a spec, and each row's context length and number of queries (tokens), decode rows first."""

    spec: AttentionSpec
    contexts: tuple[int, ...]
    queries: tuple[int, ...]
    seed: int = 0

    def __str__(self) -> str:
        s = self.spec
        optional = [field for field in fields(s) if field.default is not MISSING and field.name != "layout"]
        changed = [f.name for f in optional if getattr(s, f.name) != f.default]
        extras = [name if getattr(s, name) is True else f"{name} {getattr(s, name)}" for name in changed]
        return (
            f"block size {s.block_size}, heads {s.num_heads}/{s.num_kv_heads}/{s.head_dim}, {s.dtype}, {s.layout}, "
            f"{', '.join(extras) or 'plain'}, contexts {list(self.contexts)}, queries {list(self.queries)}, "
            f"seed {self.seed}"
        )


@dataclass(slots=True)
class Problem:
    """A case with its tensors, ready for `attend`."""

    case: Case
    q: Tensor
    pool: LayerKV
    batch: Batch

    @property
    def spec(self) -> AttentionSpec:
        return self.case.spec


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def build_problem(
    case: Case,
    device: str = "cpu",
    *,
    fill: float = float("nan"),
    placement: int = 0,
    extra_blocks: int = 3,
    extra_width: int = 2,
    scale_q: float = 1.0,
) -> Problem:
    """Place the case's tokens into scattered blocks of a pool whose every other slot holds `fill`.

    Args:
        fill: what unused slots and unused blocks hold. The null block holds 1e4: finite, and wrong to weigh.
        placement: seed of the physical block ids; the tokens do not depend on it.
        extra_blocks: blocks no row uses.
        extra_width: entries of 0 at the end of the longest table row.
        scale_q: the queries are multiplied by it.
    """
    spec, size = case.spec, case.spec.block_size
    generator = torch.Generator().manual_seed(case.seed)
    counts = [-(-context // size) for context in case.contexts]
    total = 1 + sum(counts) + extra_blocks
    width = max([1, *counts]) + extra_width
    order = np.random.default_rng(placement).permutation(np.arange(1, total))
    tables = torch.zeros(len(counts), width, dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        tables[row, :count] = torch.from_numpy(order[start : start + count].astype(np.int32))
        start += count
    pool = _empty_pool(spec, total, fill)
    for row, context in enumerate(case.contexts):
        shape = (context, spec.num_kv_heads, spec.head_dim)
        slots = tables[row].long().repeat_interleave(size)[:context] * size + torch.arange(size).repeat(width)[:context]
        for stored, scale in [(pool.k, pool.k_scale), (pool.v, pool.v_scale)][: 1 if pool.is_latent else 2]:
            place(stored, torch.randn(shape, generator=generator), slots, scale, pool.layout, size)
        if pool.index is not None:
            keys = torch.randn(context, pool.index.shape[-1], generator=generator)
            place(pool.index, keys, slots, None, "NHD", size)
    tokens = sum(case.queries)
    packed = torch.randn(tokens, spec.num_heads + 2, spec.head_dim, generator=generator) * scale_q
    q = packed.to(torch_dtype(spec.dtype)).to(device)[:, 1:-1]  # a slice of a packed qkv: not contiguous in T
    return Problem(case, q, _to(pool, device), batch_of(case, tables, device))


def _empty_pool(spec: AttentionSpec, num_blocks: int, fill: float) -> LayerKV:
    heads, dim, size = spec.num_kv_heads, spec.head_dim, spec.block_size
    shape = (num_blocks, size, heads, dim) if spec.layout == "NHD" else (num_blocks, heads, size, dim)
    dtype = torch_dtype(spec.kv_dtype or spec.dtype)
    most = 448.0 if dtype.itemsize == 1 else math.inf  # that an 8-bit float holds
    sinks = torch.randn(spec.num_heads, generator=torch.Generator().manual_seed(3)) if spec.sinks else None
    slopes = alibi_slopes_for(spec.num_heads) if spec.alibi else None

    def scaled(seed: int) -> tuple[Tensor, Tensor | None]:
        if spec.kv_dtype == "int8":
            scale = torch.full(shape[:-1], fill / 127)
            scale[0] = NULL_FILL / 127
            return torch.full(shape, 127, dtype=torch.int8), scale
        values = torch.full(shape, min(fill, most))  # NaN stays NaN
        values[0] = min(NULL_FILL, most)
        scale = torch.rand(heads, generator=torch.Generator().manual_seed(seed)) * 0.05 + 0.02
        return values.to(dtype), scale if dtype.itemsize == 1 else None

    (k, k_scale), (v, v_scale) = scaled(1), scaled(2)
    if spec.latent_dim is not None:
        pool = LayerKV.of_rows(k, spec.latent_dim, spec.layout, k_scale)
        pool.sinks, pool.alibi_slopes = sinks, slopes
        if spec.index_dim is not None:
            pool.index = torch.full((num_blocks, size, spec.index_dim), fill, dtype=torch_dtype(spec.dtype))
            pool.index[0] = NULL_FILL
        return pool
    return LayerKV(k, v, spec.layout, k_scale, v_scale, sinks, slopes)


def place(stored: Tensor, values: Tensor, slots: Tensor, scale: Tensor | None, layout: str, size: int) -> None:
    """Values (T, K, D) into a pool, each token at its slot: the kit leans on no backend's `write`.

    A pool with a scale a token gets that too: of each token and head the largest magnitude over 127.
    """
    token_scales = None
    if scale is not None and scale.dim() == 3:
        token_scales = values.float().abs().amax(-1) / 127
        values = (values.float() / token_scales[..., None]).round()
    elif scale is not None:
        values = values / scale[None, :, None]
    values = values.to(stored.dtype)
    if stored.dtype.itemsize == 1:  # torch indexes no float8
        stored, values = stored.view(torch.uint8), values.view(torch.uint8)
    index = places(slots, size, layout)
    stored[index] = values
    if scale is not None and token_scales is not None:
        scale[index] = token_scales


def places(slots: Tensor, size: int, layout: str) -> tuple[Any, ...]:
    """The index of these slots in the K or V of a pool with blocks of `size` tokens."""
    return (slots // size, slots % size) if layout == "NHD" else (slots // size, slice(None), slots % size)


def _to(pool: LayerKV, device: str) -> LayerKV:
    values = ((field.name, getattr(pool, field.name)) for field in fields(pool))
    moved: dict[str, Any] = {name: value.to(device) for name, value in values if torch.is_tensor(value)}
    if pool.is_latent:
        moved["v"] = moved["k"][..., : pool.v.shape[-1]]
    return replace(pool, **moved)


def batch_of(case: Case, tables: Tensor, device: str) -> Batch:
    """The batch of a case whose rows have these block tables (B, M) int32; every query is to be written to its slot."""
    size, slots = case.spec.block_size, list[int]()
    for row, (context, queries) in enumerate(zip(case.contexts, case.queries, strict=True)):
        for position in range(context - queries, context):
            slots.append(int(tables[row, position // size]) * size + position % size if position >= 0 else -1)
    slot_mapping = torch.tensor(slots, dtype=torch.int64, device=device)
    return Batch.of(tables.to(device), slot_mapping, case.contexts, case.queries)


def single_row(problem: Problem, row: int) -> Problem:
    """The problem of one row alone, with the same pool."""
    batch = problem.batch
    first, last = (int(start) for start in batch.host_query_starts[row : row + 2])
    context = int(batch.host_context_lens[row])
    single = Batch.of(batch.block_tables[row : row + 1], batch.slot_mapping[first:last], (context,), (last - first,))
    case = replace(problem.case, contexts=(context,), queries=(last - first,))
    return Problem(case, problem.q[first:last], problem.pool, single)


def pairwise(
    factors: Mapping[str, Sequence[Any]], valid: Callable[[dict[str, Any]], bool] = lambda row: True
) -> list[dict[str, Any]]:
    """Few choices such that every two values of two factors meet in one of them, where `valid` allows it.

    Greedy and deterministic: of some random rows that hold a pair still missing, the one that holds most such pairs.
    Pairs that occur in invalid rows only are dropped.
    """
    draw, names, rows = random.Random(0), list(factors), list[dict[str, Any]]()
    columns = list(itertools.combinations(range(len(names)), 2))
    missing = {
        (a, i, b, j) for a, b in columns for i in range(len(factors[names[a]])) for j in range(len(factors[names[b]]))
    }
    while missing:
        a, i, b, j = min(missing)
        best: dict[str, Any] = {}
        most = {(a, i, b, j)}
        for _ in range(64):
            choices = [draw.randrange(len(values)) for values in factors.values()]
            choices[a], choices[b] = i, j
            gain = {(c, choices[c], d, choices[d]) for c, d in columns} & missing
            row = {name: factors[name][place] for name, place in zip(names, choices, strict=True)}
            if (not best or len(gain) > len(most)) and valid(row):
                best, most = row, gain
        missing -= most
        rows += [best] if best else []
    return rows


LENGTHS: dict[str, Callable[[int], list[int]]] = {
    "ragged": lambda size: [1, size, 5 * size + 3, 0, size - 1, 2 * size + 1, size + 1],
    "5P+3": lambda size: [5 * size + 3],
    "P+1": lambda size: [size + 1],
    "P": lambda size: [size],
    "P-1": lambda size: [size - 1],
    "2P+1": lambda size: [2 * size + 1],
    "1": lambda size: [1],
    "0": lambda size: [0],
    "edges": lambda size: [size + 1, size - 1, 0, 2 * size + 1],
}
"""Name -> context lengths (tokens) of a batch, for a block size."""

WINDOWS: dict[str, Callable[[int], int | None]] = {
    "none": lambda size: None,
    "P-1": lambda size: max(size - 1, 1),
    "P": lambda size: size,
    "P+1": lambda size: size + 1,
    "1": lambda size: 1,
}
QUERIES = ("1", "mixed", "2", "5", "chunk")


def query_lengths(kind: str, contexts: Sequence[int], size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(contexts, queries), decode rows first. "chunk": the last P + 2 positions; "mixed": every other row a chunk."""
    wanted = {"1": 1, "2": 2, "5": 5, "chunk": size + 2, "mixed": size + 2}[kind]
    rows = []
    for index, context in enumerate(contexts):
        queries = 1 if kind == "mixed" and index % 2 == 0 and len(contexts) > 1 else min(wanted, max(context, 1))
        rows.append((context, queries))
    rows.sort(key=lambda row: row[1] != 1)
    return tuple(row[0] for row in rows), tuple(row[1] for row in rows)
