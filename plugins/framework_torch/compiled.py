"""Decode attention that inductor turns into C++ loops: K and V are read once, through the block tables, not copied."""

# Shapes: T query tokens (packed)  R decode rows  P chunks of context  L tokens a chunk  X chunks of the longest row
#         H query heads  K kv heads  G = H / K  D head dim  N blocks  S tokens a block

from __future__ import annotations

import functools
import math
import os
import shutil
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionSpec, Batch, LayerKV

CHUNK = 64
"""L. Long enough that partial results are a fiftieth of the KV, short enough that padding a row costs little."""

_CHUNKS_AT_ONCE = 4096
"""Rows are taken together up to so many chunks, which bounds the scores and partial results; a longer row is alone."""

_OPTIONS = {"assert_indirect_indexing": False}
"""Indices are computed here from checked lengths; inductor's own test of each one costs a fifth of the time."""

Arrays = npt.NDArray[np.int64]


def reasons_against(device: str) -> list[str]:
    """Why nothing can be compiled for `device`; empty when it can. Compiles nothing."""
    reasons = []
    if device.split(":")[0] != "cpu":
        reasons.append(f"compile=true is for the CPU, the device is {device}: use +backend=triton, or compile=false")
    if compiler() is None:
        reasons.append("torch.compile needs a C++ compiler and finds none: install g++, set CXX, or use compile=false")
    return reasons


def compiler() -> str | None:
    """The C++ compiler that inductor would take: CXX, else g++ or clang++; None when there is none."""
    return next(
        (path for name in (os.environ.get("CXX"), "g++", "clang++") if name and (path := shutil.which(name))), None
    )


@dataclass(frozen=True, slots=True)
class Chunks:
    """Some decode rows, cut into chunks of CHUNK tokens from the first that is seen.

    Attributes:
        tokens: (R,) int64, their packed queries.
        places: (P, L) int64, of each token in the flattened pool, kv head 0's; padding repeats the row's last token.
        values: (P, H, L) int64, as `places`, of each query head's V; (P, 0, L) where `embedding_bag` does not sum them.
        rows, counts, offsets: (P,) int64: a chunk's row among these, its tokens, and the first one's position less
            the query's (at most 0).
        merge: (at least R, at least X) int64, each row's chunks; -1 for none.
        lowest, highest: the least and the greatest block id that is read.
    """

    tokens: Tensor
    places: Tensor
    values: Tensor
    rows: Tensor
    counts: Tensor
    offsets: Tensor
    merge: Tensor
    lowest: int
    highest: int


