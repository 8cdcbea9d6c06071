"""Checks of device and attention backend before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from framework import registry
from framework.config.sections import CacheOptions
from framework.engine.kv_scales import require_scales
from framework.errors import BackendUnavailable, ConfigError
from framework.guard.backend import GuardedBackend
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.model.config import ModelConfig
from framework.model.shard import Shard
from framework.registry.components import Component


def default_device(device: str | None) -> str:
    """`device`, or "cuda" where torch sees one, else "cpu".

    Raises:
        ConfigError: a device torch does not know, or a CUDA device that is not there.
    """
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ConfigError(f"device must be cpu, cuda or cuda:N, found {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} was asked for, but torch {torch.__version__} sees no CUDA device")
    return device


def attention_spec(config: ModelConfig, dtype: str, cache: CacheOptions) -> AttentionSpec:
    """What a model of this dtype asks of a backend over such a cache.

    Where some layers have a sliding window or a chunk and others have none it is that of those with one, which asks
    for more.
    """
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        block_size=cache.block_size,
        kv_dtype=None if cache.kv_dtype == dtype else cache.kv_dtype,
        layout=cache.layout,
        scale=config.attention_scale,
        sliding_window=config.sliding_window,
        attention_chunk=config.attention_chunk,
        soft_cap=config.soft_cap,
        sinks=config.sinks,
        latent_dim=config.latent_dim,
        index_dim=config.index_dim,
    )


def require_served(
    model: ModelConfig, dtype: str | None, backend: AttentionBackend, device: str, cache: CacheOptions, num_ranks: int
) -> None:
    """Raise unless the backend can serve a model of this shape, divided over so many ranks, here.

    Args:
        dtype: of the weights; None: the model's own.

    Raises:
        BackendUnavailable: with its reasons and what would work.
        InvalidArgument: the model does not divide so.
        ConfigError: scales that do not fit.
    """
    require_scales(cache.kv_scales, cache.kv_dtype, model)
    shape = Shard(0, num_ranks).config(model)
    require_backend(backend, attention_spec(shape, dtype or shape.dtype, cache), device)


def require_no_foresight(eviction: Component) -> None:
    """Refuse `belady` and the like, however they are given: nobody knows the future of requests that are served.

    Raises:
        ConfigError: the policy needs every block's next use.
    """
    name = eviction.get("name") if isinstance(eviction, Mapping) else eviction
    policy = registry.load("eviction", name) if isinstance(name, str) else name
    if getattr(policy, "needs_future", False):
        called = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
        raise ConfigError(
            f"eviction={called} needs every block's next use, which is known in a replay only; use mode=replay with "
            "workload=trace, or another policy"
        )


def require_backend(backend: AttentionBackend, spec: AttentionSpec, device: str) -> None:
    """Raise unless `backend` can serve `spec` on `device`.

    Raises:
        BackendUnavailable: all the reasons, and the installed backends that would work.
    """
    reasons = GuardedBackend(backend).check(spec, device)
    if not reasons:
        return
    others = []
    for name in registry.names("backend"):
        try:
            if not GuardedBackend(registry.build("backend", name, {}, {})).check(spec, device):
                others.append(name)
        except Exception:  # one that cannot be asked is none that would work
            continue
    raise BackendUnavailable(
        f"{type(backend).__name__} cannot run here: {'; '.join(reasons)}. Would work: {', '.join(others) or 'none'}"
    )
