"""Construction of an engine's tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.errors import ConfigError, StoreFailed
from framework.guard.allocator import GuardedAllocator
from framework.interfaces.allocator import Allocator
from framework.interfaces.below import BlockTensors, ReplayedPool, ServedPools
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.registry.components import Component, build_component
from framework.types import ROOT_NAMESPACE, BlockHash
from framework_tiers.engine_tiers import EngineTiers, GroupedTiers
from framework_tiers.guarded import GuardedStore
from framework_tiers.placement import TierSetup
from framework_tiers.store import BlockFormat
from framework_tiers.transfers import Link, LinkTransfers
from framework_tiers.worker import PoolBytes, WorkerTransfers

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.state import EngineState
    from framework.interfaces.below import MakeBelow

TierEntry = Mapping[str, Any]
"""An entry of `below.tiers`, checked: store, eviction, num_blocks, and the model of its link."""


def require_names(allocator: Allocator, scheme: HashScheme) -> None:
    """Refuse where blocks cannot be found by their hash alone, as they are below the pool.

    Raises:
        ConfigError: a scheme that two contents may share a hash of, or an allocator that names no blocks.
    """
    if not scheme.collision_resistant:
        raise ConfigError(
            f"hash {type(scheme).__name__} may give two contents one hash, and below the pool nothing but the hash "
            "names a block; with tiers set hash=sha256 or another collision-resistant scheme"
        )
    size = allocator.block_size
    if not GuardedAllocator(allocator).lookup(np.zeros(size + 1, dtype=np.int32), ROOT_NAMESPACE).hashes:
        raise ConfigError(
            f"{type(allocator).__name__} names no blocks, so none can be found again below the pool; with tiers set "
            "allocator=prefix_cow or another that shares prefixes"
        )


def tier_policies(tiers: Sequence[TierEntry], shared: Mapping[str, Any]) -> list[tuple[int, EvictionPolicy]]:
    """Each tier's blocks and policy.

    Raises:
        ConfigError: a policy that needs the future, which an engine does not know of a tier.
    """
    policies = []
    for number, entry in enumerate(tiers, start=1):
        count = entry["num_blocks"]
        policy: EvictionPolicy = build_component("eviction", entry["eviction"], {**shared, "num_blocks": count})
        if policy.needs_future:
            raise ConfigError(
                f"tier {number}: {type(policy).__name__} needs the next use of blocks, which only mode=cache_only "
                "knows of tiers; choose another policy"
            )
        policies.append((count, policy))
    return policies


def open_stores(
    tiers: Sequence[TierEntry], format: BlockFormat, pool: PoolBytes
) -> tuple[list[GuardedStore], list[list[BlockHash]]]:
    """The stores of the tiers, ready, and what each holds already.

    Those that keep blocks in memory have some from which the pool's device copies fast.

    Raises:
        StoreFailed, ConfigError: one could not be opened or listed; the others are closed.
    """
    stores: list[GuardedStore] = []
    resident: list[list[BlockHash]] = []
    with ExitStack() as opened:
        for number, entry in enumerate(tiers, start=1):
            store = GuardedStore(build_component("store", entry["store"], {}))
            store.use_memory(pool.allocate)
            store.open(format, entry["num_blocks"])
            opened.callback(_close, store)
            stores.append(store)
            try:
                resident.append(list(store.keys()))
            except StoreFailed as error:
                raise ConfigError(
                    f"tier {number}: what {type(store.plugin).__name__} holds cannot be listed: {error}"
                ) from error
        opened.pop_all()
    return stores, resident


def _close(store: GuardedStore) -> None:
    """Close what a run that cannot begin has opened; the first error is the one to report."""
    with suppress(StoreFailed):
        store.close()


def replayed(tiers: Sequence[TierEntry], tiering: Component, pool: ReplayedPool) -> MakeBelow:
    """Makes tiers without bytes, behind modelled links; over a clock that counts steps, copies take no time.

    Raises:
        ConfigError: blocks cannot be found by their hash alone.
    """
    require_names(pool.allocator, pool.hash)

    def setup() -> TierSetup:
        stores = [build_component("store", entry["store"], {}) for entry in tiers]  # nothing is stored in them
        links = [
            Link() if pool.recompute_s is None
            else Link(bytes_per_s=entry["bytes_per_s"] or float("inf"), operation_s=entry["operation_s"])
            for entry in tiers
        ]  # fmt: skip
        return TierSetup(
            tiers=tier_policies(tiers, pool.shared),
            rule=build_component("tiering", tiering, pool.shared),
            transfers=LinkTransfers(links, pool.block_bytes, pool.now, pool.wait_until),
            holds_kv=[True] * len(tiers),
            media=[GuardedStore(store).medium for store in stores],
            recompute_s=pool.recompute_s,
            block_bytes=pool.block_bytes,
        )

    return lambda state, life: EngineTiers(state, life, setup())


def served(tiers: Sequence[TierEntry], tiering: Component, pools: ServedPools) -> MakeBelow:
    """Makes the tiers of a served model, at first and after each reset, whose stores are opened anew.

    Raises:
        ConfigError: blocks cannot be found by their hash alone.
    """
    from framework_tiers.block_bytes import as_bytes, pool_bytes

    require_names(pools.allocator, pools.hash)
    scheme, fingerprint = type(pools.hash), pools.fingerprint()
    dtype, layout, shared, now = pools.dtype, pools.layout, pools.shared, pools.now

    def open(group: BlockTensors) -> TierSetup:
        parts = as_bytes(group.tensors)
        bytes_of = pool_bytes(parts)
        format = BlockFormat(
            model=fingerprint,
            dtype=dtype,
            layout=f"{layout}/{group.name}" if group.name else layout,
            block_size=shared["block_size"],
            hash=f"{scheme.__module__}.{scheme.__qualname__}",
            block_bytes=bytes_of.block_bytes,
        )
        own = [{**entry, "num_blocks": max(1, round(group.share * int(entry["num_blocks"])))} for entry in tiers]
        policies, rule = tier_policies(own, shared), build_component("tiering", tiering, shared)
        stores, found = open_stores(own, format, bytes_of)
        return TierSetup(
            tiers=policies,
            rule=rule,
            transfers=WorkerTransfers(bytes_of, stores, now),
            holds_kv=[store.holds_kv for store in stores],
            media=[store.medium for store in stores],
            found=found,
            block_bytes=format.block_bytes,
            kind=group.kind,
        )

    groups = tuple(pools.groups)  # what the engine keeps holds nothing more of the pools

    def make(state: EngineState, life: Lifecycle) -> EngineTiers:
        opened = list[TierSetup]()
        try:
            for group in groups:
                opened.append(open(group))
            return EngineTiers(state, life, *opened) if len(opened) == 1 else GroupedTiers(state, life, *opened)
        except BaseException:
            for one in opened:
                one.transfers.close(drain=False)
            raise

    return make
