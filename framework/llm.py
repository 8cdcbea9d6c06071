"""The Python API: a model, a cache and an engine in one object."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from framework.config.sections import CacheOptions as CacheOptions
from framework.config.sections import EngineOptions as EngineOptions
from framework.config.sections import FaultOptions as FaultOptions
from framework.engine import graphs
from framework.engine.engine import Engine, ModelLimits
from framework.engine.engine import Trial as Trial
from framework.engine.executors.base import Executor
from framework.engine.executors.build import largest_step_bytes, load_served, serving_executor
from framework.engine.executors.checks import attention_spec, default_device, require_backend, require_no_foresight
from framework.engine.kv_scales import require_scales, scales_name
from framework.engine.pool import block_bytes
from framework.engine.request import Request, StopWatch
from framework.engine.sizes import LengthWarning, Sizes, longest_sequence, pool_blocks, shortened
from framework.engine.streaming import RequestStream, StopTexts, abandon, add_texts
from framework.engine.warm_up import warm_up
from framework.errors import ConfigError, EngineInterrupted, InvalidArgument, shown
from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import Turns
from framework.groups.memory import Memory
from framework.groups.serving import (
    blocks_of_groups,
    groups_of_model,
    placed,
    tokens_that_hold_a_state,
    why_no_group,
)
from framework.interfaces.allocator import Allocator
from framework.interfaces.backend import AttentionBackend
from framework.interfaces.below import Below, BlockTensors, ServedPools
from framework.interfaces.compression import CompressedPool, Compression
from framework.interfaces.groups import KVGroup
from framework.interfaces.scheduling import Scheduling
from framework.model.loading import LoadedModel, fingerprint
from framework.model.tokenizer import encode
from framework.paged.allocator import PagedAllocator
from framework.registry.components import Component, build_allocator, build_component
from framework.registry.culprit import raise_named
from framework.registry.signatures import check_arguments
from framework.sampling import Sampling
from framework.types import Namespace, TokenArray

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class LLM:
    """Serves prompts on a real model through any installed allocator, policy, hash and backend. See docs/python.md.

    Each component is a name ("prefix"), a mapping with options ({"name": "prefix", "watermark": 0.02}), a class, or,
    for eviction, hash, backend, scheduling, compression and below, an object of your own.

    Args:
        model: "tiny", a local checkpoint folder, a hub id, or a LoadedModel.
        backend: None takes "triton" on a CUDA device and "torch" elsewhere.
        cache: the pool, beside dtype, scales and layout of what it holds. None: 16 tokens a block and 1024 blocks on a
            CPU, else a fraction of 0.9 of the memory that the largest step leaves free, which is measured first.
        below: what lies below the pool. Close such an LLM: `close` waits until all is stored there.
        engine: with `tensor_parallel_size` above 1 the model is spread over as many processes, this one included, and
            `num_blocks` counts the same blocks on each, of that rank's heads. Close the LLM, or use it in a `with`.
        trial: the seed, faults to inject, and who listens.

    Attributes:
        max_model_len: longest sequence, tokens: the least of engine.max_model_len, the model's positions and the pool.
            A LengthWarning says where it is less than what was asked for.
        kv_dtype: of K and V in the pool.
        backends: one a layer: `backend`, or a copy of it where layers differ in their sliding window.
        groups: of KV: full attention, and the layers with a sliding window, which keep no more than that, or with a
            recurrent state; see docs/layouts.md. Empty where all layers share one table; `kv_groups_off` says why a
            model that mixes attention with and without a window has none, else "".
        group_blocks: usable blocks of each group's pool, which groups may share; empty without groups.
        kv_bytes: of the KV pools of all ranks together, null blocks and states included; `pool.bytes` are one rank's.
        warm_up_s: seconds that the warm-up steps before the first request took; None: there were none.

    Raises:
        ConfigError, UnknownPlugin, BackendUnavailable, ModelError: before any weights or pool are allocated where
            possible; each says what to change.
        RankError: another rank failed.
        Exception: what a plugin raised, with a note that names it.
    """

    def __init__(
        self,
        model: str | LoadedModel = "tiny",
        *,
        allocator: Component = "prefix_cow",
        eviction: Component = "lru",
        hash: Component = "sha256",
        backend: Component | None = None,
        device: str | None = None,
        cache: CacheOptions | None = None,
        engine: EngineOptions | None = None,
        scheduling: Component = "fcfs",
        compression: Component = "none",
        below: Component = "none",
        trial: Trial | None = None,
    ) -> None:
        check_arguments(LLM, locals())
        if model == "":
            raise ConfigError("model must be a name, a folder or a LoadedModel, found ''")
        options, cache = engine or EngineOptions(), cache or CacheOptions(num_blocks=None)
        self._step_tokens = min(options.chunk_size or options.max_batch_tokens, options.max_batch_tokens)
        self.cache, self._trial = cache, trial or Trial()
        require_no_foresight(eviction)
        self.below: Below = build_component("below", below, {})
        self.scheduling: Scheduling = build_component("scheduling", scheduling, {"seed": self._trial.seed})
        self.compression: Compression = build_component("compression", compression, {"seed": self._trial.seed})
        self.below.check_served(options)
        self.device, self.seed = default_device(device), self._trial.seed
        chosen = backend
        if chosen is None:
            chosen = "triton" if self.device.startswith("cuda") else "torch"
        self.backend: AttentionBackend = build_component("backend", chosen, {"seed": self.seed})
        graphs.choose(options, self.backend, self.device)  # refused before a model is loaded
        self._closed = False
        self._owns_model = not isinstance(model, LoadedModel)
        self.model = load_served(model, self.backend, device=self.device, cache=cache, options=options)
        try:
            require_scales(cache.kv_scales, cache.kv_dtype, self.model.config)
            dtype = str(self.model.decoder.dtype).removeprefix("torch.")
            shard = self.model.decoder.shard
            self.spec = attention_spec(shard.config(self.model.config), dtype, cache)  # of one rank's heads
            self.kv_dtype = self.spec.kv_dtype or dtype
            require_backend(self.backend, self.spec, self.device)
            stored = dtype if self.kv_dtype == dtype else f"{dtype}/{self.kv_dtype}"
            self.namespace = Namespace(model=f"{self.model.name}/{stored}")
            self._components = (allocator, eviction, hash)
            self._settle_groups(options)
            advice = self._settle_sizes(options)
            built = self._build_allocator()
            config = self.model.config
            layers = config.attention_layers
            first = [layers[number] for number in self._served_groups[0].layers] if self.groups else layers
            self.compression.check(CompressedPool(
                allocator=built, below=self.below, num_groups=len(self.groups) or 1,
                windowed=any(config.window(layer) or config.chunk(layer) for layer in first),
                num_ranks=shard.size, backend=self.backend, spec=self.spec,
                captures=bool(graphs.choose(options, self.backend, self.device)[0]),
            ))  # fmt: skip
            executor = serving_executor(
                self.model, self.backend, self.sizes, options, self.device, chosen=chosen, seed=self.seed,
                poison=self._trial.faults.poison, kv_scales=cache.kv_scales,
                kind=self.compression.executor(),
            )  # fmt: skip
            self.pool, self.backends, self._states = executor.pool, executor.by_layer, executor.states
            self.kv_bytes = (self.pool.bytes + sum(one.bytes for one in self._states.values())) * shard.size
            self.executor: Executor = executor
            self.engine = self._make_engine(built, options, advice)
            weakref.finalize(self, _close_below, self.engine, drain=True)
            warms_up = self.device.startswith("cuda")
            self.warm_up_s = warm_up(executor, self.engine.state.rows, self.sizes, options) if warms_up else None
        except BaseException as error:
            self.close()
            raise_named(error)

    def _settle_groups(self, options: EngineOptions) -> None:
        """Whether layers with a sliding window are a group of their own; those with a recurrent state must be.

        Raises:
            ConfigError: what a model with recurrent layers is not served with, or with the `cache.memory` asked for.
        """
        config = self.model.decoder.shard.config(self.model.config)
        served, states = groups_of_model(config, self.spec), bool(config.state_layers)
        self.groups: tuple[KVGroup, ...] = ()
        self.kv_groups_off = ""
        if not served:
            for key in ("memory", "group_block_size"):
                if getattr(self.cache, key) is not None:
                    raise ConfigError(
                        f"cache.{key} is of several groups of KV, and model '{self.model.name}' has one; leave it out"
                    )
            if (chunk := self.spec.attention_chunk) and chunk % self.spec.block_size:
                self.kv_groups_off = f"a chunk of {chunk} tokens is no multiple of blocks of {self.spec.block_size}"
            return
        memory = _memory_of(self.cache)
        if memory.equal_pages and states:
            self.spec = replace(self.spec, block_size=tokens_that_hold_a_state(config, self.spec))
        served = groups_of_model(config, self.spec, memory, self.cache.group_block_size)
        for size in {one.group.block_tokens for one in served}:
            require_backend(self.backend, replace(self.spec, block_size=size), self.device)
        self._served_groups, self._share_memory = served, memory.equal_pages or memory.splits_pages
        kind, policy, hash = self._components
        if memory.equal_pages or isinstance(policy, (str, Mapping, type)):
            self._shares = build_allocator(kind, "lru", hash, num_blocks=1, block_size=self.spec.block_size,
                                           max_model_len=1, seed=self.seed)  # fmt: skip
            why = why_no_group(self._shares)
        else:
            why = "no groups with a policy that is an object: each pool has its own"
        if why and (states or self.cache.memory is not None or self.cache.group_block_size is not None):
            kinds = "recurrent layers, whose states" if states else "layers with a window or a chunk, which"
            raise ConfigError(f"model '{self.model.name}' has {kinds} are served as a group of KV of their own: {why}")
        self.kv_groups_off = why
        self.groups = () if why else tuple(one.group for one in served)

    def _settle_sizes(self, options: EngineOptions) -> str:
        """The pool's blocks and the longest sequence; returns what to change where that is too short."""
        config, spec, positions = self.model.config, self.spec, self.model.config.max_position_embeddings
        sizes = Sizes(
            spec=spec, num_layers=len(config.attention_layers), num_blocks=1,
            max_len=min(options.max_model_len or positions, positions),
        )  # fmt: skip
        num_blocks = pool_blocks(
            self.cache, spec, sizes.num_layers, self.device, self.model.ranks,
            needed=lambda: largest_step_bytes(self.model.decoder, self.backend, sizes, options, self.device),
        )  # fmt: skip
        self._group_bytes = num_blocks * block_bytes(spec, sizes.num_layers)  # where groups share a pool
        self._own_blocks: list[int] = []  # where each has its own
        if self.groups:
            rows = options.max_batch_requests * (1 + self.below.loads)  # as many may wait for loads
            self._own_blocks = blocks_of_groups(self.groups, num_blocks, rows, options.max_batch_tokens)
            memory_decides = self.cache.memory_fraction or self.device.startswith("cuda")
            if self.cache.num_blocks is None and memory_decides and not self._share_memory:
                # It holds more of full attention, whose bytes windows were part of and states were not.
                others = sum(count * group.block_bytes for count, group in
                             zip(self._own_blocks[1:], self.groups[1:], strict=True))  # fmt: skip
                num_blocks = max(1, (self._group_bytes - others) // self.groups[0].block_bytes)
                self._own_blocks[0] = num_blocks
        sizes = replace(sizes, num_blocks=num_blocks)
        max_len, advice = longest_sequence(options.max_model_len, sizes, positions, self.model.name)
        if message := shortened(options.max_model_len, max_len, advice):
            warnings.warn(message, LengthWarning, stacklevel=3)
        self.sizes = replace(sizes, max_len=max_len)
        self.num_blocks, self.max_model_len = num_blocks, max_len
        # What allocators, policies, hashes and what lies below the pool may all ask for.
        self._shared = {"block_size": spec.block_size, "max_model_len": max_len, "seed": self.seed}
        return advice

    @property
    def allocator(self) -> Allocator:
        """The allocator of the blocks that are in use now; another object after `reset`."""
        return self.engine.allocator

    def _build_allocator(self) -> Allocator:
        kind, eviction, hash = self._components
        self.group_blocks: tuple[int, ...] = ()
        if not self.groups:
            self.policy = build_component("eviction", eviction, {"num_blocks": self.num_blocks, **self._shared})
            return build_allocator(kind, self.policy, hash, num_blocks=self.num_blocks, **self._shared)
        assert isinstance(self._shares, PagedAllocator)  # else `why_no_group` has a reason
        memory = _memory_of(self.cache).open(
            self.groups,
            lambda blocks: build_component("eviction", eviction, {**self._shared, "num_blocks": blocks}),
            num_bytes=self._group_bytes, num_blocks=self._own_blocks, unit=self.spec.block_size,
        )  # fmt: skip
        groups = placed(memory, self._served_groups)
        self.sizes, self.group_blocks = replace(self.sizes, groups=groups), tuple(one.num_blocks for one in groups)
        self.policy = memory.pools[0].host.policy.plugin
        shares, size = self._shares, memory.pools[0].num_blocks * self.groups[0].block_bytes
        kind = self.compression.allocator() or GroupedAllocator
        return kind(
            memory, Turns(), build_component("hash", hash, {"seed": self.seed}), num_blocks=self.num_blocks,
            num_bytes=size if self._share_memory else None, step_tokens=self._step_tokens,
            share_prefix=shares.share_prefix, share_forks=shares.share_forks, watermark=shares.watermark,
        )  # fmt: skip

    def _make_engine(self, allocator: Allocator, options: EngineOptions, advice: str) -> Engine:
        tokenizer = self.model.tokenizer

        def watch(number: int, stream: int, stops: Sequence[str]) -> StopWatch:
            return StopTexts(tokenizer.decode, stops)

        return Engine(
            allocator,
            self.executor,
            limits=ModelLimits(
                max_model_len=self.max_model_len,
                length_advice=advice,
                eos_token_ids=tuple(tokenizer.eos_token_ids),
                vocab_size=self.model.config.vocab_size,
                window=None if self.groups else self.model.config.window_of_all_layers,
            ),
            options=options,
            trial=self._trial,
            stop_watch=watch if tokenizer.has_text else None,
            scheduling=self.scheduling,
            compression=self.compression,
            tiers=self.below.serve(lambda: _pools(self, allocator)),
        )

    def close(self, *, drain: bool = True) -> None:
        """Close what lies below, and end the other ranks of a model that was given by name. A LoadedModel stays open.

        Idempotent. Nothing more can be asked then; `stats` and the requests that ended can still be read.

        Args:
            drain: wait first for what is to be stored below.
        """
        self._closed = True
        if hasattr(self, "engine"):  # not where construction failed
            _close_below(self.engine, drain=drain)
        if self._owns_model:
            self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close(drain=raised[0] is None)

    def encode(self, prompt: Prompt) -> TokenArray:
        """Token ids (n,) int32 of a text, of chat messages ({"role", "content"}), or of ids already."""
        return encode(self.model.tokenizer, prompt)

    def submit(self, prompt: Prompt, sampling: Sampling | None = None, **facts: Any) -> Request:
        """Queue one prompt; see Engine.submit for `facts` (arrival_s, priority, tenant, session, namespace)."""
        if self._closed:
            raise InvalidArgument("this LLM is closed: its tiers and ranks have ended; make a new one")
        facts["namespace"] = namespace_of(self.namespace, facts.get("namespace"))
        ids, sampling = self.encode(prompt), _sampling(sampling)
        if self.engine.interrupted:
            self.reset()
        return self.engine.submit(ids, sampling, **facts)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        tenant: str | Sequence[str] = "",
        session: str | Sequence[str | None] | None = None,
        namespace: Namespace | str | Sequence[Namespace | str] | None = None,
        progress: bool = False,
    ) -> list[Request]:
        """Serve all prompts and return them in order, each with its completions and their texts.

        A request that could not be served is among them, with its status and reason; the others are unaffected. What a
        plugin raises, and an interrupt such as Ctrl-C, ends them all; the next call then does a `reset` first.

        Args:
            prompts: one prompt or many, as `encode` takes them.
            sampling, priority, tenant, session, namespace: one for all, or a list with one each. Larger priorities go
                first; only requests of one namespace share blocks, and a text is one with that salt.
            progress: show a progress bar.

        Raises:
            InvalidArgument, InvalidTokens, ModelError: an invalid prompt or value. Nothing is queued.
            EngineInterrupted: the engine must be reset and cannot be, see `reset`.
            Exception: what a plugin raised, with a note that names distribution, class and method.
        """
        if not isinstance(prompts, (str, Sequence, np.ndarray)):
            raise InvalidArgument(f"prompts must be one prompt or a list of prompts, found {shown(prompts)}")
        batch: list[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        each = [
            _one_each(name, values, len(batch))
            for name, values in (
                ("samplings", sampling), ("priorities", priority), ("tenants", tenant), ("sessions", session),
                ("namespaces", namespace),
            )
        ]  # fmt: skip
        encoded = [self.encode(prompt) for prompt in batch]  # a bad one raises before any is queued
        requests: list[Request] = []
        try:
            for ids, one, *values in zip(encoded, *each, strict=True):
                facts = dict(zip(("priority", "tenant", "session", "namespace"), values, strict=True))
                requests.append(self.submit(ids, one, **facts))
            self.drain(progress=progress)
        except BaseException:
            abandon(self.engine, requests)
            raise
        self.add_texts(requests)
        return requests

    def stream(self, prompt: Prompt, sampling: Sampling | None = None, **facts: Any) -> RequestStream:
        """Queue one prompt and iterate over what it generates, as it comes: see RequestStream and Increment.

        Args:
            facts: priority, tenant, session, namespace.

        Raises:
            InvalidArgument: beam search, whose tokens are not settled before its end.
        """
        if _sampling(sampling).beam_width > 1:
            raise InvalidArgument("a beam search cannot be streamed: its tokens are settled at its end; use generate")
        tokenizer = self.model.tokenizer
        request = self.submit(prompt, sampling, **facts)
        return RequestStream(self.engine, request, tokenizer.decode if tokenizer.has_text else None, self.add_texts)

    def cancel(self, request: Request) -> None:
        """End a request now and free its blocks. What it generated so far is kept. Idempotent."""
        if not self.engine.interrupted:  # a reset ends it
            self.engine.cancel(request)

    def reset(self) -> None:
        """Forget all cached content and end all requests, which fail; `stats` start at 0 again.

        Called by the next `submit`, `generate` or `stream` after a step was interrupted.

        Raises:
            EngineInterrupted: a step was interrupted that may have left an object of your own half changed.
            RankError: the other ranks of the model were ended with the step; load it again.
        """
        own_parts = [name for name, part in zip(("allocator", "eviction", "hash"), self._components, strict=True)
                     if not isinstance(part, (str, Mapping, type))]  # fmt: skip
        if not own_parts:
            self.engine.reset(self._build_allocator())
            return
        if self.engine.interrupted:
            raise EngineInterrupted(
                f"a step was interrupted, and {' and '.join(own_parts)} is an object of your own, which may be half "
                "changed: make a new LLM with a new one, or give it by name or class"
            )
        abandon(self.engine, list(self.engine.state.requests.values()))
        self.allocator.reset()
        self.engine.reset(self.allocator)

    def stats(self) -> dict[str, Any]:
        """What was served since the start or the last `reset`, as a serve run's result, and what the pool holds now.

        Beside the keys of docs/results.md: `running`, `waiting` and `unfinished` requests; `free_blocks`,
        `cached_blocks` and `used_blocks`, which sum to `num_blocks`; `kv_bytes`.

        Raises:
            EngineInterrupted: a step is under way, in this thread or another.
        """
        with self.engine.between_steps():
            state = self.engine.state
            served = state.summary(complete=not self.engine.interrupted) | self.executor.summary()
            return served | state.holdings() | pool_facts(self) | {"kv_bytes": self.kv_bytes}

    def drain(self, *, progress: bool = False, on_step: Callable[[Engine], Any] | None = None) -> None:
        """Step until every submitted request has ended."""
        if not progress:
            self.engine.run(on_step)
            return
        from framework.cli.progress import request_progress

        with request_progress(self.engine) as tick:
            self.engine.run(lambda engine: (tick(), on_step and on_step(engine)))

    def add_texts(self, requests: Sequence[Request]) -> None:
        """Decode the completions of `requests`, without their stop token, up to their stop text."""
        tokenizer = self.model.tokenizer
        if tokenizer.has_text:
            add_texts(requests, tokenizer.decode, tokenizer.eos_token_ids)


def namespace_of(model: Namespace, asked: Namespace | str | None) -> Namespace:
    """A request's namespace within a model's: of None the model's own, of a text the one with that salt.

    Raises:
        InvalidArgument: none of these.
    """
    if asked is not None and not isinstance(asked, (str, Namespace)):
        raise InvalidArgument(f"namespace must be a Namespace or a text, its salt, found {shown(asked)}")
    within = asked if isinstance(asked, Namespace) else Namespace(salt=asked or "")
    return replace(within, model=model.model)


def _memory_of(cache: CacheOptions) -> Memory:
    """How groups of KV share memory, not opened; by default pools that know nothing of each other."""
    made: Memory = build_component("memory", cache.memory or {"name": "pool_per_group", "coupled": False}, {})
    return made


def pool_facts(llm: LLM) -> dict[str, Any]:
    """What each group of KV holds and found, of a model that mixes full attention with windows or states, or why
    all layers share one table; and the bytes that compressions gave back."""
    if isinstance(llm.allocator, GroupedAllocator):
        return llm.allocator.results()
    facts: dict[str, Any] = {"kv_groups_off": llm.kv_groups_off} if llm.kv_groups_off else {}
    if (compressor := llm.engine.state.compressor) is not None:
        facts["returned_bytes"] = compressor.returned_blocks * (llm.kv_bytes // (llm.num_blocks + 1))
    return facts


def _pools(llm: LLM, allocator: Allocator) -> ServedPools:
    """What lies below may know of the pools. Holds no reference to `llm`: see `_close_below`."""
    pool, decoder = llm.pool, llm.model.decoder
    groups = [BlockTensors(tensors=pool.tensors_of(0))]
    for number, group in enumerate(llm.groups[1:], 1):
        tensors = pool.tensors_of(number) or [llm._states[number].blocks]
        share = min(1.0, llm.group_blocks[number] / llm.num_blocks)
        groups.append(BlockTensors(tensors=tensors, name=group.name, kind=group.kind, share=share))
    return ServedPools(
        allocator=allocator,
        hash=build_component("hash", llm._components[2], {"seed": llm.seed}),
        shared=llm._shared,
        groups=groups,
        dtype=pool.dtype,
        layout=pool.layout,
        fingerprint=lambda: fingerprint(decoder) + scales_name(pool),
        now=llm.executor.now,
    )


def _sampling(asked: Sampling | None) -> Sampling:
    if asked is not None and not isinstance(asked, Sampling):
        raise InvalidArgument(f"sampling must be a Sampling, found {shown(asked)}")
    return asked or Sampling()


def _is_one_prompt(prompts: Any) -> bool:
    """A text, a list of ids or a chat is one prompt; a list of these is many."""
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence, np.ndarray)))


def _one_each(name: str, values: Any, count: int) -> list[Any]:
    """A list of one for each of `count` prompts, from such a list or from one for all."""
    if not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise InvalidArgument(f"{count} prompts but {len(values)} {name}; give one for all or one each")
    return list(values)


def _close_below(engine: Engine, *, drain: bool) -> None:
    """Also called for an LLM that nobody holds any more: the engine does not refer to it."""
    engine.state.tiers.close(drain=drain)
