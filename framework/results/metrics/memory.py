"""Use of the pool, scheduling, and how steps were executed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from framework.results.metric import Metric, never, on_cuda, section, several_ranks, text, with_graphs

memory, scheduling, execution = section("memory"), section("scheduling"), section("execution")


def by_step(*weighted_by_time: Metric) -> Iterator[Metric]:
    """The same shares weighted by steps: equal to the last digit in every run of one command."""
    for metric in weighted_by_time:
        yield replace(
            metric,
            key=f"{metric.key}_by_step",
            title=f"{metric.title}, by step",
            definition=f"{metric.definition}, each step counted once: the same in every run of one command.",
            when=never,
        )


METRICS: tuple[Metric, ...] = (
    memory("utilisation", "share", "higher", "utilisation",
           "Slots holding live K and V over slots reserved, weighted by time.", note="live / reserved slots"),
    memory("waste_internal", "share", "lower", "internal waste",
           "Slots past the end in a last written block, over slots reserved.", note="tails of blocks"),
    memory("waste_reserved", "share", "lower", "reserved waste",
           "Slots promised and not yet written, over slots reserved.", note="not yet written"),
    memory("waste_external", "share", "lower", "external waste",
           "Slots free but in no run that a request could get, over the pool.", note="free but unusable"),
    memory("cached_idle", "share", "", "cached, idle",
           "Slots findable and used by nobody, over the pool: not waste, but a cache.", note="of the pool"),
    memory("pool_used", "share", "", "pool in use", "Slots reserved over the pool."),
    *by_step(
        memory("utilisation", "share", "higher", "utilisation", "Slots holding live K and V over slots reserved"),
        memory("waste_internal", "share", "lower", "internal waste",
                "Slots past the end in a last written block, over slots reserved"),
        memory("waste_reserved", "share", "lower", "reserved waste",
                "Slots promised and not yet written, over slots reserved"),
        memory("waste_external", "share", "lower", "external waste",
                "Slots free but in no run that a request could get, over the pool"),
        memory("cached_idle", "share", "", "cached, idle", "Slots findable and used by nobody, over the pool"),
        memory("pool_used", "share", "", "pool in use", "Slots reserved over the pool"),
    ),
    memory("peak_used_blocks", "blocks", "lower", "peak blocks in use", "Most blocks in use after any step.",
           of="num_blocks"),
    text("memory", "kv_dtype", "KV dtype", "Data type of K and V in the pool; of a replay, what "
         "cache.kv_dtype names."),
    memory("kv_bytes", "bytes", "", "K and V", "The pool's tensors, the null block included, over all ranks; with "
           "fewer kv heads than ranks the sum holds copies.", note="the pool's tensors"),
    memory("equal_bytes_num_blocks", "blocks", "", "blocks in the model's dtype",
           "Blocks that the bytes of this pool's blocks would hold with K and V of the model's dtype (of a replay, of "
           "bfloat16); where cache.kv_dtype is another.", note="in as many bytes"),
    memory("equal_bytes_hit_rate", "share", "", "hit rate of those",
           "Hit rate of the same requests, replayed over those blocks: what the narrower pool buys is the difference "
           "to `hit_rate`. Requests that no longer fit are left out; null where there is no block.",
           note="of prompt tokens"),
    memory("kv_bytes_per_rank", "bytes", "", "K and V on each rank", "The pool's tensors on one rank.",
           when=several_ranks),
    scheduling("output_tokens", "tokens", "", "output tokens", "Generated tokens."),
    scheduling("scheduled_tokens", "tokens", "", "scheduled tokens", "Tokens computed, of prefill and decode.",
               note="prefill and decode"),
    scheduling("num_forks", "sequences", "", "forks", "Sequences forked, of samples and beams.", hide_zero=True),
    scheduling("num_copied_blocks", "blocks", "lower", "block copies", "Blocks copied before a write to shared ones.",
               hide_zero=True),
    scheduling("num_preemptions", "requests", "lower", "preemptions", "Times a running request lost its blocks."),
    scheduling("recomputed_tokens", "tokens", "lower", "tokens recomputed", "Tokens computed again after preemption.",
               hide_zero=True, note="after preemption"),
    scheduling("spared_tokens", "tokens", "", "tokens spared", "Tokens of preempted requests that others had cached "
               "meanwhile; no merit of the cache, so no hits.", hide_zero=True, note="cached by others meanwhile"),
    scheduling("peak_running", "sequences", "", "most at once", "Most sequences in one step.", note="sequences"),
    execution("cuda_graphs", "flag", "", "CUDA graphs", "Whether decode steps were replayed from CUDA graphs.",
              when=on_cuda),
    text("execution", "cuda_graphs_off", "no graphs because", "Why CUDA graphs were off.", when=on_cuda),
    execution("graph_batch_sizes", "list", "", "batch sizes captured", "Batch sizes of the captured graphs.",
              when=with_graphs),
    execution("graph_steps", "steps", "", "steps from a graph", "Decode steps replayed from a graph.",
              when=with_graphs),
    execution("graph_padded_rows", "sequences", "lower", "padded rows", "Rows that filled graphs up.",
              when=with_graphs),
    execution("graph_capture_s", "s", "lower", "capture", "Time to capture the graphs.", when=with_graphs,
              wall=True),
    execution("warm_up_s", "s", "lower", "warm-up", "Steps of every kind, computed before the first request.",
              when=lambda result: result.get("warm_up_s") is not None, wall=True),
    execution("eager_steps", "steps", "", "eager steps", "Steps run without a graph.", when=on_cuda),
)  # fmt: skip
