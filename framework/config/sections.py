"""The sections of a configuration: keys, types, defaults, meanings and bounds, each declared here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from framework.validation import Natural, Options, Positive

KVDtype = Literal["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"]
Seconds = Annotated[float, Field(gt=0, le=10**9)]

MAX_BLOCK_SIZE = 2**20
MAX_BLOCKS = 10**8
"""Some 80 bytes of metadata a block: 8 GB, and half a minute to begin with."""
OF_A_MODEL: Final = "of a model"
"""Marks a setting that only a run reads which computes a model."""


class CacheOptions(Options):
    """The pool that all components share. Sizes in blocks and tokens, dtypes by torch's names."""

    section: ClassVar[str] = "cache"

    num_blocks: int | None = Field(
        default=256, description="blocks in the pool; null with memory_fraction", ge=1, le=MAX_BLOCKS
    )
    block_size: int = Field(default=16, description="tokens a block", ge=1, le=MAX_BLOCK_SIZE)
    memory_fraction: float | None = Field(
        default=None, description="share of the device's free memory; needs num_blocks=null", gt=0, le=1
    )
    kv_dtype: KVDtype | None = Field(default=None, description="dtype of K and V in the pool; null: the model's")
    kv_scales: str | None = Field(
        default=None, description="JSON file with the scales of a float8_e4m3fn pool; null: calibrated by a first pass"
    )
    memory: str | Mapping[str, Any] | None = Field(
        default=None,
        description="how groups of KV share memory, as one_pool; null: one_pool in mode=hybrid, else pools that know "
        "nothing of each other",
    )
    group_block_size: Mapping[str, int] | None = Field(
        default=None,
        description="tokens a block of groups of KV after the first, by kind, as {state: 512}: multiples of block_size",
    )
    layout: Literal["NHD", "HND"] = Field(
        default="NHD", description="order of a block's dimensions in memory: NHD | HND"
    )


class FaultOptions(Options):
    """Faults that are injected, to show that results do not depend on luck."""

    section: ClassVar[str] = "faults"

    poison: Annotated[bool, OF_A_MODEL] = Field(default=False, description="NaN in every block as it is handed out")
    preempt_every: Natural = Field(default=0, description="preempt the newest row every so many steps; 0: never")


class EngineOptions(Options):
    """How the engine batches and runs the model."""

    section: ClassVar[str] = "engine"

    max_batch_tokens: int = Field(default=2048, description="tokens computed a step", ge=1, le=2**22)
    max_batch_requests: int = Field(default=64, description="rows run a step", ge=1, le=2**16)
    chunk_size: Positive | None = Field(
        default=None, description="prompt tokens of one request a step; null: up to max_batch_tokens"
    )
    max_model_len: int | None = Field(
        default=None, description="longest sequence, tokens; null: the model's, at most the pool", ge=1, le=2**31 - 1
    )
    compile: Annotated[bool, OF_A_MODEL] = Field(default=False, description="the decoder through torch.compile")
    cuda_graphs: Annotated[Literal["auto"] | bool, OF_A_MODEL] = Field(
        default="auto",
        description="decode steps as CUDA graphs: auto (where device and backend can) | true (or an error) | false",
    )
    prepack: Annotated[bool, OF_A_MODEL] = Field(
        default=True, description="on a CPU: the weights once more in oneDNN's layout, faster at twice the memory"
    )
    num_threads: Annotated[int | None, OF_A_MODEL] = Field(
        default=None,
        description="on a CPU: threads of torch; null: one for a small model, else torch's own number or "
        "OMP_NUM_THREADS",
        ge=1,
        le=4096,
    )
    tensor_parallel_size: int = Field(
        default=1,
        description="ranks that share the model, each a process and, on CUDA, a device; executor=roofline: devices "
        "that do",
        ge=1,
        le=1024,
    )


class ReplayOptions(Options):
    """A trace without a model."""

    section: ClassVar[str] = "replay"

    step_s: Seconds = Field(default=0.025, description="executor=none: seconds a step takes")
    costs: str | None = Field(
        default=None,
        description="executor=none: file of `python -m framework calibrate`, whose costs time each step in place of "
        "step_s",
    )
    optimum: bool = Field(
        default=False,
        description="also report the gap to offline next use: replay once more with it as the policy, twice the time",
    )
    capacity: str | None = Field(
        default=None,
        description="in place of cache.num_blocks: 40GiB of K and V; mode=cache_only: or 25% of the trace's blocks",
    )
    slo_ttft_s: float = Field(default=2.0, description="goodput: most seconds to the first token", gt=0)
    slo_tpot_s: float = Field(default=0.1, description="goodput: most seconds for each later token", gt=0)
    device: str = Field(
        default="h200",
        description="executor=roofline and mode=kernel, chip of modelled times: h200 | h100 | a100 | l40s",
    )
    shape: str = Field(
        default="llama-3.1-8b", description="executor=roofline and capacity: a name in framework.replay.roofline"
    )
    efficiency: float = Field(
        default=0.8, description="executor=roofline: share of the device's ceilings that is reached", gt=0, le=1
    )


class RunOptions(Options):
    """Where a run writes, and what."""

    section: ClassVar[str] = "run"

    name: str | None = Field(default=None, description="name of the run; null: the components' names")
    dir: str = Field(description="the run directory")
    sweep: str = Field(default="", description="the folder of a --multirun, below sweeps/")
    overwrite: bool = Field(default=True, description="replace what an earlier run left in dir")
    progress: bool = Field(default=True, description="progress on standard error")
    events: bool = Field(default=False, description="write the eviction and scheduling log")
    requests: bool = Field(default=True, description="write requests.jsonl, one object a request")
    record: Annotated[bool, OF_A_MODEL] = Field(
        default=False, description="serve: write recording.jsonl, for workload=recording"
    )
    chunk: Positive = Field(
        default=1, description="a sweep: so many jobs one after the other in a process that reads each trace once"
    )
    report: Literal[False] | str = Field(
        default="report --publish", description="a sweep: the command that is given its folder at its end; false: none"
    )
    stall_timeout_s: Seconds | None = Field(
        default=300.0,
        description="seconds one call into a plugin may take before the run ends and names it; null: no limit",
    )
    timeout_s: Seconds | None = Field(
        default=None, description="seconds a run may take: in a sweep, a job that takes longer is a failed row"
    )
    check_requests: Natural = Field(
        default=8, description="serve: compare so many requests' tokens with the dense model's"
    )
