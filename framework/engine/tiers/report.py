"""Reports of an engine's tiers: invariants, results, and a line a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.errors import InvariantViolation

if TYPE_CHECKING:
    from framework.engine.tiers.engine_tiers import EngineTiers


def check_tiers(tiers: EngineTiers, *, settle: bool = False) -> None:
    """The tiers' blocks add up, and nothing is pinned for no copy.

    Args:
        settle: wait first until all copies under way have ended.

    Raises:
        InvariantViolation: they do not.
    """
    if settle:
        tiers.settle()
    if tiers.placement.off:
        return
    try:
        _check(tiers)
    except AssertionError as error:
        raise InvariantViolation(f"EngineTiers: T1: {error}") from error


def _check(tiers: EngineTiers) -> None:
    at = tiers.placement
    at.lower.check()
    stale = [block for key, block in at.pool.items() if at.names.get(block) != key]
    assert not stale, f"blocks {stale} count as holding what they are not published with"
    if not (tiers.transfers.num_pending or tiers.loading or tiers.dropped):
        assert not tiers.arriving, tiers.arriving
        assert not at.reading, at.reading
        for tier in at.lower.tiers:
            pinned = [key for key in tier.block_of if tier.is_pinned(key)]
            assert not pinned, f"tier {tier.number}: {len(pinned)} blocks are pinned for no copy"


def tier_summary(tiers: EngineTiers) -> dict[str, Any]:
    """What `result.json` says of the tiers."""
    at = tiers.placement
    size = at.setup.block_bytes
    measured: dict[str, Any] = {
        "tier0_hit_blocks": tiers.pool_hits,
        "tier0_hit_tokens": tiers.pool_hit_tokens,
        "num_loads": int(tiers.num_loads),
        "loaded_blocks": int(tiers.num_loaded),
        "load_wait_s": tiers.load_wait_s,
    }
    for tier, loads, stores in zip(at.lower.tiers, tiers.failed_loads, at.failed_stores, strict=True):
        facts = {**tier.facts(size), "failed_loads": loads, "failed_stores": stores}
        measured |= {f"tier{tier.number}_{key}": value for key, value in facts.items()}
    measured |= {"tier_failure": at.first_failure} if at.first_failure else {}
    measured |= {"store_failure": tiers.transfers.failure} if tiers.transfers.failure else {}
    measured |= {"tiers_off": at.off} if at.off else {}
    return measured


def tier_step_row(tiers: EngineTiers) -> dict[str, Any]:
    """Of each tier, for a run's metrics file: what it holds, and the sequences that wait for blocks."""
    held = {f"tier{tier.number}_blocks": len(tier) for tier in tiers.placement.lower.tiers}
    return {**held, "loading": len(tiers.loading)}
