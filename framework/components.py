"""From a name, a mapping or a class to an object: what serve, replay and tests build alike. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from framework import registry
from framework.errors import ConfigError
from framework.interfaces.allocator import Allocator
from framework.parameters import signature

Component = str | Mapping[str, Any] | type | object


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine batches.

    Attributes:
        max_batch_tokens, max_batch_requests: tokens computed and rows run a step, at most.
        chunk_size: prompt tokens of one request a step, at most; None leaves it to max_batch_tokens.
        max_model_len: longest sequence in tokens; None takes the model's, at most the pool.
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
    preempt_every: int = 0
    compile: bool = False
    cuda_graphs: Literal["auto", True, False] = "auto"
    graph_batch_sizes: tuple[int, ...] | None = None
    prepack: bool = True
    tensor_parallel_size: int = 1
    collective_timeout_s: float = 300.0


_OF_A_MODEL = (
    "compile", "cuda_graphs", "graph_batch_sizes", "prepack", "tensor_parallel_size", "collective_timeout_s",
)  # fmt: skip


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """Of a configuration: one sentence on the engine settings, other than their defaults, that its mode never reads."""
    mode, executor = config.get("mode", "serve"), config.get("executor")
    if mode == "serve":
        return []
    place = f"mode={mode}" + (f" executor={executor}" if executor == "cache_only" else "")
    unread = _OF_A_MODEL if place == "mode=replay" else tuple(field.name for field in fields(EngineOptions))
    engine, defaults = config.get("engine") or {}, EngineOptions()
    found = [
        f"engine.{name}={engine[name]}" for name in unread if name in engine and engine[name] != getattr(defaults, name)
    ]
    return [f"no effect in {place}: {', '.join(found)}"] if found else []


def build_component(kind: str, component: Component, shared: Mapping[str, Any]) -> Any:
    """A name, a mapping with a name, or a class becomes an object; an object stays itself."""
    if isinstance(component, str):
        return registry.build(kind, component, {}, shared)
    if isinstance(component, Mapping):
        options = {key: value for key, value in component.items() if key != "name"}
        return registry.build(kind, str(component["name"]), options, shared)
    if isinstance(component, type):
        return construct(component, shared)
    return component


def construct(cls: type, shared: Mapping[str, Any]) -> Any:
    """A class of your own, made with the shared values that its constructor names."""
    named = signature(cls).names()
    return cls(**{key: value for key, value in shared.items() if key in named})


def build_allocator(
    allocator: Component,
    eviction: Component,
    hash: Component,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    seed: int = 0,
) -> Allocator:
    """The allocator with its policy and hash scheme; what serve and replay share."""
    if block_size < 1:
        raise ConfigError(f"cache.block_size must be at least 1, found {block_size}")
    shared: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "seed": seed,
    }
    shared["eviction"] = build_component("eviction", eviction, shared)
    shared["hash"] = build_component("hash", hash, shared)
    built: Allocator = build_component("allocator", allocator, shared)
    return built
