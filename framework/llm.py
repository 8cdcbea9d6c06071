"""The Python API: a model, a cache and an engine in one object, for notebooks, tests and the command line alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.config.sections import EngineOptions as EngineOptions
from framework.engine.engine import Engine
from framework.engine.executors.base import Executor
from framework.engine.executors.build import make_executor, require_graphs
from framework.engine.executors.checks import attention_spec, default_device, require_backend
from framework.engine.pool import KVPool, num_blocks_for
from framework.engine.request import Request
from framework.errors import ConfigError, InvalidArgument
from framework.interfaces.backend import AttentionBackend
from framework.model.loading import LoadedModel, load_model, read_model_config
from framework.model.shard import Shard
from framework.model.tokenizer import encode
from framework.parallel.spread import spread_over
from framework.registry.components import Component as Component
from framework.registry.components import build_allocator as build_allocator
from framework.registry.components import build_component as build_component
from framework.sampling import Sampling
from framework.types import Namespace, TokenArray

if TYPE_CHECKING:
    pass

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]

_DEFAULT_BLOCKS = 1024


class LLM:
    """Serves prompts on a real model through any installed allocator, policy, hash and backend.

    Each component is a name ("prefix"), a mapping with options ({"name": "prefix", "watermark": 0.02}), a class, or,
    for eviction, hash and backend, an object of your own.

    Args:
        model: "tiny", a local checkpoint folder, a hub id, or a LoadedModel.
        backend: None takes "triton" on a CUDA device and "torch" elsewhere.
        block_size: tokens a block.
        num_blocks: blocks in the pool; or `memory_fraction` of the device's free memory, 0 to 1. With neither: 0.9 of a
            GPU's, 1024 blocks on a CPU.
        dtype: of weights and KV, torch's name; None takes the checkpoint's own.
        layout: of the KV pool, "NHD" or "HND".
        poison: fill blocks with NaN as they are handed out: a read of what was never written fails its request.
        log: receives scheduling and cache events as (event, **facts).
        engine: with `tensor_parallel_size` above 1 the model is spread over as many processes, this one included, and
            `num_blocks` counts the same blocks on each, of that rank's heads. Close the LLM, or use it in a `with`.

    Raises:
        ConfigError, UnknownPlugin, BackendUnavailable, ModelError: before any weights or pool are allocated where
            possible; each says what to change.
        RankError: another rank failed.
    """

    def __init__(
        self,
        model: str | LoadedModel = "tiny",
        *,
        allocator: Component = "prefix_cow",
        eviction: Component = "lru",
        hash: Component = "sha256",
        backend: Component | None = None,
        block_size: int = 16,
        num_blocks: int | None = None,
        memory_fraction: float | None = None,
        dtype: str | None = None,
        device: str | None = None,
        layout: str = "NHD",
        seed: int = 0,
        poison: bool = False,
        log: Callable[..., Any] | None = None,
        engine: EngineOptions | None = None,
    ) -> None:
        options = engine or EngineOptions()
        self.device, self.seed = default_device(device), seed
        chosen = backend or ("triton" if self.device.startswith("cuda") else "torch")
        self.backend: AttentionBackend = build_component("backend", chosen, {"seed": seed})
        require_graphs(options, self.backend, self.device)
        self._owns_model = not isinstance(model, LoadedModel)
        self.model = self._load(model, dtype, block_size, layout, options)
        try:
            kv_dtype = str(self.model.decoder.dtype).removeprefix("torch.")
            shape = self.model.decoder.shard.config(self.model.config)
            self.spec = attention_spec(shape, kv_dtype, block_size, layout)
            require_backend(self.backend, self.spec, self.device)
            self.num_blocks = self._pool_blocks(num_blocks, memory_fraction)
            self.namespace = Namespace(model=f"{self.model.name}/{kv_dtype}")
            self._start((allocator, eviction, hash), chosen, options, poison, log)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        books: tuple[Component, Component, Component],
        backend: Component,
        options: EngineOptions,
        poison: bool,
        log: Callable[..., Any] | None,
    ) -> None:
        """The allocator, the executor and the engine over both."""
        config, seed, block_size = self.model.config, self.seed, self.spec.block_size
        longest = config.max_position_embeddings
        max_len = min(options.max_model_len or longest, longest, self.num_blocks * block_size)
        self.allocator = build_allocator(
            *books,
            num_blocks=self.num_blocks,
            block_size=block_size,
            max_model_len=max_len,
            seed=seed,
        )
        self.executor = self._make_executor(backend, options, max_len, poison)
        self.engine = Engine(
            self.allocator,
            self.executor,
            max_model_len=max_len,
            max_batch_tokens=options.max_batch_tokens,
            max_batch_requests=options.max_batch_requests,
            chunk_size=options.chunk_size,
            share_within_step=options.share_within_step,
            preempt_every=options.preempt_every,
            eos_token_ids=self.model.tokenizer.eos_token_ids,
            vocab_size=config.vocab_size,
            seed=seed,
            log=log,
        )

    def _load(
        self, model: str | LoadedModel, dtype: str | None, block_size: int, layout: str, options: EngineOptions
    ) -> LoadedModel:
        """The model, after its shape alone has shown that the backend can serve it."""
        size = options.tensor_parallel_size
        if isinstance(model, LoadedModel):
            held = model.decoder.shard.size
            if held != size:
                raise ConfigError(
                    f"engine.tensor_parallel_size is {size}, the model was loaded over {held} ranks; "
                    f"load it with load_model(..., spread=spread_over({size})), or give its name"
                )
            return model
        shape = Shard(0, size).config(read_model_config(model))
        own = dtype if dtype not in (None, "auto") else shape.dtype
        require_backend(self.backend, attention_spec(shape, str(own), block_size, layout), self.device)
        spread = spread_over(size, timeout_s=options.collective_timeout_s)
        return load_model(model, dtype=dtype, device=self.device, spread=spread)

    def _make_executor(self, backend: Component, options: EngineOptions, max_len: int, poison: bool) -> Executor:
        """This process's executor, which leads those of the other ranks if there are any."""
        facts: dict[str, Any] = {
            "num_blocks": self.num_blocks, "max_len": max_len, "options": options, "poison": poison,
        }  # fmt: skip
        ranks, decoder = self.model.ranks, self.model.decoder
        if ranks is None:
            executor = make_executor(decoder, self.backend, self.spec, device=self.device, **facts)
            self.pool: KVPool = executor.pool
            return executor
        ranks.post("serve", backend=backend, spec=self.spec, seed=self.seed, **facts)
        with ranks.in_step():
            executor = make_executor(decoder, self.backend, self.spec, device=self.device, **facts)
            self.pool = executor.pool
            ranks.answers()
        from framework.parallel.leader import LeaderExecutor

        return LeaderExecutor(executor, ranks)

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks that share the model."""
        return self.model.decoder.shard.size

    @property
    def kv_bytes(self) -> int:
        """Of the KV pools of all ranks together, null blocks included; `pool.bytes` are one rank's."""
        return self.pool.bytes * self.tensor_parallel_size

    def close(self) -> None:
        """End the other ranks of a model that was given by name; a LoadedModel stays open. Idempotent."""
        if self._owns_model:
            self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _pool_blocks(self, num_blocks: int | None, fraction: float | None) -> int:
        if num_blocks is not None and fraction is not None:
            raise ConfigError(
                "cache.num_blocks and cache.memory_fraction are both set; give one, set the other to null"
            )
        if num_blocks is not None:
            if num_blocks < 1:
                raise ConfigError(f"cache.num_blocks must be at least 1, found {num_blocks}")
            return num_blocks
        if fraction is None and self.device.startswith("cuda"):
            fraction = 0.9
        if fraction is None:
            return _DEFAULT_BLOCKS
        sizes: dict[str, Any] = {
            "block_size": self.spec.block_size,
            "num_layers": self.model.config.num_layers,
            "num_kv_heads": self.spec.num_kv_heads,
            "head_dim": self.spec.head_dim,
            "dtype": self.spec.dtype,
        }
        ranks = self.model.ranks
        if ranks is None:
            return num_blocks_for(fraction, self.device, **sizes)
        if self.device.startswith("cpu"):
            fraction /= ranks.size  # they share the host's memory
        others: list[int] = ranks.call("blocks_for", fraction=fraction, **sizes)
        return min(num_blocks_for(fraction, self.device, **sizes), *others)

    def encode(self, prompt: Prompt) -> TokenArray:
        """Token ids (n,) int32 of a text, of chat messages ({"role", "content"}), or of ids already."""
        return encode(self.model.tokenizer, prompt)

    def namespace_for(self, namespace: Namespace) -> Namespace:
        """A request's namespace within this model's."""
        return replace(namespace, model=self.namespace.model)

    def submit(self, prompt: Prompt, sampling: Sampling | None = None, **facts: Any) -> Request:
        """Queue one prompt; see Engine.submit for `facts` (arrival_s, priority, tenant, namespace)."""
        facts.setdefault("namespace", self.namespace)
        return self.engine.submit(self.encode(prompt), sampling or Sampling(), **facts)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        progress: bool = False,
    ) -> list[Request]:
        """Serve all prompts and return them in order, each with its completions and their texts.

        A request that could not be served is among them, with its status and reason; the others are unaffected.

        Args:
            prompts: one prompt or many, as `encode` takes them.
            sampling: one for all, or one each.
            progress: show a progress bar.
        """
        batch: list[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        each = [sampling] * len(batch) if sampling is None or isinstance(sampling, Sampling) else list(sampling)
        if len(each) != len(batch):
            raise InvalidArgument(f"{len(batch)} prompts but {len(each)} samplings; give one for all or one each")
        encoded = [self.encode(prompt) for prompt in batch]  # a bad one raises before any is queued
        requests = [
            self.engine.submit(ids, one or Sampling(), namespace=self.namespace)
            for ids, one in zip(encoded, each, strict=True)
        ]
        self.drain(progress=progress)
        self.add_texts(requests)
        return requests

    def drain(self, *, progress: bool = False, on_step: Callable[[Engine], Any] | None = None) -> None:
        """Step until every submitted request has ended."""
        if not progress:
            self.engine.run(on_step)
            return
        from framework.cli.progress import request_progress

        with request_progress(self.engine) as tick:
            self.engine.run(lambda engine: (tick(), on_step and on_step(engine)))

    def add_texts(self, requests: Sequence[Request]) -> None:
        """Decode the completions of `requests`, without their stop token."""
        if not self.model.tokenizer.has_text:
            return
        eos = set(self.model.tokenizer.eos_token_ids)
        for request in requests:
            stops = eos | set(request.sampling.stop_token_ids)
            for completion in request.completions:
                tokens = completion.tokens
                cut = tokens[:-1] if completion.finish_reason == "stop" and tokens[-1] in stops else tokens
                completion.text = self.model.tokenizer.decode(cut)


def _is_one_prompt(prompts: Any) -> bool:
    """A text, a list of ids or a chat is one prompt; a list of these is many."""
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence, np.ndarray)))
