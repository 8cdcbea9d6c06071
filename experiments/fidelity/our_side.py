"""A stream of requests through this framework's engine without a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.fidelity.streams import Outcome, Talk, sampling_of
from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import CheckpointRule
from framework.interfaces.allocator import Allocator, CacheEvent
from framework.interfaces.groups import KVGroup
from framework.interfaces.hash import HashScheme
from framework.interfaces.observer import Call, Observer
from framework.registry.components import build_allocator, build_component
from framework.types import BlockHash, Namespace, TokenArray
from framework_builtin.memory.one_pool import OnePool
from framework_hybrid.rules import Dense

_ROOT = BlockHash(b"root")


class VllmHash(HashScheme):
    """vLLM's names of blocks: contents that both engines hold have one name.

    Args:
        function: vLLM's hash function.
        hash_block: its hash_block_tokens(function, parent, tokens, extra keys).
    """

    collision_resistant = True

    def __init__(self, function: Any, hash_block: Callable[..., bytes]) -> None:
        self._hash = functools.partial(hash_block, function)

    def root(self, namespace: Namespace, block_size: int) -> BlockHash:
        """vLLM starts from its NONE_HASH, which it puts in place of no parent."""
        return _ROOT

    def block(self, parent: BlockHash, tokens: TokenArray) -> BlockHash:
        """The name of a full block below `parent`."""
        return BlockHash(self._hash(None if parent == _ROOT else parent, tuple(tokens.tolist()), None))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one replay, by the names they have in a configuration."""

    num_blocks: int
    block_size: int = 16
    max_batch_tokens: int = 8192
    max_batch_requests: int = 64
    eviction: Any = "lru"
    allocator: Any = "prefix"
    hash: Any = "sha256"
    max_model_len: int = 2**18
    groups: Sequence[KVGroup] = ()
    """In one pool, in place of the allocator."""
    rule: CheckpointRule = field(default_factory=Dense)
    scheduling: Any = "fcfs"


def engine_of(
    settings: Settings, outputs: MutableMapping[tuple[int, int], TokenArray], observers: Sequence[Observer] = ()
) -> Engine:
    """The engine that mode=replay executor=none builds of such settings, its clock the number of the step.

    Args:
        outputs: what each request generates.
    """
    blocks, size = settings.num_blocks, settings.block_size
    longest = min(settings.max_model_len, blocks * size)
    if settings.groups:
        page = max(group.block_bytes for group in settings.groups)
        memory = OnePool().open(
            settings.groups, lambda _: build_component("eviction", settings.eviction, {}), num_bytes=blocks * page,
            unit=min(group.block_tokens for group in settings.groups),
        )  # fmt: skip
        allocator: Allocator = GroupedAllocator(
            memory, settings.rule, settings.hash, num_blocks=blocks, num_bytes=blocks * page,
            step_tokens=settings.max_batch_tokens,
        )  # fmt: skip
    else:
        allocator = build_allocator(
            settings.allocator, settings.eviction, settings.hash,
            num_blocks=blocks, block_size=size, max_model_len=longest, seed=0,
        )  # fmt: skip
    return Engine(
        allocator,
        ReplayExecutor(constant_step(1.0), outputs=outputs, step_clock=True),
        limits=ModelLimits(max_model_len=longest),
        options=EngineOptions(
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_requests=settings.max_batch_requests,
        ),
        virtual_clock=True,
        scheduling=build_component("scheduling", settings.scheduling, {"seed": 0}),
        trial=Trial(observers=tuple(observers)),
    )


class _Evicted(Observer):
    """Notes what is evicted, in order."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        for event in events:
            if event.kind == "evict":
                self._outcome.evicted.extend(map(bytes, event.hashes))


def run(
    talks: Sequence[Talk],
    settings: Settings,
    *,
    waiting: int = 64,
    seen: Callable[[Engine], Any] | None = None,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """All requests, in order, no more than `waiting` queued at a time.

    Args:
        seen: called after every step.
    """
    outputs: dict[tuple[int, int], TokenArray] = {}
    outcome, pending = Outcome(), 0
    engine = engine_of(settings, outputs, [_Evicted(outcome), *observers])

    def ended(request: Any) -> None:
        if request.reason:
            raise RuntimeError(f"request {request.number} failed: {request.reason}")
        outcome.hits[request.number] = request.num_cached_tokens

    engine.state.on_end = ended
    forward = engine.executor.forward

    def noted(step: Any, rows: Any) -> None:
        numbers = [rows.sequence(int(row)).request.number for row in step.rows]
        outcome.steps.append(dict(zip(numbers, step.num_new.tolist(), strict=True)))
        forward(step, rows)

    engine.executor.forward = noted  # type: ignore[method-assign]
    while pending < len(talks) or engine.num_unfinished:
        while pending < len(talks) and engine.num_unfinished - engine.state.rows.num_active < waiting:
            outputs[pending, 0] = talks[pending].output
            engine.submit(talks[pending].prompt, sampling_of(talks[pending]))
            pending += 1
        engine.step()
        if seen is not None:
            seen(engine)
    outcome.num_preemptions = engine.metrics.num_preemptions
    return outcome
