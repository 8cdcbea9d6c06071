"""The sections of a configuration: keys, types, defaults, meanings and bounds, each declared here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from framework.config.setting import Section, setting

KVDtype = Literal["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"]

MAX_BLOCK_SIZE = 2**20
MAX_BLOCKS = 10**8
"""Some 80 bytes of metadata a block: 8 GB, and half a minute to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions(Section):
    """The pool that all components share. Sizes in blocks and tokens, dtypes by torch's names."""

    section: ClassVar[str] = "cache"

    num_blocks: int | None = setting(
        256, "blocks in the pool; null with memory_fraction", at_least=1, at_most=MAX_BLOCKS
    )
    block_size: int = setting(16, "tokens a block", at_least=1, at_most=MAX_BLOCK_SIZE)
    memory_fraction: float | None = setting(
        None, "share of the device's free memory; needs num_blocks=null", above=0, at_most=1
    )
    kv_dtype: KVDtype | None = setting(None, "dtype of K and V in the pool; null: the model's")
    kv_scales: str | None = setting(
        None, "JSON file with the scales of a float8_e4m3fn pool; null: calibrated by a first pass"
    )
    layout: Literal["NHD", "HND"] = setting("NHD", "order of a block's dimensions in memory: NHD | HND")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions(Section):
    """Faults that are injected, to show that results do not depend on luck."""

    section: ClassVar[str] = "faults"

    poison: bool = setting(False, "NaN in every block as it is handed out", of_a_model=True)
    preempt_every: int = setting(0, "preempt the newest row every so many steps; 0: never", at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(Section):
    """How the engine batches and runs the model."""

    section: ClassVar[str] = "engine"

    max_batch_tokens: int = setting(2048, "tokens computed a step", at_least=1, at_most=2**22)
    max_batch_requests: int = setting(64, "rows run a step", at_least=1, at_most=2**16)
    chunk_size: int | None = setting(
        None, "prompt tokens of one request a step; null: up to max_batch_tokens", at_least=1
    )
    max_model_len: int | None = setting(
        None, "longest sequence, tokens; null: the model's, at most the pool", at_least=1, at_most=2**31 - 1
    )
    compile: bool = setting(False, "the decoder through torch.compile", of_a_model=True)
    cuda_graphs: Literal["auto", True, False] = setting(
        "auto",
        "decode steps as CUDA graphs: auto (where device and backend can) | true (or an error) | false",
        of_a_model=True,
    )
    prepack: bool = setting(
        True, "on a CPU: the weights once more in oneDNN's layout, faster at twice the memory", of_a_model=True
    )
    num_threads: int | None = setting(
        None, "on a CPU: threads of torch; null: one for a small model, else torch's own number or OMP_NUM_THREADS",
        at_least=1, at_most=4096, of_a_model=True,
    )  # fmt: skip
    tensor_parallel_size: int = setting(
        1,
        "ranks that share the model, each a process and, on CUDA, a device; executor=roofline: devices that do",
        at_least=1,
        at_most=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Section):
    """A trace without a model."""

    section: ClassVar[str] = "replay"

    step_s: float = setting(0.025, "executor=none: seconds a step takes", above=0, at_most=10**9)
    costs: str | None = setting(
        None, "executor=none: file of `python -m framework calibrate`, whose costs time each step in place of step_s"
    )
    optimum: bool = setting(
        False, "also report the gap to offline next use: replay once more with it as the policy, twice the time"
    )
    capacity: str | None = setting(
        None, "in place of cache.num_blocks: 40GiB of K and V; mode=cache_only: or 25% of the trace's blocks"
    )
    slo_ttft_s: float = setting(2.0, "goodput: most seconds to the first token", above=0)
    slo_tpot_s: float = setting(0.1, "goodput: most seconds for each later token", above=0)
    device: str = setting(
        "h200", "executor=roofline and mode=kernel, chip of modelled times: h200 | h100 | a100 | l40s"
    )
    shape: str = setting("llama-3.1-8b", "executor=roofline and capacity: a name in framework.replay.roofline")
    efficiency: float = setting(
        0.8, "executor=roofline: share of the device's ceilings that is reached", above=0, at_most=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Section):
    """Where a run writes, and what."""

    section: ClassVar[str] = "run"

    name: str | None = setting(None, "name of the run; null: the components' names")
    dir: str = setting(doc="the run directory")
    sweep: str = setting("", "the folder of a --multirun, below sweeps/")
    overwrite: bool = setting(True, "replace what an earlier run left in dir")
    progress: bool = setting(True, "progress on standard error")
    events: bool = setting(False, "write the eviction and scheduling log")
    requests: bool = setting(True, "write requests.jsonl, one object a request")
    record: bool = setting(False, "serve: write recording.jsonl, for workload=recording")
    report: Literal[False] | str = setting(
        "report --publish", "a sweep: the command that is given its folder at its end; false: none"
    )
    stall_timeout_s: float | None = setting(
        300.0, "seconds one call into a plugin may take before the run ends and names it; null: no limit",
        above=0, at_most=10**9,
    )  # fmt: skip
    timeout_s: float | None = setting(
        None, "seconds a run may take: in a sweep, a job that takes longer is a failed row", above=0, at_most=10**9
    )
    check_requests: int = setting(8, "serve: compare so many requests' tokens with the dense model's", at_least=0)


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        cls.section: cls
        for cls in (
            CacheOptions,
            EngineOptions,
            ReplayOptions,
            RunOptions,
            FaultOptions,
        )
    }
)
"""Name -> its class, in the order that `--help` and config.yaml show them."""
