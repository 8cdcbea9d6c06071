"""Every key of `result.json`, declared once: unit, better direction, section, title and definition.

To add a result, add one `Metric` here; the table a run ends with, reports, W&B and docs/results.md show it, and a test
fails on a key that is not declared. A plugin's own facts need no line: they carry its kind as a prefix, see `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from framework.results.metric import Better, Metric

SECTIONS = (
    "run", "prefix cache", "tiers", "optimum", "requests", "speed", "latency", "memory", "scheduling", "execution",
    "KV events", "kernel", "plugins",
)  # fmt: skip
"""In the order of docs/results.md and of the table a run ends with."""

MOST_TIERS = 4
"""Tiers below the pool that results have keys for; a configuration lists no more."""

FAMILIES: Mapping[str, str] = {
    kind: f"what the chosen {kind} reports of itself through `facts()`"
    for kind in ("allocator", "eviction", "hash", "backend", "model", "workload")
}
"""Prefix (before an underscore) -> what keys so begun hold; they stand in the section "plugins"."""


def _on_cuda(result: Mapping[str, Any]) -> bool:
    return str(result.get("device", "")).startswith("cuda")


def _with_graphs(result: Mapping[str, Any]) -> bool:
    return bool(result.get("cuda_graphs"))


def _never(result: Mapping[str, Any]) -> bool:
    """For facts of every result that the table of a run leaves to `provenance.json` and reports."""
    return False


def _several_ranks(result: Mapping[str, Any]) -> bool:
    return result.get("tensor_parallel_size") not in (None, 1)


def _dense_checked(result: Mapping[str, Any]) -> bool:
    return bool(result.get("dense_checked"))


def _lossy(result: Mapping[str, Any]) -> bool:
    return result.get("attention_error") is not None


def _text(section: str, key: str, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit="text", better="", section=section, title=title, definition=definition, **more)


def _run(key: str, unit: str, title: str, definition: str) -> Metric:
    return Metric(key=key, unit=unit, better="", section="run", title=title, definition=definition)


def _cache(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="prefix cache", title=title, definition=definition, **more)


def _tiers(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="tiers", title=title, definition=definition, **more)


def _tier(number: int) -> Iterator[Metric]:
    """What a run with tiers says of one of them; 0 is the pool."""
    name = "the pool" if not number else f"tier {number}"
    declared: list[tuple[str, str, Better, str, str, dict[str, Any]]] = [
        ("hit_blocks", "blocks", "higher", "hits in", "Blocks of requests' cached prefixes that lay in {name}.",
         {"of": "prompt_blocks"}),
        ("hit_tokens", "tokens", "higher", "tokens hit in", "Their tokens.", {"when": _never}),
        ("num_blocks", "blocks", "", "capacity of", "Blocks that {name} holds at most.", {"when": _never}),
        ("bytes_in", "bytes", "lower", "written to", "Whole blocks stored in {name}, in bytes of K and V.", {}),
        ("bytes_out", "bytes", "", "read from", "Whole blocks read from {name}, for requests and for the tier below.",
         {}),
        ("evictions", "blocks", "lower", "evictions from", "Blocks that the eviction policy of {name} gave up.", {}),
        ("unread_blocks", "blocks", "lower", "stored unread in",
         "Blocks stored in {name} that were never a hit there before they left it or the run ended.", {}),
        ("refused_blocks", "blocks", "lower", "no room in",
         "Stores dropped because every block of {name} was in use.", {"hide_zero": True}),
        ("peak_blocks", "blocks", "", "peak of", "Most blocks that {name} held at once.", {"when": _never}),
        ("failed_loads", "blocks", "lower", "failed loads from",
         "Blocks whose bytes {name} did not have when a request was to get them: recomputed.", {"hide_zero": True}),
        ("failed_stores", "blocks", "lower", "failed stores in", "Blocks whose bytes {name} could not keep.",
         {"hide_zero": True}),
    ]  # fmt: skip
    for key, unit, better, title_, definition, more in declared[:2] if not number else declared:
        yield Metric(key=f"tier{number}_{key}", unit=unit, better=better, section="tiers", title=f"{title_} {name}",
                     definition=definition.format(name=name), **more)  # fmt: skip


def _optimum(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="optimum", title=title, definition=definition, **more)


def _event(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=f"kv_event_{key}", unit=unit, better=better, section="KV events", title=title,
                  definition=definition, **more)  # fmt: skip


def _requests(key: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(
        key=key, unit="requests", better=better, section="requests", title=title, definition=definition, **more
    )


def _speed(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(
        key=key, unit=unit, better=better, section="speed", title=title, definition=definition,
        **{"wall": True, "clocked": True, **more},
    )  # fmt: skip


def _memory(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="memory", title=title, definition=definition, **more)


def _scheduling(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="scheduling", title=title, definition=definition, **more)


def _execution(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="execution", title=title, definition=definition, **more)


def _kernel(key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section="kernel", title=title, definition=definition, **more)


def _percentiles(name: str, title: str, definition: str, note: str) -> Iterator[Metric]:
    for percent in (50, 95, 99):
        yield Metric(
            key=f"{name}_s_p{percent}",
            unit="s",
            better="lower",
            section="latency",
            title=title if percent == 50 else f"{title}, p{percent}",
            definition=f"{definition}, {percent}th percentile over finished requests.",
            note=note,
            row="" if percent == 50 else f"{name}_s_p50",
            wall=True,
            clocked=True,
        )


def _by_step(*weighted_by_time: Metric) -> Iterator[Metric]:
    """The same shares weighted by steps: equal to the last digit in every run of one command."""
    for metric in weighted_by_time:
        yield replace(
            metric,
            key=f"{metric.key}_by_step",
            title=f"{metric.title}, by step",
            definition=f"{metric.definition}, each step counted once: the same in every run of one command.",
            when=_never,
        )


def _in_steps(*names: tuple[str, str, str]) -> Iterator[Metric]:
    """Times of a replayed recording, whose clock counts steps."""
    for name, title, definition in names:
        for percent in (50, 95, 99):
            yield Metric(
                key=f"{name}_steps_p{percent}",
                unit="steps",
                better="lower",
                section="latency",
                title=f"{title}, steps" if percent == 50 else f"{title}, steps, p{percent}",
                definition=f"{definition}, in steps, {percent}th percentile over finished requests.",
                row="" if percent == 50 else f"{name}_steps_p50",
            )


_DECLARED: tuple[Metric, ...] = (
    _text("run", "status", "status", "`ok`, `failed`, `unavailable` or `interrupted`."),
    _text("run", "mode", "mode", "`serve`, `replay` or `kernel`."),
    _text("run", "executor", "executor", "What stood behind the scheduler in a replay: see docs/cli.md."),
    _text("run", "clock", "clock", "What times are counted on: `wall`, `virtual`, or the length of a step."),
    _text("run", "model", "model", "Name of the model."),
    _text("run", "workload", "workload", "Name of the workload."),
    _text("run", "allocator", "allocator", "Name of the allocator."),
    _text("run", "eviction", "eviction", "Name of the eviction policy."),
    _text("run", "hash", "hash", "Name of the hash scheme."),
    _text("run", "backend", "backend", "Name of the attention backend."),
    _text("run", "device", "device", "Where the model or kernel ran, as torch names it."),
    _text("run", "dtype", "dtype", "Data type of the weights and of what is computed."),
    _text("run", "command", "command", "The command line of the process, as a shell takes it.", when=_never),
    _text("run", "started_at", "started", "When the run began, UTC.", when=_never, wall=True),
    _text("run", "machine", "machine", "The accelerator, or the processor and the cores that the run may use.",
          when=_never),
    _text("run", "version", "version", "Version of this package.", when=_never),
    _text("run", "git_revision", "revision", "Revision of the checkout that the package ran from.", when=_never),
    _text("run", "trace", "trace", "Path of the trace or recording that was replayed.", when=_never),
    _text("run", "trace_sha256", "trace's SHA-256", "SHA-256 of that file.", when=_never),
    Metric(key="trace_bytes", unit="bytes", better="", section="run", title="trace's size",
           definition="Size of that file.", when=_never),
    _text("run", "not_measured", "not measured", "Why a run that did not end well could not say what it measured."),
    _run("seed", "number", "seed", "The run's seed."),
    _run("num_blocks", "blocks", "blocks", "Blocks in the pool, the null block excepted."),
    _run("block_size", "tokens", "block size", "Tokens in a block."),
    _run("tensor_parallel_size", "ranks", "ranks", "Ranks that the model is divided over."),
    _text("run", "first_failure", "first failure", "Why the first failed request failed."),
    Metric(key="reasons", unit="list", better="", section="run", title="reasons", definition="Why the run failed."),
    # Prefix cache
    _cache("hit_rate", "share", "higher", "hit rate",
           "Prompt tokens served from the cache over prompt tokens, over the whole run; each request counted once, at "
           "its first admission; no warm-up left out.", note="of prompt tokens"),
    _cache("hit_rate_blocks", "share", "higher", "hit rate by blocks", "Prompt blocks hit over prompt blocks."),
    _cache("hit_rate_request_mean", "share", "higher", "hit rate by request",
           "Mean over requests of each one's hit tokens over prompt tokens."),
    _cache("hit_tokens", "tokens", "higher", "prompt tokens hit", "Prompt tokens served from the cache.",
           of="prompt_tokens"),
    _cache("prompt_tokens", "tokens", "", "prompt tokens", "Prompt tokens of all admitted requests."),
    _cache("hit_blocks", "blocks", "higher", "prompt blocks hit", "Prompt blocks served from the cache.",
           of="prompt_blocks"),
    _cache("prompt_blocks", "blocks", "", "prompt blocks",
           "Blocks of all admitted prompts, a partial last one included: the block references of a replay."),
    _cache("num_evictions", "blocks", "lower", "evictions", "Cached blocks whose content was given up.",
           aliases=("evictions",)),
    _cache("admitted_blocks", "blocks", "", "blocks admitted", "Blocks whose content entered the cache."),
    _cache("num_collisions", "blocks", "lower", "hash collisions",
           "Hits refused because a block of equal hash held other tokens.", hide_zero=True),
    # Tiers
    _text("tiers", "tiering", "tiering", "Name of the rule that moved blocks between tiers."),
    *(metric for number in range(MOST_TIERS + 1) for metric in _tier(number)),
    _tiers("num_loads", "requests", "", "loads", "Times a request waited for blocks from tiers below the pool."),
    _tiers("loaded_blocks", "blocks", "", "blocks loaded", "That came into the pool so.", when=_never),
    _tiers("load_wait_s", "s", "lower", "waiting for loads",
           "Time from the begin of each load until its request could go on, summed.", clocked=True),
    _text("tiers", "tier_failure", "first failure of a store",
          "Why the first block that a tier lost could not be stored or loaded; it was recomputed."),
    _text("tiers", "tiers_off", "tiers turned off",
          "The tiering rule or a tier's policy broke its contract: what it did, and the run went on without tiers."),
    # Optimum
    _optimum("gap_to_optimum", "share", "lower", "gap to the optimum",
             "(The policy's misses - the optimum's) / the optimum's misses, in blocks; 0 is optimal.",
             note="more misses"),
    _optimum("optimum_hit_blocks", "blocks", "", "hits of the optimum",
             "Prompt blocks that the offline optimum of this capacity hits.", of="prompt_blocks"),
    _optimum("gap_to_pinned_optimum", "share", "lower", "gap to the pinned optimum",
             "The same against the optimum whose request at hand holds its blocks, as an engine's does.",
             note="more misses"),
    _optimum("pinned_optimum_hit_blocks", "blocks", "", "hits of the pinned optimum",
             "Prompt blocks that the offline optimum hits when the request at hand holds its blocks.",
             of="prompt_blocks"),
    _optimum("offline_next_use_hit_rate", "share", "", "offline next use hits",
             "Hit rate of the same engine and trace when what is requested again last goes first: a reference, "
             "neither optimum nor bound where requests overlap."),
    _optimum("gap_to_offline_next_use", "share", "lower", "gap to offline next use",
             "(The policy's missed prompt tokens - that replay's) / that replay's.", note="more misses"),
    _text("optimum", "optimum_rules", "optimum's rules", "Rules that the optimum was bound by."),
    _optimum("optimum_hit_rate", "share", "", "hit rate of the optimum",
             "Prompt tokens that the offline optimum of this capacity hits over prompt tokens."),
    _optimum("optimum_hit_rate_blocks", "share", "", "the same by blocks", "Prompt blocks that it hits over prompt "
             "blocks."),
    _optimum("infinite_hit_rate", "share", "", "hit rate without evictions",
             "Prompt tokens that a cache that never evicts hits over prompt tokens."),
    _optimum("infinite_hit_blocks", "blocks", "", "hits without evictions",
             "Prompt blocks that a cache that never evicts hits.", of="prompt_blocks"),
    _optimum("unique_blocks", "blocks", "", "distinct blocks", "Distinct blocks of the trace: its working set."),
    # Requests
    _requests("num_finished", "higher", "finished", "Requests that ended with all their tokens.", of="num_requests"),
    _requests("num_requests", "", "requests", "Requests submitted."),
    _requests("num_rejected", "lower", "rejected", "Requests that could never be served.", hide_zero=True),
    Metric(key="max_model_len", unit="tokens", better="", section="requests", title="longest sequence",
           definition="Longest sequence that the engine takes, tokens of prompt and answer: the least of "
           "engine.max_model_len, the model's positions and the pool; longer requests are rejected.",
           of="max_model_len_asked", when=lambda result: "max_model_len_asked" in result),
    Metric(key="max_model_len_asked", unit="tokens", better="", section="requests", title="longest sequence asked",
           definition="What engine.max_model_len asked for, where that is more than the model or the pool can hold."),
    _requests("num_cancelled", "lower", "cancelled", "Requests cancelled by their owner.", hide_zero=True),
    _requests("num_failed", "lower", "failed", "Requests that ended with an error; any makes the run a failure.",
              hide_zero=True),
    _requests("num_skipped_lines", "lower", "lines skipped", "Lines of the trace left out by `on_error=skip`.",
              hide_zero=True),
    _requests("dense_mismatches", "lower", "differ from dense", "Checked requests whose tokens differ from the plain "
              "dense model's, or, for a backend that declares a loss, whose attention lost more; any makes the run a "
              "failure. Null where K and V are of another dtype than the model's.", of="dense_checked",
              when=lambda result: _dense_checked(result) and result.get("dense_mismatches") is not None),
    _requests("dense_checked", "", "checked", "Greedy requests decoded again without a cache."),
    Metric(key="dense_mismatched_requests", unit="list", better="", section="requests", title="which differ",
           definition="Numbers of the checked requests that differ; `requests.jsonl` says from which token on.",
           when=lambda result: bool(result.get("dense_mismatches"))),
    Metric(key="dense_agreement", unit="share", better="higher", section="requests", title="agrees with dense",
           definition="Served tokens that are the plain dense model's likeliest, over all tokens of the checked "
           "requests; for a backend that declares a loss, or K and V of another dtype than the model's.", when=_lossy),
    Metric(key="dense_logit_error", unit="logits", better="lower", section="requests", title="largest logit error",
           definition="Largest difference of a logit from the dense model's, the same tokens given.", when=_lossy),
    Metric(key="dense_kl_divergence", unit="nats", better="lower", section="requests", title="KL divergence",
           definition="KL(dense || served) of the next token's distribution, mean over tokens.", when=_lossy),
    Metric(key="attention_error", unit="share", better="lower", section="requests", title="attention error",
           definition="Largest difference of an attention output from the exact one over the same K and V, before a "
           "narrower pool rounds them, as a share of the largest |V|. More than the backend declares makes the run a "
           "failure.", when=_lossy),
    Metric(key="attention_error_declared", unit="share", better="", section="requests", title="declared",
           definition="What the backend declares to lose: `Capabilities.lossy.max_error`.",
           when=lambda result: result.get("attention_error_declared") is not None),
    Metric(key="dense_ties", unit="tokens", better="", section="requests", title="dense ties", hide_zero=True,
           definition="Tokens whose two likeliest logits are too close for a verdict."),
    # Speed
    _speed("wall_s", "s", "lower", "time", "From the first arrival to the last end, on the run's clock.",
           note="{clock}, arrival to end"),
    Metric(key="wall_steps", unit="steps", better="", section="speed", title="steps", definition="From the first "
           "arrival to the last end of a replayed recording, whose clock counts steps.", note="arrival to end"),
    _speed("output_tokens_per_s", "tokens/s", "higher", "output tokens/s", "Generated tokens over `wall_s`."),
    _speed("total_tokens_per_s", "tokens/s", "higher", "all tokens/s", "Computed and generated tokens over `wall_s`."),
    _speed("requests_per_s", "requests/s", "higher", "requests/s", "Finished requests over `wall_s`."),
    _speed("goodput_requests_per_s", "requests/s", "higher", "goodput, requests/s",
           "Finished requests that met both objectives (replay.slo_ttft_s, replay.slo_tpot_s) over `wall_s`."),
    _speed("engine_overhead", "share", "lower", "engine overhead", "Step time outside the model over step time.",
           note="of step time", clocked=False),
    _speed("schedule_s", "s", "lower", "scheduling", "Time in the scheduler, summed over steps."),
    _speed("forward_s", "s", "lower", "model", "Time in the model, summed over steps."),
    _speed("sample_s", "s", "lower", "sampling", "Time in sampling and bookkeeping, summed over steps."),
    Metric(key="num_steps", unit="steps", better="", section="speed", title="steps", definition="Engine steps."),
    _speed("replay_s", "s", "lower", "replayed in", "Wall time of the whole replay, reading the trace included.",
           clocked=False),
    _speed("count_s", "s", "lower", "counted in", "Wall time of counting hits, reading the trace excepted.",
           clocked=False),
    _text("speed", "replay_core", "replay core", "Which core counted: see docs/traces.md."),
    # Latency
    *_percentiles("ttft", "first token", "From arrival to the first generated token", "{clock}, from arrival"),
    *_percentiles("tpot", "each next token", "Time between the first and last token over the tokens after the first",
                  "{clock}"),
    *_percentiles("latency", "whole request", "From arrival to the last token", "{clock}"),
    *_in_steps(
        ("ttft", "first token", "From arrival to the first generated token"),
        ("tpot", "each next token", "Steps between the first and last token over the tokens after the first"),
        ("latency", "whole request", "From arrival to the last token"),
    ),
    # Memory
    _memory("utilisation", "share", "higher", "utilisation",
            "Slots holding live K and V over slots reserved, weighted by time.", note="live / reserved slots"),
    _memory("waste_internal", "share", "lower", "internal waste",
            "Slots past the end in a last written block, over slots reserved.", note="tails of blocks"),
    _memory("waste_reserved", "share", "lower", "reserved waste",
            "Slots promised and not yet written, over slots reserved.", note="not yet written"),
    _memory("waste_external", "share", "lower", "external waste",
            "Slots free but in no run that a request could get, over the pool.", note="free but unusable"),
    _memory("cached_idle", "share", "", "cached, idle",
            "Slots findable and used by nobody, over the pool: not waste, but a cache.", note="of the pool"),
    _memory("pool_used", "share", "", "pool in use", "Slots reserved over the pool."),
    *_by_step(
        _memory("utilisation", "share", "higher", "utilisation", "Slots holding live K and V over slots reserved"),
        _memory("waste_internal", "share", "lower", "internal waste",
                "Slots past the end in a last written block, over slots reserved"),
        _memory("waste_reserved", "share", "lower", "reserved waste",
                "Slots promised and not yet written, over slots reserved"),
        _memory("waste_external", "share", "lower", "external waste",
                "Slots free but in no run that a request could get, over the pool"),
        _memory("cached_idle", "share", "", "cached, idle", "Slots findable and used by nobody, over the pool"),
        _memory("pool_used", "share", "", "pool in use", "Slots reserved over the pool"),
    ),
    _memory("peak_used_blocks", "blocks", "lower", "peak blocks in use", "Most blocks in use after any step.",
            of="num_blocks"),
    _text("memory", "kv_dtype", "KV dtype", "Data type of K and V in the pool."),
    _memory("kv_bytes", "bytes", "", "K and V", "The pool's tensors, the null block included, over all ranks; with "
            "fewer kv heads than ranks the sum holds copies.", note="the pool's tensors"),
    _memory("kv_bytes_per_rank", "bytes", "", "K and V on each rank", "The pool's tensors on one rank.",
            when=_several_ranks),
    # Scheduling
    _scheduling("output_tokens", "tokens", "", "output tokens", "Generated tokens."),
    _scheduling("scheduled_tokens", "tokens", "", "scheduled tokens", "Tokens computed, of prefill and decode.",
                note="prefill and decode"),
    _scheduling("num_forks", "sequences", "", "forks", "Sequences forked, of samples and beams.", hide_zero=True),
    _scheduling("num_copied_blocks", "blocks", "lower", "block copies", "Blocks copied before a write to shared ones.",
                hide_zero=True),
    _scheduling("num_preemptions", "requests", "lower", "preemptions", "Times a running request lost its blocks."),
    _scheduling("recomputed_tokens", "tokens", "lower", "tokens recomputed", "Tokens computed again after preemption.",
                hide_zero=True, note="after preemption"),
    _scheduling("spared_tokens", "tokens", "", "tokens spared", "Tokens of preempted requests that others had cached "
                "meanwhile; no merit of the cache, so no hits.", hide_zero=True, note="cached by others meanwhile"),
    _scheduling("peak_running", "sequences", "", "most at once", "Most sequences in one step.", note="sequences"),
    # Execution
    _execution("cuda_graphs", "flag", "", "CUDA graphs", "Whether decode steps were replayed from CUDA graphs.",
               when=_on_cuda),
    _text("execution", "cuda_graphs_off", "no graphs because", "Why CUDA graphs were off.", when=_on_cuda),
    _execution("graph_batch_sizes", "list", "", "batch sizes captured", "Batch sizes of the captured graphs.",
               when=_with_graphs),
    _execution("graph_steps", "steps", "", "steps from a graph", "Decode steps replayed from a graph.",
               when=_with_graphs),
    _execution("graph_padded_rows", "sequences", "lower", "padded rows", "Rows that filled graphs up.",
               when=_with_graphs),
    _execution("graph_capture_s", "s", "lower", "capture", "Time to capture the graphs.", when=_with_graphs,
               wall=True),
    _execution("eager_steps", "steps", "", "eager steps", "Steps run without a graph.", when=_on_cuda),
    # KV events
    _event("batches", "batches", "", "batches", "Batches of KV events passed on: steps in which the cache changed."),
    _event("stored_blocks", "blocks", "", "blocks stored",
           "Blocks in BlockStored events, those reported as hits included where kv_events.report_hits asks for them."),
    _event("removed_blocks", "blocks", "", "blocks removed", "Blocks in BlockRemoved events."),
    _event("clears", "events", "", "clears", "AllBlocksCleared events.", hide_zero=True),
    _event("dropped_batches", "batches", "lower", "batches lost",
           "Batches that were not sent because kv_events.max_queue_size others waited; subscribers see the gap.",
           hide_zero=True),
    _event("failed_batches", "batches", "lower", "batches failed", "Batches or replies that could not be sent.",
           hide_zero=True),
    _text("KV events", "kv_event_endpoint", "sent from", "Address that KV events were sent from."),
    _text("KV events", "kv_event_error", "first failure", "Why the first batch or reply could not be sent."),
    # Kernel
    _kernel("num_cells", "cells", "", "cells", "Points of the grid: shape, batch, context and kind of work."),
    _kernel("cells", "table", "", "cells by status", "How many cells ended how."),
    _kernel("ceilings", "table", "", "ceilings", "Bytes/s and FLOP/s of this device, measured in this run."),
    _kernel("share_of_ceiling_max", "share", "higher", "best share of its ceiling", "Of all cells, the largest "
            "achieved share of what the ceilings allow.", wall=True),
    _kernel("share_of_ceiling_min", "share", "higher", "worst share of its ceiling", "Of all cells, the smallest.",
            wall=True),
    _kernel("time_s", "s", "lower", "time", "Geometric mean over cells of the median time of one call.", wall=True),
    _kernel("bandwidth_bytes_per_s", "bytes/s", "higher", "bandwidth", "Geometric mean over cells of the least bytes "
            "needed over the time.", wall=True),
    _kernel("screen", "table", "", "compiled ahead of time", "Registers, spills and instructions of each compiled "
            "kernel."),
    _text("kernel", "device_model", "device model", "The accelerator or processor."),
    _kernel("num_threads", "threads", "", "threads", "Threads of torch."),
    _text("kernel", "torch", "torch", "Version of torch."),
    _text("kernel", "triton", "triton", "Version of triton."),
    _text("kernel", "date", "date", "When the run began, UTC."),
)  # fmt: skip

CATALOGUE: Mapping[str, Metric] = {metric.key: metric for metric in _DECLARED}
_ALIASES = {alias: metric.key for metric in _DECLARED for alias in metric.aliases}


def find(key: str) -> Metric | None:
    """The declaration of a result key, of an earlier name of one, or of a plugin's own fact; else None."""
    if (metric := CATALOGUE.get(_ALIASES.get(key, key))) is not None:
        return metric
    kind, _, rest = key.partition("_")
    if kind not in FAMILIES or not rest:
        return None
    title = f"{kind} {rest.replace('_', ' ')}"
    return Metric(key=key, unit="plain", better="", section="plugins", title=title, definition=FAMILIES[kind])


def canonical(key: str) -> str:
    """The key of today for one that an earlier version wrote."""
    return _ALIASES.get(key, key)


def title(key: str) -> str:
    """How tables and plots name a key; the key itself where nobody declared it."""
    metric = find(key)
    return key if metric is None else metric.title


def higher_is_better(key: str) -> bool | None:
    """The better direction; None where neither is, or nobody declared it."""
    metric = find(key)
    return None if metric is None or not metric.better else metric.better == "higher"


def is_wall_time(key: str) -> bool:
    """Whether two runs of one command differ in it because it measures wall time."""
    metric = find(key)
    return metric is not None and metric.wall
