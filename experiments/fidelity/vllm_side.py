"""vLLM's own Scheduler and KVCacheManager on a CPU: its configuration, and a model runner's outputs made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_utils import get_block_hash, get_request_block_hasher, hash_block_tokens, init_none_hash
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from experiments.fidelity.our_side import VllmHash
from experiments.fidelity.streams import Outcome, Talk
from framework.errors import OutOfBlocks
from framework.interfaces.groups import KVGroup, alignment

HASH = get_hash_fn_by_name("sha256_cbor")


class _Model(SimpleNamespace):
    """What the scheduler asks of a model's configuration: a decoder of text. Any other property is False."""

    def __getattr__(self, name: str) -> bool:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def hash_scheme() -> VllmHash:
    """vLLM's names of blocks, for the replay."""
    init_none_hash(HASH)
    return VllmHash(HASH, hash_block_tokens)


def specs_of(groups: Sequence[KVGroup]) -> list[KVCacheGroupSpec]:
    """The same groups in vLLM's words, each of one layer."""
    heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    make: dict[str, Callable[[KVGroup], Any]] = {
        "full": lambda g: FullAttentionSpec(block_size=g.block_tokens, **heads),
        "window": lambda g: SlidingWindowSpec(block_size=g.block_tokens, sliding_window=g.length, **heads),
        "chunk": lambda g: ChunkedLocalAttentionSpec(block_size=g.block_tokens, attention_chunk_size=g.length, **heads),
        "state": lambda g: MambaSpec(
            block_size=g.block_tokens, shapes=((1,),), dtypes=(torch.float16,), mamba_cache_mode="align"
        ),
    }
    return [KVCacheGroupSpec([f"layer.{i}"], make[g.kind](g), is_eagle_group=g.lookahead_drop)
            for i, g in enumerate(groups)]  # fmt: skip


def scheduler_of(
    *,
    num_blocks: int,
    block_size: int = 16,
    max_batch_tokens: int = 8192,
    max_batch_requests: int = 64,
    max_model_len: int = 2**18,
    watermark: float = 0.0,
    transfer: dict[str, Any] | None = None,
    events: bool = False,
    groups: Sequence[KVGroup] = (),
    retention: int | None = None,
    scheduling: Any = None,
) -> Scheduler:
    """vLLM's scheduler over `num_blocks` usable blocks, and its null block.

    Args:
        transfer: of the connector, as --kv-transfer-config; None for none.
        groups: instead of one of full attention in blocks of `block_size`.
        retention: prefix_cache_retention_interval, of groups that are not all full attention.
        scheduling: an order of ours, its clock the number of the step; None for vLLM's own scheduler.
    """
    init_none_hash(HASH)
    config = VllmConfig(
        cache_config=CacheConfig(
            block_size=max([block_size, *(g.block_tokens for g in groups)]), gpu_memory_utilization=0.9,
            cache_dtype="auto", enable_prefix_caching=True,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_batch_requests, max_num_batched_tokens=max_batch_tokens, max_model_len=max_model_len,
            enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=False, watermark=watermark,
            disable_hybrid_kv_cache_manager=True,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null") if events else None,
    )  # fmt: skip
    config.cache_config.num_gpu_blocks = num_blocks + 1
    if any(group.kind == "state" for group in groups):
        config.cache_config.mamba_cache_mode = "align"
    groups = groups or (KVGroup(name="full", kind="full", block_tokens=block_size, block_bytes=1),)
    config.model_config = _Model(max_model_len=max_model_len, runner_type="generate", skip_tokenizer_init=True)
    manager: Any = vllm_scheduler.KVCacheManager
    drops = any(group.lookahead_drop for group in groups)  # which a draft model's configuration would bring

    def managed(**options: Any) -> Any:
        return manager(**{**options, "use_eagle": drops})

    made: Any = Scheduler
    if scheduling is not None:
        config.additional_config = {"scheduling": scheduling, "scheduling_clock": "steps"}
        made = resolve_obj_by_qualname("framework_engines.vllm_scheduling.OrderedScheduler")
    with patch.object(vllm_scheduler, "KVCacheManager", managed):
        return made(  # type: ignore[no-any-return]
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=specs_of(groups),
                prefix_cache_retention_interval=retention,
            ),
            structured_output_manager=StructuredOutputManager(config), log_stats=True,
            block_size=alignment(groups), hash_block_size=min(group.block_tokens for group in groups),
        )  # fmt: skip


def request_of(name: str, request: Talk, block_size: int, **facts: Any) -> Request:
    """A request that generates as many tokens as its answer has."""
    return Request(
        request_id=name,
        prompt_token_ids=request.prompt.tolist(),
        sampling_params=SamplingParams(max_tokens=len(request.output), ignore_eos=True),
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=get_request_block_hasher(block_size, HASH),
        **facts,
    )


def run(
    talks: Sequence[Talk], scheduler: Scheduler, *, waiting: int = 64, seen: Callable[[Scheduler], Any] | None = None
) -> Outcome:
    """All requests, in order, no more than `waiting` queued at a time.

    Args:
        seen: called after every step.

    Raises:
        OutOfBlocks: a request that never fits.
    """
    outcome, pending, requests, idle = Outcome(), 0, scheduler.requests, 0
    _note_evictions(scheduler.kv_cache_manager.block_pool, outcome.evicted)
    while pending < len(talks) or scheduler.has_unfinished_requests():
        while pending < len(talks) and len(scheduler.waiting) < waiting:
            scheduler.add_request(request_of(str(pending), talks[pending], scheduler.hash_block_size))
            pending += 1
        scheduled = scheduler.schedule()
        idle = 0 if scheduled.num_scheduled_tokens else idle + 1
        if idle > 1_000:
            raise OutOfBlocks(f"vLLM scheduled nothing in {idle} steps: a request does not fit; give it more blocks")
        for new in scheduled.scheduled_new_reqs:
            outcome.hits.setdefault(int(new.req_id), new.num_computed_tokens)  # preempted ones come again
        outcome.num_preemptions += len(scheduled.preempted_req_ids or ())
        names = list(scheduled.num_scheduled_tokens)
        outcome.steps.append({int(name): count for name, count in scheduled.num_scheduled_tokens.items()})
        sampled = [_answer(requests[name], talks[int(name)]) for name in names]
        scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        if seen is not None:
            seen(scheduler)
    return outcome


def _answer(request: Request, source: Talk) -> list[int]:
    """What a model generates in a step: a token, once all that came before it is computed."""
    if request.num_computed_tokens < request.num_tokens:
        return []
    return [int(source.output[request.num_output_tokens])]


def _note_evictions(pool: Any, evicted: list[bytes]) -> None:
    evict = pool._maybe_evict_cached_block

    def noted(block: Any) -> bool:
        name = block.block_hash
        gone: bool = evict(block)
        if gone:
            evicted.append(bytes(get_block_hash(name)))
        return gone

    pool._maybe_evict_cached_block = noted
