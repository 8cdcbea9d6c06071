"""Our stores and eviction policies in vLLM's tiering, as a tier behind its CPU tier."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from framework.errors import Unsupported
from framework.export.host_blocks import build_policy
from framework.export.stored_blocks import HostBlock, StoredBlocks
from framework.interfaces.store import BlockFormat
from framework.registry.components import Component, build_component
from framework.types import BlockHash

INTERFACE = "vllm 0.33.0, vllm/v1/kv_offload/tiering/base.py"
"""Where the signatures below were taken from."""

_NAMES = {
    "vllm.v1.kv_offload.base": (
        "LookupResult",
        "Locality",
        "Medium",
        "OffloadPolicy",
        "RequestOffloadingContext",
        "get_offload_group_idx",
    ),
    "vllm.v1.kv_offload.file_mapper": ("FileMapper",),
    "vllm.v1.kv_offload.tiering.base": ("JobResult", "SecondaryTierManager"),
    "vllm.v1.metrics.cache_hit_source": ("CacheHitSource",),
}


def __getattr__(name: str) -> Any:
    """`StoreTier`: the class, for vLLM to find by module path and name."""
    if name != "StoreTier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; the tier is named StoreTier")
    return _store_tier()


@cache
def _store_tier() -> type[Any]:
    return as_vllm_tier()


def as_vllm_tier(vllm: Any = None) -> type[Any]:
    """A subclass of vLLM's `SecondaryTierManager` that keeps chunks in one of our stores.

    vLLM makes the object itself. An engine needs no code: in the offloading connector's extra configuration,

        {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": ..., "secondary_tiers": [
            {"type": "StoreTier", "module_path": "framework.export.vllm_secondary", "num_blocks": 100000,
             "store": {"name": "disk", "path": "/kv"}, "eviction": "s3fifo"}]}

    Options: `store` (a name, or a mapping with a name and its options), `num_blocks` (chunks it holds at most),
    `eviction` (as `store`; default `lru`), `seed`, `fingerprint` (of the weights: vLLM names a model by its path, so
    give one where other weights may come under that), `locality` (as in vLLM's own tiers).

    It asks vLLM for every chunk of a request, not only the new ones (`OffloadPolicy.REQUEST_LEVEL`), so that the policy
    learns of each use. A chunk that cannot be written or read, damaged files among them, is a miss and computed again.
    No tenants, priorities or requests' facts; one thread; no KV events. Interface: `INTERFACE`.

    Args:
        vllm: the names of vLLM's that are needed; None imports them.

    Raises:
        Unsupported: vLLM is not installed or has another interface. By the class: a store that keeps keys only.
    """
    names = _imported() if vllm is None else vllm
    body = {"_vllm": names, "medium": names.Medium.STORAGE, "__module__": __name__}
    return type("StoreTier", (_Methods, names.SecondaryTierManager), body)


def _imported() -> Any:
    try:
        found = {name: getattr(importlib.import_module(home), name) for home, names in _NAMES.items() for name in names}
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"vLLM's SecondaryTierManager cannot be imported ({error}); needed is {INTERFACE}") from error
    return SimpleNamespace(**found)


class _Methods:
    """`SecondaryTierManager`'s methods over stored blocks; keys are vLLM's bytes, jobs its `TransferJob`s."""

    _vllm: Any
    medium: Any

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        store: Component,
        num_blocks: int,
        eviction: Component = "lru",
        seed: int = 0,
        fingerprint: str = "",
        locality: str | None = None,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)  # type: ignore[call-arg]
        vllm = self._vllm
        self.locality = None if locality is None else vllm.Locality(locality)
        self._chunk_tokens = [tokens * offloading_spec.blocks_per_chunk for tokens in offloading_spec.tokens_per_block]
        assert primary_kv_view.strides is not None
        self._row_bytes = primary_kv_view.strides[0]
        tokens = self._chunk_tokens[0]
        policy = build_policy(eviction, num_blocks, block_size=tokens, seed=seed)
        format = self._format(offloading_spec, fingerprint)
        self._blocks = StoredBlocks(build_component("store", store, {}), policy, num_blocks, format)
        self._rows = primary_kv_view.cast("B")
        if self._blocks.medium == "CPU":
            self.medium, self.cache_hit_source = vllm.Medium.CPU, vllm.CacheHitSource.HOST

    def _format(self, spec: Any, fingerprint: str) -> BlockFormat:
        """What vLLM's file tier names its folder by, and the fingerprint."""
        per_file = spec.blocks_per_chunk
        identity = self._vllm.FileMapper.from_offloading_spec("", spec, blocks_per_file=per_file).get_run_config()
        model = json.dumps({**identity, "fingerprint": fingerprint}, sort_keys=True)
        return BlockFormat(model, str(identity["dtype"]), "vllm", self._chunk_tokens[0], "vllm", self._row_bytes)

    def _named(self, keys: Iterable[bytes], req_context: Any) -> list[HostBlock]:
        """A key without a position counts as a root chunk."""
        named = []
        for key in keys:
            group = int(self._vllm.get_offload_group_idx(key))
            chunk = self._chunk_tokens[group]
            end = int(req_context.get_offload_key_position(key) or chunk)
            named.append(HostBlock(BlockHash(bytes(key)), group, (end - 1) // chunk, end))
        return named

    def _views(self, chunk_ids: Sequence[Any]) -> list[memoryview]:
        size = self._row_bytes
        return [self._rows[int(chunk) * size : (int(chunk) + 1) * size] for chunk in chunk_ids]

    def on_new_request(self, req_context: Any) -> Any:
        """Ask for all its chunks."""
        self._blocks.begin(req_context.req_id)
        return self._vllm.RequestOffloadingContext(policy=self._vllm.OffloadPolicy.REQUEST_LEVEL)

    def on_request_finished(self, req_context: Any) -> None:
        """Nothing of it is in use any more but what is being copied."""
        self._blocks.end(req_context.req_id)

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """HIT, RETRY while it is being stored, or MISS."""
        found = self._blocks.find(req_context.req_id, self._named([key], req_context)[0])
        results = self._vllm.LookupResult
        return {"held": results.HIT, "writing": results.RETRY, "absent": results.MISS}[found]

    def submit_store(self, job_metadata: Any) -> None:
        """Store what is not there yet."""
        job = job_metadata
        blocks = self._named(job.keys, job.req_context)
        self._blocks.store(job.job_id, job.req_context.req_id, blocks, self._views(job.chunk_ids))

    def submit_load(self, job_metadata: Any) -> None:
        """Load into the CPU tier's chunks."""
        job = job_metadata
        blocks = self._named(job.keys, job.req_context)
        self._blocks.load(job.job_id, job.req_context.req_id, blocks, self._views(job.chunk_ids))

    def get_finished_jobs(self) -> list[Any]:
        """The results of jobs that ended; of one that failed in part, which keys did not."""
        return [
            self._vllm.JobResult(
                job_id=ended.job,
                success=not ended.failed,
                successful_keys=tuple(key for key in ended.keys if key not in ended.failed) or None,
                transfer_bytes=ended.num_moved * self._row_bytes,
            )
            for ended in self._blocks.finished()
        ]

    def on_schedule_end(self, context: Any) -> None:
        """The loads of what was found in this step were submitted."""
        self._blocks.end_step()

    def drain_jobs(self) -> None:
        """Wait for all copies."""
        self._blocks.drain()

    def shutdown(self) -> None:
        """Copies that have not begun are dropped; what is on disk stays."""
        self._blocks.close()
        self._rows.release()
