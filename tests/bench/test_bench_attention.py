"""Paged decode, prefill and chunks on the CPU beside SDPA on a dense contiguous cache: CPU time, interleaved.

python tests/bench/test_bench_attention.py     # `mode=kernel` times any backend alone, on any device
"""

import sys
import time
from functools import partial
from importlib.metadata import entry_points

import torch
from torch.nn.functional import scaled_dot_product_attention

from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, build_problem
from framework_torch.backend import TorchBackend

HEADS, KV_HEADS, DIM, SIZE = 16, 8, 128, 16
BACKENDS = {point.name: point.load() for point in entry_points(group="framework.backend", name="native")}
BACKENDS["eager"] = partial(TorchBackend, compile=False)
WORK = {
    "prefill 1 x 1k": ((1024,), (1024,)),
    "chunk 256 of 2k": ((2048,), (256,)),
    "decode 32 x 1k": ((1024,) * 32, (1,) * 32),
}


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


def compare(rounds=9):
    """Print the least CPU time of each backend and of dense SDPA, interleaved in one run, for each work and dtype."""
    for work, (contexts, queries) in WORK.items():
        for dtype in ("float32", "bfloat16", "float16"):
            spec = AttentionSpec(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype, block_size=SIZE)
            problem = build_problem(Case(spec, contexts, queries), fill=0.0)
            q, out = problem.q.contiguous(), torch.empty(problem.q.shape, dtype=problem.q.dtype)
            calls = {"sdpa": dense_sdpa(q, contexts) if len(contexts) > 1 else dense_prefill(q, contexts, queries)}
            for name, make in BACKENDS.items():
                backend = make()
                if backend.check(spec, "cpu"):
                    continue
                backend.setup(spec, "cpu")
                backend.plan(problem.batch)
                calls[name] = partial(backend.attend, q, problem.pool, problem.batch, out)
            least = dict.fromkeys(calls, float("inf"))
            for _ in range(rounds):
                for name, call in calls.items():
                    start = time.process_time()
                    call()
                    least[name] = min(least[name], time.process_time() - start)
            shown = ", ".join(f"{name} {1e3 * s:.1f} ms = {s / least['sdpa']:.2f}" for name, s in least.items())
            print(f"{work} {dtype}, {torch.get_num_threads()} threads, min CPU time: {shown}")


if __name__ == "__main__":
    sys.exit(compare())
