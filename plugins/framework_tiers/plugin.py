"""below=tiers, as it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from framework.errors import ConfigError, shown
from framework.interfaces.below import ReplayedPool, ServedPools
from framework.interfaces.eviction import EvictionPolicy
from framework.validation import Options
from framework_cache_only.parts import CacheOnlyBelow, CountedBelow
from framework_tiers.metrics import METRICS, MOST_TIERS

if TYPE_CHECKING:
    from framework.config.sections import EngineOptions
    from framework.engine.request import Request
    from framework.interfaces.below import MakeBelow
    from framework_cache_only.paths import RequestPaths

_EXAMPLE = "{store: host, num_blocks: 20000, eviction: lru}"


class TierOptions(Options):
    """One tier below the pool, an entry of `below.tiers`, beside its store and its eviction policy."""

    section: ClassVar[str] = "below.tiers"

    num_blocks: int = Field(description="blocks it holds", ge=1, le=10**8)
    bytes_per_s: float | None = Field(
        25e9,
        description="replay: bytes a second over its link, each way; null: no limit; 25e9 is PCIe 4.0 x16",
        gt=0,
        le=1e18,
    )
    operation_s: float = Field(100e-6, description="replay: fixed seconds of a load or a store", ge=0, le=10**9)


class Tiers(CacheOnlyBelow):
    """Tiers of blocks, each with a store and an eviction policy, and a rule that moves blocks between them.

    Args:
        tiers: from the one below the pool on, as {store: host, num_blocks: 20000, eviction: lru}; for a replay also
            `bytes_per_s` and `operation_s` of its link.
        tiering: the rule.

    Raises:
        ConfigError: no list, none or too many, an unknown or missing key, a wrong value; names the tier.
        UnknownPlugin and the like: a store, a policy or a rule that cannot be had.
    """

    metrics = METRICS
    loads = drops_tokens = True

    def __init__(self, *, tiers: Sequence[Mapping[str, Any]], tiering: Any = "on_eviction") -> None:
        from framework.config.config import component

        if not isinstance(tiers, (list, tuple)) or not tiers:
            raise ConfigError(
                f"below.tiers must be a list of mappings, found {shown(tiers)}; as in below.tiers=[{_EXAMPLE}]"
            )
        if len(tiers) > MOST_TIERS:
            raise ConfigError(f"below.tiers has {len(tiers)} entries; at most {MOST_TIERS} are taken")
        self.tiers = tuple(_tier(f"below.tiers[{number}]", entry) for number, entry in enumerate(tiers))
        named = isinstance(tiering, (str, Mapping))
        self.tiering = component("tiering", tiering).plain() if named else tiering

    def names(self) -> dict[str, str]:
        named = isinstance(self.tiering, Mapping)
        return {"tiering": self.tiering["name"] if named else type(self.tiering).__name__}

    def check_served(self, engine: EngineOptions) -> None:
        if engine.tensor_parallel_size > 1:
            raise ConfigError(
                "tiers below the pool of a model over several ranks are not supported: each rank holds a part of every "
                "block; set engine.tensor_parallel_size=1 or below=none"
            )

    def serve(self, pools: Callable[[], ServedPools]) -> MakeBelow:
        from framework_tiers.setup import served

        return served(self.tiers, self.tiering, pools())

    def replay(self, pool: Callable[[], ReplayedPool]) -> MakeBelow:
        from framework_tiers.setup import replayed

        return replayed(self.tiers, self.tiering, pool())

    def count(self, paths: RequestPaths, policy: EvictionPolicy, shared: Mapping[str, Any]) -> CountedBelow:
        from framework_tiers.counted import counted

        return counted(self.tiers, self.tiering, paths, policy, shared)

    def request_row(self, request: Request, unit: str) -> dict[str, Any]:
        loaded = request.tier_tokens or {}
        tokens = {f"tier{number}_tokens": loaded.get(number, 0) for number in range(1, len(self.tiers) + 1)}
        return {**tokens, f"load_{unit}": request.load_s}


def _tier(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A tier as `{"store": {"name": ..., ...}, "eviction": {"name": ..., ...}, "num_blocks": ...}`, checked."""
    from framework.config.config import component

    for needed in ("store", "num_blocks"):
        if needed not in entry:
            raise ConfigError(f"{key} has no {needed}; as in {_EXAMPLE}")
    store = "null" if entry["store"] is None else entry["store"]  # YAML's null is a name here
    parts = {"store": component("store", store), "eviction": component("eviction", entry.get("eviction") or "lru")}
    try:
        options = TierOptions(**{str(name): one for name, one in entry.items() if name not in parts})
    except ConfigError as error:
        raise ConfigError(f"{key}: {str(error).removeprefix('below.tiers.')}") from error
    return {**{name: part.plain() for name, part in parts.items()}, **options.plain()}
