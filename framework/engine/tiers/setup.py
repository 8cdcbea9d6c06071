"""Construction of an engine's tiers from a configuration's list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.engine.tiers.placement import TierSetup
from framework.errors import ConfigError, FrameworkError
from framework.guard.allocator import GuardedAllocator
from framework.guard.store import GuardedStore
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.interfaces.store import BlockFormat
from framework.registry.components import Component, build_component
from framework.tiers.transfers import Link, LinkTransfers
from framework.tiers.worker import PoolBytes, WorkerTransfers
from framework.types import ROOT_NAMESPACE, BlockHash

if TYPE_CHECKING:
    from torch import Tensor

    from framework.engine.pool import KVPool
    from framework.model.decoder import Decoder

TierEntry = Mapping[str, Any]
"""An entry of `tiers`, checked: store, eviction, num_blocks, and the model of its link."""


def require_tiers(allocator: Allocator, hash: Component, seed: int) -> HashScheme:
    """The hash scheme, if blocks can be found by their hash alone, as they are below the pool.

    Raises:
        ConfigError: a scheme that two contents may share a hash of, or an allocator that names no blocks.
    """
    scheme: HashScheme = build_component("hash", hash, {"seed": seed})
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
    return scheme


def tier_policies(tiers: Sequence[TierEntry], shared: Mapping[str, Any]) -> list[tuple[int, EvictionPolicy]]:
    """Each tier's blocks and policy.

    Raises:
        ConfigError: a policy that needs the future, which an engine does not know of a tier.
    """
    found = []
    for number, entry in enumerate(tiers, start=1):
        count = entry["num_blocks"]
        policy: EvictionPolicy = build_component("eviction", entry["eviction"], {**shared, "num_blocks": count})
        if policy.needs_future:
            raise ConfigError(
                f"tier {number}: {type(policy).__name__} needs the next use of blocks, which only executor=cache_only "
                "knows of tiers; choose another policy"
            )
        found.append((count, policy))
    return found


def open_store(entry: TierEntry, format: BlockFormat, pool: PoolBytes) -> GuardedStore:
    """The store of one tier, ready, in memory from which the pool's device copies fast if it keeps blocks in memory.

    Raises:
        StoreFailed, PluginError: it could not be opened.
    """
    store = GuardedStore(build_component("store", entry["store"], {}))
    store.use_memory(pool.allocate)
    store.open(format, entry["num_blocks"])
    return store


def open_stores(
    tiers: Sequence[TierEntry], format: BlockFormat, pool: PoolBytes
) -> tuple[list[GuardedStore], list[list[BlockHash]]]:
    """The stores of the tiers, ready, and what each holds already.

    Raises:
        StoreFailed, PluginError, ConfigError: one could not be opened or listed; the others are closed.
    """
    stores: list[GuardedStore] = []
    found: list[list[BlockHash]] = []
    with ExitStack() as opened:
        for number, entry in enumerate(tiers, start=1):
            store = open_store(entry, format, pool)
            opened.callback(_close, store)
            stores.append(store)
            try:
                found.append(list(store.keys()))
            except FrameworkError as error:
                raise ConfigError(f"tier {number}: what {store.name} holds cannot be listed: {error}") from error
        opened.pop_all()
    return stores, found


def _close(store: GuardedStore) -> None:
    """Close what a run that cannot begin has opened; the first error is the one to report."""
    with suppress(FrameworkError):
        store.close()


def replayed_tiers(
    tiers: Sequence[TierEntry],
    tiering: Component,
    shared: Mapping[str, Any],
    *,
    block_bytes: int,
    now: Callable[[], float],
    wait_until: Callable[[float], None],
    timed: bool,
    recompute_s: Callable[[int, int], float] | None,
) -> TierSetup:
    """Tiers without bytes, behind modelled links; `timed` False: copies take no time."""
    stores = [build_component("store", entry["store"], {}) for entry in tiers]  # nothing is stored in them
    links = [
        Link(bytes_per_s=entry["bytes_per_s"] or float("inf"), operation_s=entry["operation_s"]) if timed else Link()
        for entry in tiers
    ]
    return TierSetup(
        tiers=tier_policies(tiers, shared),
        rule=build_component("tiering", tiering, shared),
        transfers=LinkTransfers(links, block_bytes, now, wait_until),
        holds_kv=[True] * len(tiers),
        media=[GuardedStore(store).medium for store in stores],
        recompute_s=recompute_s,
        block_bytes=block_bytes,
    )


OpenTiers = Callable[[Sequence["Tensor"], Sequence[TierEntry], str], TierSetup]
"""(parts, tiers, kind) -> tiers of blocks of these parts, see `block_bytes`; `kind` of a further group of KV."""


def tier_opener(
    tiering: Component,
    allocator: Allocator,
    hash: Component,
    shared: Mapping[str, Any],
    pool: KVPool,
    decoder: Decoder,
    now: Callable[[], float],
) -> OpenTiers:
    """What opens the tiers of a serve run, at first and after each reset.

    Args:
        shared: what policies and rules may ask for: block_size, max_model_len, seed.

    Raises:
        ConfigError: blocks cannot be found by their hash alone.
    """
    from framework.engine.block_bytes import block_format, pool_bytes
    from framework.model.loading import fingerprint

    scheme = type(require_tiers(allocator, hash, shared["seed"]))
    named = fingerprint(decoder), f"{scheme.__module__}.{scheme.__qualname__}"

    def open(parts: Sequence[Tensor], tiers: Sequence[TierEntry], kind: str = "") -> TierSetup:
        bytes_of, format = pool_bytes(parts), block_format(pool, parts, *named, kind)
        policies, rule = tier_policies(tiers, shared), build_component("tiering", tiering, shared)
        stores, found = open_stores(tiers, format, bytes_of)
        return TierSetup(
            tiers=policies,
            rule=rule,
            transfers=WorkerTransfers(bytes_of, stores, now),
            holds_kv=[store.holds_kv for store in stores],
            media=[store.medium for store in stores],
            found=found,
            block_bytes=format.block_bytes,
            kind=kind,
        )

    return open
