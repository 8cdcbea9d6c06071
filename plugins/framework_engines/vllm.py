"""Our eviction policies in vLLM's CPU tier, as its `CachePolicy`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from framework.errors import InvalidArgument, Unsupported
from framework.registry.components import Component
from framework_engines.host_blocks import HostBlocks, build_policy

INTERFACE = "vllm 0.33.0, vllm/v1/kv_offload/cpu/policies/base.py"
"""Where the signatures below were taken from."""

_PREFIX = "kvlab_"


def __getattr__(name: str) -> Any:
    """`kvlab_<policy>`: the class of an installed policy, for vLLM to find by module path and name."""
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; policies are named {_PREFIX}<policy>")
    return as_vllm(name.removeprefix(_PREFIX))


def as_vllm(policy: Component, *, chunk_tokens: int = 16, seed: int = 0, base: type | None = None) -> type[Any]:
    """A subclass of vLLM's `CachePolicy` that evicts as `policy` does.

    vLLM makes the object itself, with `cache_capacity` in chunks. An engine needs no code: in the offloading
    connector's extra configuration,
    `{"eviction_policy": "kvlab_s3fifo", "cache_policy_module_path": "framework_engines.vllm"}`.

    A chunk being stored or loaded is no candidate. A request's accesses are reported once, when it finished: the chunks
    it reused are hit, deepest first; chunks it only created were admitted before. Depth and tokens come from the
    positions that vLLM gives keys; a key without one counts as a root chunk. vLLM stores
    root first, so a policy that goes by admission alone loses roots first. No tenants, priorities or children.
    Interface: `INTERFACE`.

    Args:
        policy: an installed policy's name, a mapping with a name and options, a class, or an object (copied).
        chunk_tokens: tokens of a chunk.
        seed: for policies that draw.
        base: the class to derive from; None imports vLLM's.

    Raises:
        InvalidArgument: `chunk_tokens` below 1; no eviction policy.
        Unsupported: vLLM is not installed or has another interface, or the policy reads the future.
    """
    if chunk_tokens < 1:
        raise InvalidArgument(f"chunk_tokens must be at least 1, found {chunk_tokens}")
    if base is None:
        try:
            base = importlib.import_module("vllm.v1.kv_offload.cpu.policies.base").CachePolicy
        except (ImportError, AttributeError) as error:
            raise Unsupported(f"vLLM's CachePolicy cannot be imported ({error}); needed is {INTERFACE}") from error
    lacking = [hook for hook in ("mark_evictable", "mark_non_evictable") if not hasattr(base, hook)]
    if lacking:
        raise Unsupported(f"{base.__module__}.CachePolicy has no {' or '.join(lacking)}; needed is that of {INTERFACE}")
    name = type(build_policy(policy, 1, seed=seed)).__name__  # refused here, rather than when an engine starts

    def start(self: Any, cache_capacity: int) -> None:
        base.__init__(self, cache_capacity)  # type: ignore[misc]
        self._make = lambda: HostBlocks(
            build_policy(policy, cache_capacity, block_size=chunk_tokens, seed=seed), cache_capacity
        )
        self._chunk_tokens = chunk_tokens
        self.clear()

    return type(f"{name}CachePolicy", (_Methods, base), {"__init__": start, "__doc__": f"{name}, by {__name__}."})


class _Methods:
    """`CachePolicy`'s methods over a policy's host. `key`s are vLLM's bytes, `chunk`s its `ChunkStatus`."""

    _make: Any
    _chunk_tokens: int

    def clear(self) -> None:
        """All chunks are gone, whoever uses them, and the policy has learnt nothing."""
        self._host: HostBlocks = self._make()
        self._chunks: dict[bytes, Any] = {}
        self._storing: Any = None

    def get(self, key: bytes) -> Any:
        """The chunk, or None."""
        return self._chunks.get(key)

    def insert(self, key: bytes, chunk: Any, req_context: Any = None) -> None:
        """A chunk is being stored: published and in use until `mark_evictable`."""
        end = None if req_context is None else req_context.get_offload_key_position(key)
        tokens = self._chunk_tokens if end is None else int(end)
        if req_context is None or req_context is not self._storing:
            self._host.tick()  # chunks that one request stores in a row share an access
            self._storing = req_context
        self._host.add(key, key, depth=(tokens - 1) // self._chunk_tokens, num_tokens=tokens)
        self._host.admit([key])
        self._chunks[key] = chunk

    def remove(self, key: bytes) -> None:
        """A store failed."""
        self._host.evict(key)
        del self._chunks[key]

    def touch(self, keys: Iterable[bytes], req_context: Any = None) -> None:
        """A request uses these chunks, root first; those not here are passed over."""
        held = [key for key in keys if key in self._chunks]
        if held:
            self._storing = None
            self._host.tick()
            self._host.hit(held[::-1])

    def on_store_miss(self, keys: Iterable[bytes], req_context: Any) -> None:
        """Nothing is here yet; `insert` follows."""

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[bytes]],
        insertion_only_keys: set[bytes],
        reused_keys: set[bytes],
        req_context: Any,
    ) -> None:
        """One access by the request, for each group of layers: what it reused."""
        for keys in key_groups:
            self.touch([key for key in keys if key in reused_keys])

    def mark_evictable(self, key: bytes) -> None:
        """Its transfers ended."""
        self._host.release([key])

    def mark_non_evictable(self, key: bytes) -> None:
        """A transfer reads it."""
        self._host.pin([key])

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None:
        """The policy's next n victims outside `protected`, or None, and nothing changed, when there are fewer.

        Protected candidates that the policy names meanwhile count as in use until the last victim is found.
        """
        host = self._host
        if sum(key not in protected for key in host.idle(host.block_of)) < n:
            return None
        gone: list[tuple[bytes, Any]] = []
        spared: list[Any] = []
        while len(gone) < n:
            key: Any = host.victim()
            if key in protected:
                host.pin([key])
                spared.append(key)
            else:
                host.evict(key)
                gone.append((key, self._chunks.pop(key)))
        for key in spared:
            host.release([key])
        return gone
