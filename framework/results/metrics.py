"""The declarations of all result keys, in the order of docs/results.md and of the table a run ends with."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.metric import Metric, never, on_cuda, section, text

run, cache, optimum = section("run"), section("prefix cache"), section("optimum")
requests, measured, counted = section("requests"), section("speed", wall=True), section("speed")
memory, scheduling, execution = section("memory"), section("scheduling"), section("execution")
latency = section("latency")


_KINDS = (("full", "full attention"), ("window", "windows"), ("chunk", "chunks"), ("state", "states"))


def by_kind() -> Iterator[Metric]:
    """Hits of each kind of group."""
    for kind, name in _KINDS:
        yield cache(f"{kind}_hit_tokens", "tokens", "", f"hit of {name} alone",
                    f"Prompt tokens that the groups of {name} could have given, whatever the others have.",
                    of="prompt_tokens")  # fmt: skip
        yield cache(f"{kind}_lost_tokens", "tokens", "lower", f"lost to {name}",
                    f"Prompt tokens that an earlier request had, and by which {name} shortened hits, full attention "
                    "first, then the others by turns: with the hits, these sum to what memory without a bound would "
                    "hit.", of="prompt_tokens")  # fmt: skip


def served() -> Iterator[Metric]:
    """Bytes of each group of KV that a served model has."""
    for kind, name in (*_KINDS, ("shared", "several kinds of KV")):
        yield cache(f"{kind}_bytes", "bytes", "", f"{name}: capacity", f"Usable blocks of {name}.")
        yield cache(f"{kind}_peak_used_bytes", "bytes", "lower", f"{name}: peak in use",
                    f"Most of the blocks of {name} that requests held at once.", of=f"{kind}_bytes")  # fmt: skip
        yield cache(f"{kind}_cached_bytes", "bytes", "", f"{name}: cached",
                    f"Blocks of {name} that are findable and unused at the end.", of=f"{kind}_bytes")  # fmt: skip
        if kind != "shared":
            yield cache(f"{kind}_evictions", "blocks", "", f"{name}: evicted", f"Blocks of {name} that were evicted.")


def latencies() -> Iterator[Metric]:
    """The 50th, 95th and 99th percentile of each latency, `ttft_s_p50` and so on, three on a line of a run's table."""
    for name, title, definition, note in (
        ("ttft", "first token", "From arrival to the first generated token", "{clock}, from arrival"),
        ("tpot", "each next token", "Time between the first and last token over the tokens after the first", "{clock}"),
        ("latency", "whole request", "From arrival to the last token", "{clock}"),
    ):
        for percent in (50, 95, 99):
            first = percent == 50
            yield latency(f"{name}_s_p{percent}", "s", "lower", title if first else f"{title}, p{percent}",
                          f"{definition}, {percent}th percentile over finished requests.", note=note,
                          row="" if first else f"{name}_s_p50", wall=True)  # fmt: skip


