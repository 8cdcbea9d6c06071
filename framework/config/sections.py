"""The sections of a configuration, each as a dataclass: keys, types and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Lengths = Literal["uniform", "ragged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The pool that all components share: sizes in blocks and tokens, dtypes by torch's names."""

    num_blocks: int | None
    block_size: int
    memory_fraction: float | None
    dtype: str | None
    layout: Literal["NHD", "HND"]
    poison: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run writes, and what."""

    name: str | None
    group: str | None
    dir: str
    sweep: str
    overwrite: bool
    progress: bool
    events: bool
    record: bool
    report: bool
    stop_after_io_failures: int
    log_every: int
    stall_timeout_s: float | None
    timeout_s: float | None
    check_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine batches.

    Attributes:
        max_batch_tokens, max_batch_requests: tokens computed and rows run a step, at most.
        chunk_size: prompt tokens of one request a step, at most; None leaves it to max_batch_tokens.
        max_model_len: longest sequence in tokens; None takes the model's, at most the pool.
        share_within_step: requests admitted in one step share the blocks that one of them computes in it. False: a
            block is found from the next step on.
        preempt_every: fault injection, preempts the newest row every so many steps.
        compile: run the decoder through torch.compile.
        cuda_graphs: replay decode steps as CUDA graphs. "auto": where device and backend allow it, and the result says
            why not elsewhere; True: an error elsewhere.
        graph_batch_sizes: rows of the captured steps; None: 1, 2, 4 and so on, and max_batch_requests.
        prepack: on a CPU, keep a second copy of the weights in the layout oneDNN multiplies fastest.
        tensor_parallel_size: ranks that share the model's heads, MLP and vocabulary, each a process and, on CUDA, a
            device.
        collective_timeout_s: seconds a rank may keep the others waiting before the run fails.
    """

    max_batch_tokens: int = 2048
    max_batch_requests: int = 64
    chunk_size: int | None = None
    max_model_len: int | None = None
    share_within_step: bool = False
    preempt_every: int = 0
    compile: bool = False
    cuda_graphs: Literal["auto", True, False] = "auto"
    graph_batch_sizes: tuple[int, ...] | None = None
    prepack: bool = True
    tensor_parallel_size: int = 1
    collective_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What the `replay` section of a configuration may say.

    Attributes:
        step_s: seconds a step takes under `executor=none`.
        leaf_first, full_blocks_only: switches of `executor=cache_only`; see replay.reference.
        optimum: report the gap to the offline optimum under `executor=cache_only`; costs one more pass.
        capacity: the pool in place of cache.num_blocks: "40GiB" of K and V of `shape` and `dtype`, or, under
            `executor=cache_only`, "25%" of the trace's distinct blocks.
        slo_ttft_s, slo_tpot_s: objectives that a request must meet to count as goodput.
        device, shape, dtype, efficiency, overhead_s: of `executor=roofline`; see Roofline.
    """

    step_s: float = 0.025
    leaf_first: bool = False
    full_blocks_only: bool = False
    optimum: bool = True
    capacity: str | None = None
    slo_ttft_s: float = 2.0
    slo_tpot_s: float = 0.1
    device: str = "h200"
    shape: str = "llama-3.1-8b"
    dtype: str = "bfloat16"
    efficiency: float = 0.8
    overhead_s: float = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOptions:
    """What the `kernel` section of a configuration may say. Lists span the grid; null takes the device's own.

    Attributes:
        batch, context: decode: rows, and the longest row's context in tokens.
        prefill: causal prefill of one prompt of so many tokens, each a cell; an empty list for none.
        lengths: of a decode batch: "uniform", or "ragged" from a tenth of the context up.
        heads: "query/kv/dim", such as "32/8/128".
        block_size: tokens; null: cache.block_size.
        dtype, kv_dtype: of queries and of the pool, torch's names; a null KV dtype is that of the queries.
        budget_s: timing of one cell, seconds, about.
        max_bytes: cells whose buffers would be larger are reported and left out.
        target: the chip of the modelled floor, a name in framework.replay.roofline.DEVICES.
    """

    batch: tuple[int, ...] | None = None
    context: tuple[int, ...] | None = None
    prefill: tuple[int, ...] | None = None
    lengths: tuple[Lengths, ...] = ("uniform", "ragged")
    heads: tuple[str, ...] | None = None
    block_size: tuple[int, ...] | None = None
    dtype: tuple[str, ...] | None = None
    kv_dtype: tuple[str | None, ...] = (None,)
    budget_s: float = 1.0
    max_bytes: int | None = None
    target: str = "h200"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Every top-level key. Components are nodes of a `name` and options; the last five are checked by their owners."""

    mode: Literal["serve", "replay", "kernel"]
    executor: Literal["model", "none", "roofline", "cache_only"] | None
    seed: int
    device: str | None
    cache: Cache
    engine: EngineOptions
    replay: ReplayOptions
    kernel: KernelOptions
    run: Run
    allocator: Mapping[str, Any]
    eviction: Mapping[str, Any]
    hash: Mapping[str, Any]
    backend: Mapping[str, Any]
    model: Mapping[str, Any]
    workload: Mapping[str, Any]
    tracker: Mapping[str, Any]
    experiment: Any
    sweep: Any


SECTIONS: Mapping[str, type] = {
    "cache": Cache,
    "engine": EngineOptions,
    "replay": ReplayOptions,
    "kernel": KernelOptions,
    "run": Run,
}
