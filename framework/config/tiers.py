"""The tiers below the pool, as a configuration lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framework.config.config import Choice
from framework.config.sections import TierOptions
from framework.errors import ConfigError
from framework.registry.signatures import shown
from framework.results.metrics.cache import MOST_TIERS


def parse_tiers(value: Any, component: Callable[[str, Any], Choice]) -> tuple[dict[str, Any], ...]:
    """Each tier as `{"store": {"name": ..., ...}, "eviction": {"name": ..., ...}, "num_blocks": ...}`, checked.

    Args:
        value: a list of mappings. `store` and `eviction` are names, or mappings with a name and options.
        component: checks a component of a kind.

    Raises:
        ConfigError: no list, too many, an unknown or missing key, a wrong value; names the tier.
        UnknownPlugin and the like: a store or a policy that cannot be had.
    """
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"tiers must be a list of mappings, found {shown(value)}; as in tiers=[{_EXAMPLE}]")
    if len(value) > MOST_TIERS:
        raise ConfigError(f"tiers has {len(value)} entries; at most {MOST_TIERS} are taken")
    return tuple(_tier(number, entry, component) for number, entry in enumerate(value, start=1))


_EXAMPLE = "{store: host, num_blocks: 20000, eviction: lru}"


def _tier(number: int, entry: Any, component: Callable[[str, Any], Choice]) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"tiers[{number - 1}] must be a mapping, found {shown(entry)}; as in {_EXAMPLE}")
    missing = next((key for key in ("store", "num_blocks") if key not in entry), None)
    if missing is not None:
        raise ConfigError(f"tiers[{number - 1}] has no {missing}; as in {_EXAMPLE}")
    store = "null" if entry["store"] is None else entry["store"]  # YAML's null is a name here
    eviction = entry.get("eviction") or "lru"
    settings = {key: value for key, value in entry.items() if key not in ("store", "eviction")}
    parts = {"store": component("store", store).plain(), "eviction": component("eviction", eviction).plain()}
    try:
        options = TierOptions.parse(settings)
    except ConfigError as error:
        raise ConfigError(f"tiers[{number - 1}]: {str(error).removeprefix('tiers.')}") from error
    return {**parts, **options.plain()}