DECLARED: tuple[Metric, ...] = (
    text("run", "status", "status",
         "`ok`; `failed`, `unavailable` or `interrupted` where a run did not come to its end; `failed_requests` where "
         "requests failed or all were rejected, `faulty` where something else makes its numbers no result."),
    text("run", "mode", "mode", "`serve`, `replay`, `hybrid`, `kernel`, or another that is installed."),
    text("run", "executor", "executor", "What stood behind the scheduler in a replay: see docs/traces.md."),
    text("run", "clock", "clock", "What times are counted on: `wall`, `virtual`, or the length of a step."),
    text("run", "loop", "loop",
         "Of a replay: `open`, requests were sent at the trace's times; `closed`, after answers that they wait for."),
    text("run", "model", "model", "Name of the model."),
    counted("num_threads", "threads", "", "threads", "Threads of torch."),
    text("run", "workload", "workload", "Name of the workload."),
    text("run", "allocator", "allocator", "Name of the allocator."),
    text("run", "eviction", "eviction", "Name of the eviction policy."),
    text("run", "compression", "compression", "Name of what drops tokens from the pool; `none`: nothing does.",
         when=lambda result: result.get("compression") not in (None, "none")),
    text("run", "scheduling", "scheduling", "Name of the order in which waiting requests are admitted."),
    text("run", "hash", "hash", "Name of the hash scheme."),
    text("run", "backend", "backend", "Name of the attention backend."),
    text("run", "device", "device", "Where the model or kernel ran, as torch names it."),
    text("run", "dtype", "dtype", "Data type of the weights and of what is computed."),
    text("run", "command", "command", "The command line of the process, as a shell takes it.", when=never),
    text("run", "started_at", "started", "When the run began, UTC.", when=never, wall=True),
    text("run", "machine", "machine", "The accelerator, or the processor and the cores that the run may use.",
         when=never),
    text("run", "version", "version", "Version of this package.", when=never),
    text("run", "git_revision", "revision", "Revision of the checkout that the package ran from.", when=never),
    text("run", "trace", "trace", "Path of the trace or recording that was replayed.", when=never),
    text("run", "trace_sha256", "trace's SHA-256", "SHA-256 of that file.", when=never),
    text("run", "not_measured", "not measured", "Why a run that did not end well could not say what it measured."),
    run("seed", "number", "", "seed", "The run's seed."),
    run("num_blocks", "blocks", "", "blocks", "Blocks in the pool, the null block excepted."),
    run("block_size", "tokens", "", "block size", "Tokens in a block."),
    run("tensor_parallel_size", "ranks", "", "ranks", "Ranks that the model is divided over."),
    text("run", "first_failure", "first failure", "Why the first request failed, or a plugin's report of itself."),
    run("reasons", "list", "", "reasons", "Why the run failed."),
    cache("hit_rate", "share", "higher", "hit rate",
          "Prompt tokens served from the cache over prompt tokens, over the whole run; each request counted once, at "
          "its first admission; no warm-up left out.", note="of prompt tokens"),
    cache("hit_rate_blocks", "share", "higher", "hit rate by blocks", "Prompt blocks hit over prompt blocks."),
    cache("hit_rate_request_mean", "share", "higher", "hit rate by request",
          "Mean over requests of each one's hit tokens over prompt tokens."),
    cache("hit_tokens", "tokens", "higher", "prompt tokens hit", "Prompt tokens served from the cache.",
          of="prompt_tokens"),
    cache("prompt_tokens", "tokens", "", "prompt tokens", "Prompt tokens of all admitted requests."),
    cache("hit_blocks", "blocks", "higher", "prompt blocks hit", "Prompt blocks served from the cache.",
          of="prompt_blocks"),
    cache("prompt_blocks", "blocks", "", "prompt blocks",
          "Blocks of all admitted prompts, a partial last one included: the block references of a replay."),
    cache("num_evictions", "blocks", "lower", "evictions", "Cached blocks whose content was given up."),
    cache("num_collisions", "blocks", "lower", "hash collisions",
          "Hits refused because a block of equal hash held other tokens.", hide_zero=True),
    optimum("offline_next_use_hit_rate", "share", "", "offline next use hits",
            "Hit rate of the same engine and trace when what is requested again last goes first: a reference, "
            "neither optimum nor bound where requests overlap."),
    optimum("gap_to_offline_next_use", "share", "lower", "gap to offline next use",
            "(The policy's missed prompt tokens - that replay's) / that replay's.", note="more misses"),
    *by_kind(),
    *served(),
    text("prefix cache", "kv_groups_off", "one table because", "Of a served model that mixes full attention and "
         "sliding windows: why all layers share one block table and keep all tokens."),
    requests("num_finished", "requests", "higher", "finished",
             "Requests that ended with all their tokens.", of="num_requests"),
    requests("num_requests", "requests", "", "requests", "Requests submitted."),
    requests("num_rejected", "requests", "lower", "rejected", "Requests that could never be served.", hide_zero=True),
    requests("max_model_len", "tokens", "", "longest sequence",
             "Longest sequence that the engine takes, tokens of prompt and answer: the least of "
             "engine.max_model_len, the model's positions and the pool; longer requests are rejected.",
             of="max_model_len_asked", when=lambda result: "max_model_len_asked" in result),
    requests("max_model_len_asked", "tokens", "", "longest sequence asked",
             "What engine.max_model_len asked for, where that is more than the model or the pool can hold."),
    requests("num_cancelled", "requests", "lower", "cancelled", "Requests cancelled by their owner.", hide_zero=True),
    requests("num_failed", "requests", "lower", "failed",
             "Requests that ended with an error; any makes the run a failure.", hide_zero=True),
    requests("num_skipped_lines", "requests", "lower", "lines skipped",
             "Lines of the trace left out by `on_error=skip`.", hide_zero=True),
    text("requests", "guessed_time_unit", "times read in",
             "Unit of the trace's times, where it is another than its format's and nobody asked for it: "
             "`workload.time_unit` overrules it."),
    requests("sessions_under_way", "requests", "", "contexts sent first",
             "Sessions under way where `workload.begin_s` begins, whose contexts were sent at 0."),
    requests("dense_mismatches", "requests", "lower", "differ from dense",
             "Checked requests whose tokens differ from the plain dense model's; any makes the run a failure. Null "
             "where tokens may differ: for a backend that declares a loss, and where K and V are of another dtype than "
             "the model's.", of="dense_checked",
             when=lambda result: bool(result.get("dense_checked"))),
    requests("loss_exceeded", "requests", "lower", "lost more than declared",
             "Checked requests whose attention lost more than the backend declares, or is not finite; any makes the "
             "run a failure. Null where no loss was declared and all is finite.", of="dense_checked"),
    requests("dense_checked", "requests", "", "checked", "Greedy requests decoded again without a cache."),
    requests("dense_mismatched_requests", "list", "", "which differ",
             "Numbers of the checked requests that differ, or lost more than declared; `requests.jsonl` "
             "says from which token on.", hide_zero=True),
    requests("dense_agreement", "share", "higher", "agrees with dense",
             "Served tokens that are the plain dense model's likeliest, over all tokens of the checked "
             "requests; for a backend that declares a loss, or K and V of another dtype than the model's."),
    requests("dense_logit_error", "logits", "lower", "largest logit error",
             "Largest difference of a logit from the dense model's, the same tokens given."),
    requests("dense_kl_divergence", "nats", "lower", "KL divergence",
             "KL(dense || served) of the next token's distribution, mean over tokens."),
    requests("attention_error", "share", "lower", "attention error",
             "Largest difference of an attention output from the exact one over the same K and V, before a "
             "narrower pool rounds them, as a share of the largest |V|. More than the backend declares makes the run a "
             "failure."),
    requests("attention_error_declared", "share", "", "declared",
             "What the backend declares to lose: `Capabilities.lossy.max_error`."),
    requests("dense_ties", "tokens", "", "dense ties",
             "Tokens whose two likeliest logits are too close for a verdict.", hide_zero=True),
    measured("wall_s", "s", "lower", "time", "From the first arrival to the last end, on the run's clock.",
             note="{clock}, arrival to end"),
    counted("wall_steps", "steps", "", "time, in steps",
            "From the first arrival to the last end of a replayed recording, whose clock counts steps.",
            note="arrival to end"),
    measured("output_tokens_per_s", "tokens/s", "higher", "output tokens/s", "Generated tokens over `wall_s`."),
    measured("requests_per_s", "requests/s", "higher", "requests/s", "Finished requests over `wall_s`."),
    measured("goodput_requests_per_s", "requests/s", "higher", "goodput, requests/s",
             "Finished requests that met both objectives (replay.slo_ttft_s, replay.slo_tpot_s) over `wall_s`."),
    measured("engine_overhead", "share", "lower", "engine overhead", "Step time outside the model over step time.",
             note="of step time"),
    measured("forward_s", "s", "lower", "model", "Time in the model, summed over steps."),
    counted("num_steps", "steps", "", "steps", "Engine steps."),
    measured("replay_s", "s", "lower", "replayed in", "Wall time of the whole replay, reading the trace included."),
    *latencies(),
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
    memory("peak_used_blocks", "blocks", "lower", "peak blocks in use", "Most blocks in use after any step.",
           of="num_blocks"),
    text("memory", "kv_dtype", "KV dtype",
         "Data type of K and V in the pool; of a replay, what cache.kv_dtype names."),
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
           when=lambda result: result.get("tensor_parallel_size") not in (None, 1)),
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
    memory("num_compressions", "requests", "", "compressions", "Times that tokens of a running request were dropped."),
    memory("dropped_tokens", "tokens", "", "tokens dropped", "Tokens that compressions dropped."),
    memory("dropped_share", "share", "", "dropped of the tokens",
           "Tokens that compressions dropped / those that their requests had in the pool."),
    memory("returned_blocks", "blocks", "higher", "blocks returned",
           "Blocks in use before compressions less those after: what other requests can have."),
    memory("returned_bytes", "bytes", "higher", "bytes returned",
           "Those blocks in bytes, over all ranks; in a replay of the shape that it assumes."),
    memory("returned_share", "share", "higher", "returned of the blocks",
           "`returned_blocks` / the blocks of the compressed requests: the ratio that the pool got."),
    scheduling("peak_running", "sequences", "", "most at once", "Most sequences in one step.", note="sequences"),
    execution("cuda_graphs", "flag", "", "CUDA graphs", "Whether decode steps were replayed from CUDA graphs.",
              when=on_cuda),
    text("execution", "cuda_graphs_off", "no graphs because", "Why CUDA graphs were off.", when=on_cuda),
    execution("graph_batch_sizes", "list", "", "batch sizes captured", "Batch sizes of the captured graphs.",
              hide_zero=True),
    execution("graph_steps", "steps", "", "steps from a graph", "Decode steps replayed from a graph.", hide_zero=True),
    execution("kv_bytes_read", "bytes", "lower", "bytes of KV read", "That attention to selected tokens read of the "
              "pool: an indexer's keys of each query's context, and the rows that it selected.", hide_zero=True),
    execution("kv_bytes_dense", "bytes", "lower", "bytes of KV without a selection", "That attention to all tokens "
              "would have read.", hide_zero=True),
    execution("graph_padded_rows", "sequences", "lower", "padded rows", "Rows that filled graphs up.", hide_zero=True),
    execution("graph_capture_s", "s", "lower", "capture", "Time to capture the graphs.", wall=True),
    execution("warm_up_s", "s", "lower", "warm-up", "Steps of every kind, computed before the first request.",
              wall=True),
    execution("eager_steps", "steps", "", "eager steps", "Steps run without a graph.", when=on_cuda),
)  # fmt: skip