def cut(spec: AttentionSpec, batch: Batch, rows: Arrays, contexts: Arrays, starts: Arrays) -> Iterator[Chunks]:
    """The decode rows `rows` of a batch in order, a bounded number of chunks at a time."""
    lengths = contexts[rows]
    spans = lengths - spec.first_seen(lengths - 1)
    counts = -(-spans // CHUNK)
    group = np.zeros(len(rows), dtype=np.int64)
    filled = last = 0
    for row, count in enumerate(counts.tolist()):
        if filled and filled + count > _CHUNKS_AT_ONCE:
            last, filled = last + 1, 0
        filled += count
        group[row] = last
    for number in range(last + 1):
        some = np.nonzero(group == number)[0]
        yield _cut(spec, batch, rows[some], lengths[some], spans[some], counts[some], starts)


def _cut(
    spec: AttentionSpec, batch: Batch, rows: Arrays, lengths: Arrays, spans: Arrays, counts: Arrays, starts: Arrays
) -> Chunks:
    size, tensor = spec.block_size, torch.from_numpy
    row = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = lengths[row] - spans[row] + number * CHUNK
    position = np.minimum(first[:, None] + np.arange(CHUNK), lengths[row, None] - 1)
    merge = np.full((max(2, len(rows)), max(2, int(counts.max()))), -1)
    merge[row, number] = np.arange(len(row))
    with torch.inference_mode():  # always, or never: the compiled function depends on it
        tables = batch.block_tables[tensor(rows)]
        block = tables[tensor(row)[:, None], tensor(position // size)].long()
        places = block * (size if spec.layout == "NHD" else spec.num_kv_heads * size) + tensor(position % size)
        lowest, highest = block.aminmax()
        head = torch.arange(_bagged_heads(spec)) // (spec.num_heads // spec.num_kv_heads)
        scale, step = (spec.num_kv_heads, 1) if spec.layout == "NHD" else (1, size)
        return Chunks(
            tensor(starts[rows]),
            _sized(places),
            _sized(places[:, None] * scale + head[:, None] * step),
            _sized(tensor(row).clone()),
            _sized(tensor(np.minimum(CHUNK, lengths[row] - first)).clone()),
            _sized(tensor(first - lengths[row] + 1).clone()),
            _sized(tensor(merge).clone(), 1),
            int(lowest),
            int(highest),
        )


def _bagged_heads(shape: AttentionSpec | _Key) -> int:
    """Query heads whose V `embedding_bag` sums: all, or none."""
    return shape.num_heads if shape.dtype == "float32" else 0


def _sized(tensor: Tensor, *others: int) -> Tensor:
    """The tensor, its first dimension and `others` declared of any size from 2 up; 1 would be compiled for itself."""
    if len(tensor) == 1:
        tensor = tensor.expand(2, *tensor.shape[1:]).contiguous()
    for dim in (0, *others):
        torch._dynamo.mark_dynamic(tensor, dim)
    return tensor


class CompiledDecode:
    """Attention of decode rows, compiled once for a shape of heads; batches, lengths and pools of any size follow.

    Construction compiles, in seconds (`compile_s`), unless this process has compiled the same before (0.0).

    Raises:
        Unsupported: the compiler failed; torch's message is in it.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        key = _Key(
            spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.block_size, spec.layout, spec.dtype,
            spec.softmax_scale, spec.soft_cap, spec.sinks, spec.alibi, torch.get_num_threads(),
        )  # fmt: skip
        before = _compiled.cache_info().misses
        try:
            self._run, seconds = _compiled(key)
        except RuntimeError as error:  # what torch raises for a compiler that fails
            raise Unsupported(f"torch.compile failed ({error}); use backend.compile=false") from error
        self.compile_s = seconds if _compiled.cache_info().misses > before else 0.0
        if self.compile_s:
            sys.stderr.write(f"torch backend: compiled the decode in {seconds:.1f} s\n")

    def __call__(self, q: Tensor, pool: LayerKV, chunks: Chunks, out: Tensor, lse: Tensor | None) -> None:
        """Write the rows' part of `out` (T, H, D) and, if asked for, of `lse` (T, H). The pool is contiguous.

        Raises:
            InvalidArgument: a block table names a block that the pool does not have.
        """
        if chunks.lowest < 0 or chunks.highest >= len(pool.k):
            wrong = chunks.lowest if chunks.lowest < 0 else chunks.highest
            raise InvalidArgument(f"a block table names block {wrong}, the pool has blocks 0 to {len(pool.k) - 1}")
        with torch.inference_mode():
            tokens = chunks.tokens
            where = (chunks.places, chunks.values, chunks.rows, chunks.counts, chunks.offsets, chunks.merge)
            attended, sums = self._run(
                _sized(q[tokens]), _sized(pool.k), _sized(pool.v), *where, pool.sinks, pool.alibi_slopes
            )
            out[tokens] = attended[: len(tokens)]
            if lse is not None:
                lse[tokens] = sums[: len(tokens)].to(lse.dtype)


@dataclass(frozen=True, slots=True)
class _Key:
    """All that the generated code depends on."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    layout: str
    dtype: str
    scale: float
    soft_cap: float | None
    sinks: bool
    alibi: bool
    num_threads: int


_Run = Callable[..., tuple[Tensor, Tensor]]


@functools.lru_cache(maxsize=64)
def _compiled(key: _Key) -> tuple[_Run, float]:
    """The compiled function and the seconds it took; its first call, on made-up sizes, is the compilation.

    The sizes steer inductor's choice of loops, so they are the same whatever batch comes first.
    """
    begin = time.perf_counter()

    def decode(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return _decode(key, *tensors)  # type: ignore[arg-type]

    # A code object of its own: torch counts recompilations by code object, and would refuse the ninth shape of heads.
    fresh = types.FunctionType(decode.__code__.replace(), globals(), "decode", None, decode.__closure__)
    run: _Run = torch.compile(fresh, fullgraph=True, dynamic=False, options=dict(_OPTIONS))
    heads, dim, size, dtype = key.num_kv_heads, key.head_dim, key.block_size, getattr(torch, key.dtype)
    shape = (2, size, heads, dim) if key.layout == "NHD" else (2, heads, size, dim)
    pools = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # inductor's imports, of torch's own
        q, integers = (
            torch.zeros(32, key.num_heads, dim, dtype=dtype),
            [torch.zeros(256, dtype=torch.int64) for _ in "abc"],
        )
        places, merge = torch.zeros(256, CHUNK, dtype=torch.int64), torch.zeros(32, 8, dtype=torch.int64)
        values = torch.zeros(256, _bagged_heads(key), CHUNK, dtype=torch.int64)
        per_head = torch.zeros(key.num_heads)
        run(
            _sized(q), *map(_sized, pools), *map(_sized, (places, values, *integers)), _sized(merge, 1),
            per_head if key.sinks else None, per_head if key.alibi else None,
        )  # fmt: skip
    return run, time.perf_counter() - begin


def _decode(
    key: _Key,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    places: Tensor,
    values: Tensor,
    rows: Tensor,
    counts: Tensor,
    offsets: Tensor,
    merge: Tensor,
    sinks: Tensor | None,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(R, H, D) in q's dtype, and the log-sum-exp (R, H), in float32 at least: chunk by chunk, then merged.

    Written as products and sums, which inductor fuses with the indexed reads. The query heads of a group are spelled
    out, so that one loop reads a token once for all of them. Source: flash-decoding, arXiv:2311.01282 section 3.
    """
    heads, dim, group = key.num_kv_heads, key.head_dim, key.num_heads // key.num_kv_heads
    wide = torch.promote_types(q.dtype, torch.float32)
    k, mine = _tokens(key, k_pool, places).to(wide), q.to(wide).view(-1, heads, group, dim)[rows]
    scores = _products(key, mine, k) * key.scale
    if key.soft_cap is not None:
        scores = key.soft_cap * torch.tanh(scores / key.soft_cap)
    token = torch.arange(CHUNK)
    if slopes is not None:
        behind = (offsets[:, None] + token)[:, None, None]
        scores = scores + slopes.to(wide).view(heads, group, 1) * behind
    scores = torch.where((token < counts[:, None])[:, None, None], scores, -math.inf)
    top = scores.amax(-1)
    weights = torch.exp(scores - top[..., None])
    return _merged(key, q, top, weights.sum(-1), _summed(key, v_pool, places, values, weights), merge, sinks)


def _products(key: _Key, mine: Tensor, k: Tensor) -> Tensor:
    """(P, K, G, L) of queries (P, K, G, D) and keys (P, L, K, D): one loop over K in the pool's order.

    NOTE: where the result is transposed decides the loops that inductor makes: each of these three is the fastest by
    1.3 to 2 in its place, and has been tried in the others'.
    """
    group = mine.shape[2]
    if not _bagged_heads(key):
        return torch.stack([(mine[:, None, :, g] * k).sum(-1) for g in range(group)], -1).permute(0, 2, 3, 1)
    if key.layout == "NHD":
        return torch.stack([(mine[:, None, :, g] * k).sum(-1).transpose(1, 2) for g in range(group)], 2)
    k = k.transpose(1, 2)
    return torch.stack([(mine[:, :, g, None] * k).sum(-1) for g in range(group)], 2)


def _summed(key: _Key, v_pool: Tensor, places: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """(P, K, G, D), the chunks' sums of V times `weights` (P, K, G, L).

    NOTE: in float32 by torch's embedding_bag, which fetches the rows ahead: 0.6 ms where inductor's loop, which meets
    each cache line of a chunk by itself, takes 1.2 (32 rows of 340 tokens, 4 kv heads of 64, Zen 5). In half precision
    embedding_bag would round the weights.
    """
    heads, dim, group = key.num_kv_heads, key.head_dim, key.num_heads // key.num_kv_heads
    if _bagged_heads(key):
        bags, weight_of = values.view(-1, CHUNK), weights.reshape(-1, CHUNK)
        summed = F.embedding_bag(bags, v_pool.view(-1, dim), mode="sum", per_sample_weights=weight_of)
        return summed.view(-1, heads, group, dim)
    v = _tokens(key, v_pool, places).to(weights.dtype)
    return torch.stack([(weights[:, :, g].transpose(1, 2)[..., None] * v).sum(1) for g in range(group)], 2)


def _tokens(key: _Key, pool: Tensor, places: Tensor) -> Tensor:
    """(P, L, K, D) of a flattened pool."""
    if key.layout == "NHD":
        return pool.view(-1, key.num_kv_heads, key.head_dim)[places]
    head = torch.arange(key.num_kv_heads) * key.block_size
    return pool.view(-1, key.head_dim)[places[:, :, None] + head]


def _merged(
    key: _Key, q: Tensor, top: Tensor, total: Tensor, summed: Tensor, merge: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The rows' results from their chunks' maxima, sums of weights, and weighted sums."""
    place = merge.clamp_min(0)
    tops = torch.where((merge >= 0)[:, :, None, None], top[place], -math.inf)  # (R, X, K, G)
    most = tops.amax(1)
    if sinks is not None:
        most = torch.maximum(most, sinks.to(most.dtype).view(1, *most.shape[1:]))
    worth = torch.exp(tops - most[:, None])
    denominator = (worth * total[place]).sum(1)
    if sinks is not None:
        denominator = denominator + torch.exp(sinks.to(most.dtype).view(1, *most.shape[1:]) - most)
    out = (worth[..., None] * summed[place]).sum(1) / denominator[..., None]
    return out.reshape(-1, key.num_heads, key.head_dim).to(q.dtype), (most + denominator.log()).flatten(1)
