"""What was run: components, sizes, provenance."""

from __future__ import annotations

from framework.results.metric import Metric, never, section, text

run = section("run")

METRICS: tuple[Metric, ...] = (
    text("run", "status", "status", "`ok`, `failed`, `unavailable` or `interrupted`."),
    text("run", "mode", "mode", "`serve`, `replay` or `kernel`."),
    text("run", "executor", "executor", "What stood behind the scheduler in a replay: see docs/traces.md."),
    text("run", "clock", "clock", "What times are counted on: `wall`, `virtual`, or the length of a step."),
    text("run", "model", "model", "Name of the model."),
    text("run", "workload", "workload", "Name of the workload."),
    text("run", "allocator", "allocator", "Name of the allocator."),
    text("run", "eviction", "eviction", "Name of the eviction policy."),
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
    Metric(key="trace_bytes", unit="bytes", better="", section="run", title="trace's size",
           definition="Size of that file.", when=never),
    text("run", "not_measured", "not measured", "Why a run that did not end well could not say what it measured."),
    run("seed", "number", "", "seed", "The run's seed."),
    run("num_blocks", "blocks", "", "blocks", "Blocks in the pool, the null block excepted."),
    run("block_size", "tokens", "", "block size", "Tokens in a block."),
    run("tensor_parallel_size", "ranks", "", "ranks", "Ranks that the model is divided over."),
    text("run", "first_failure", "first failure", "Why the first failed request failed."),
    Metric(key="reasons", unit="list", better="", section="run", title="reasons", definition="Why the run failed."),
)  # fmt: skip
