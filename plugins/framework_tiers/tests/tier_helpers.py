"""Tiers below the pool, as an engine and an LLM are given them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framework_tiers.engine_tiers import EngineTiers
from framework_tiers.placement import TierSetup


def tier_maker(setup: Callable[[], TierSetup]) -> Callable[..., EngineTiers]:
    """Makes the tiers of one group of KV, of a fresh setup each time."""
    return lambda state, life: EngineTiers(state, life, setup())


def over(tiers: Sequence[Mapping[str, Any]], tiering: Any = "never") -> dict[str, Any]:
    """The component `below` with these tiers and this rule."""
    return {"name": "tiers", "tiers": list(tiers), "tiering": tiering}
