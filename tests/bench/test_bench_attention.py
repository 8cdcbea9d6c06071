"""Paged decode and prefill on the CPU: torch, eager and compiled, gather, native, and SDPA on a dense contiguous cache.

pytest tests/bench/test_bench_attention.py --benchmark-only --benchmark-group-by=group
python tests/bench/test_bench_attention.py     # prefill, chunks and decode, CPU time beside dense SDPA, interleaved
"""

import sys
import time
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from framework.interfaces.backend import AttentionSpec, Batch, LayerKV
from framework_builtin.backend.gather import GatherBackend
from framework_builtin.backend.torch import TorchBackend

HEADS, KV_HEADS, DIM, SIZE = 16, 8, 128, 16
BACKENDS = {
    "eager": partial(TorchBackend, compile=False),
    "compiled": partial(TorchBackend, compile=True),
    "gather": GatherBackend,
}
for _point in entry_points(group="framework.backend", name="native"):
    BACKENDS["native"] = _point.load()


def paged(contexts, queries, layout="NHD"):
    """Random KV in scattered blocks, the pool larger than the caches."""
    counts = -(-np.array(contexts) // SIZE)
    total = int(counts.sum()) + 1
    order = np.random.default_rng(0).permutation(np.arange(1, total))
    tables = np.zeros((len(contexts), int(counts.max())), dtype=np.int32)
    for row, ids in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        tables[row, : len(ids)] = ids
    inner = (SIZE, KV_HEADS) if layout == "NHD" else (KV_HEADS, SIZE)
    pool = LayerKV(torch.randn(total, *inner, DIM), torch.randn(total, *inner, DIM), layout)
    lengths = np.array(contexts, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    batch = Batch(
        block_tables=torch.from_numpy(tables),
        context_lens=torch.from_numpy(lengths),
        query_starts=torch.from_numpy(starts),
        slot_mapping=torch.full((int(starts[-1]),), -1),
        max_query_len=max(queries),
        max_context_len=max(contexts),
        num_decodes=sum(count == 1 for count in queries),
        host_context_lens=lengths,
        host_query_starts=starts,
    )
    spec = AttentionSpec(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="float32", block_size=SIZE, layout=layout
    )
    return spec, torch.randn(int(starts[-1]), HEADS, DIM), pool, batch


WORK = {
    "decode 32 x 1k": ([1024] * 32, [1] * 32),
    "decode 32 ragged": ([64 + 60 * at for at in range(32)], [1] * 32),
    "decode 32 x 100": ([100] * 32, [1] * 32),
    "prefill 1 x 1k": ([1024], [1024]),
    "chunk 256 of 2k": ([2048], [256]),
}


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("work", WORK)
def test_attend(benchmark, work, name, layout):
    spec, q, pool, batch = paged(*WORK[work], layout)
    backend = BACKENDS[name]()
    backend.setup(spec, "cpu")
    backend.plan(batch)
    out = torch.empty_like(q)
    benchmark.group = work
    benchmark.extra_info["kv_bytes"] = sum(WORK[work][0]) * 2 * KV_HEADS * DIM * 4
    benchmark(lambda: backend.attend(q, pool, batch, out))


def dense_sdpa(q, contexts):
    """SDPA on a dense contiguous cache; a group's query heads are queries, which is faster than enable_gqa."""
    k, v = (torch.randn(len(contexts), KV_HEADS, contexts[0], DIM).to(q.dtype) for _ in range(2))
    q = q.view(len(contexts), KV_HEADS, HEADS // KV_HEADS, DIM)
    return lambda: scaled_dot_product_attention(q, k, v)


def dense_prefill(q, contexts, queries):
    """SDPA of one row on a dense contiguous cache: causal, or with a ready mask for a chunk."""
    (context,), (count,) = contexts, queries
    k, v = (torch.randn(KV_HEADS, 1, context, DIM).to(q.dtype).expand(-1, HEADS // KV_HEADS, -1, -1) for _ in range(2))
    heads = q.view(count, KV_HEADS, -1, DIM).permute(1, 2, 0, 3).contiguous()
    if count == context:
        return lambda: scaled_dot_product_attention(heads, k, v, is_causal=True)
    mask = torch.ones(count, context, dtype=torch.bool).tril(context - count)
    mask = torch.zeros(count, context, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    return lambda: scaled_dot_product_attention(heads, k, v, attn_mask=mask)


def compare_prefill(rounds=9):
    """Print the least CPU time of each backend and of dense SDPA, interleaved in one run, for each work and dtype."""
    for work in ("prefill 1 x 1k", "chunk 256 of 2k", "decode 32 x 1k"):
        contexts, queries = WORK[work]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            spec, q, pool, batch = paged(contexts, queries)
            spec, q = replace(spec, dtype=str(dtype).removeprefix("torch.")), q.to(dtype)
            pool.k, pool.v, out = pool.k.to(dtype), pool.v.to(dtype), torch.empty_like(q)
            calls = {"sdpa": dense_sdpa(q, contexts) if len(contexts) > 1 else dense_prefill(q, contexts, queries)}
            for name in ("native", "eager"):
                backend = BACKENDS[name]()
                if backend.check(spec, "cpu"):
                    continue
                backend.setup(spec, "cpu")
                backend.plan(batch)
                calls[name] = partial(backend.attend, q, pool, batch, out)
            least = dict.fromkeys(calls, float("inf"))
            for _ in range(rounds):
                for name, call in calls.items():
                    start = time.process_time()
                    call()
                    least[name] = min(least[name], time.process_time() - start)
            shown = ", ".join(f"{name} {1e3 * s:.1f} ms = {s / least['sdpa']:.2f}" for name, s in least.items())
            print(f"{work} {dtype}, {torch.get_num_threads()} threads, min CPU time: {shown}")


if __name__ == "__main__":
    sys.exit(compare_prefill())
