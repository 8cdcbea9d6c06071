"""mode=fleet, as it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from framework.errors import ConfigError
from framework.interfaces.mode import OnBegin
from framework.modes import Replay
from framework.validation import Options
from framework_fleet.metrics import METRICS

if TYPE_CHECKING:
    from framework.config.config import Config


class FleetOptions(Options):
    """Replicas, what chooses among them, and what their clients do."""

    section: ClassVar[str] = "mode"

    replicas: int = Field(1, description="engines, each with the whole configuration", ge=1, le=1024)
    router: Any = Field(
        "round_robin",
        description="a name, or {name: ..., options}: which replica gets a request",
        validate_default=True,
    )
    loop: Literal["auto", "open", "closed"] = Field(
        "auto",
        description="open: requests leave at the trace's times; closed: after the answers that they wait for; auto: "
        "closed where the workload says which those are",
    )
    answer_s_per_token: float = Field(
        0.0,
        description="loop=closed over times alone: seconds a token of the recorded answers, taken from the recorded "
        "gaps; the rest is think time",
        ge=0,
        le=1e3,
    )
    concurrency: int | None = Field(None, description="most requests under way at once; null: no limit", ge=1)
    unequal: tuple[dict[str, Any], ...] = Field(
        (), description="settings of single replicas, as [{replica: 0, cache: {num_blocks: 500}}]"
    )
    outages: tuple[dict[str, Any], ...] = Field(
        (), description="replicas that leave, as [{replica: 1, leaves_s: 60, returns_s: 120}]"
    )
    index: Literal["events", "sent"] = Field(
        "events", description="the router's index: of the replicas' events, or guessed from what it sent"
    )
    index_ttl_s: float = Field(120.0, description="index=sent: seconds after which a guess is forgotten", gt=0, le=1e9)
    report_s: float = Field(0.0, description="a replica reports its load so often; 0: after each step", ge=0, le=1e6)
    lag_s: float = Field(0.0, description="reports and events reach the router so much later", ge=0, le=1e6)
    event_loss: float = Field(0.0, description="share of events that are lost", ge=0, le=1)
    decoders: int = Field(
        0,
        description="of the replicas, the last so many decode what the others have prefilled; 0: each does both",
        ge=0,
    )
    decode_router: Any = Field("least_load", description="decoders: which of them gets a prompt", validate_default=True)
    link_bytes_per_s: float = Field(
        50e9, description="decoders: that a replica's link carries, one copy after the other", gt=0, le=1e15
    )
    link_latency_s: float = Field(0.0, description="decoders: that each copy takes longer", ge=0, le=1e6)
    lease_s: float = Field(
        480.0, description="decoders: a prompt's blocks are kept so long for whoever has not begun to read", gt=0
    )
    patience_s: float | None = Field(
        None, description="a client gives up a request without a first token after so long; null: never", gt=0
    )
    bounds: bool = Field(False, description="also count what one shared cache and the best fixed sessions would hit")

    @field_validator("router", "decode_router", mode="before")
    @classmethod
    def _router(cls, value: Any) -> dict[str, Any]:
        from framework.config.config import component

        return component("router", value).plain()

    @field_validator("outages")
    @classmethod
    def _outages(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for entry in value:
            times = [entry.get("leaves_s"), entry.get("returns_s", float("inf"))]
            if (
                not {"replica", "leaves_s"} <= entry.keys() <= {"replica", "leaves_s", "returns_s"}
                or not all(isinstance(time, int | float) and not isinstance(time, bool) for time in times)
                or not 0 <= times[0] < times[1]
            ):
                raise ConfigError(
                    f"mode.outages: an entry is {{replica: 1, leaves_s: 60, returns_s: 120}}, the last one larger or "
                    f"left out; found {entry}"
                )
        return value


class Fleet(FleetOptions, Replay):
    """A replay over several replicas: each an engine of its own, behind a router, on one clock."""

    metrics: ClassVar = METRICS
    files: ClassVar = ("replicas.jsonl",)
    repeats: ClassVar[tuple[str, ...]] = ("allocator", "eviction", "hash", "router", "scheduling")

    def check(self, config: Config) -> None:
        if config.replay.optimum:
            raise ConfigError("replay.optimum is of one engine; mode.bounds=true gives the bounds of a fleet")
        if self.replicas > 1 and config.observers:
            raise ConfigError("observers listen to one engine; leave them out, or mode.replicas=1")
        if self.decoders >= self.replicas:
            raise ConfigError(
                f"mode.decoders={self.decoders} of mode.replicas={self.replicas} leaves no replica that prefills"
            )
        if self.decoders and (self.bounds or config.below.name != "none"):
            raise ConfigError(
                "mode.decoders goes with below=none and mode.bounds=false: prompts come to decoders over links alone, "
                "and the bounds are of one cache"
            )
        for key, entries in (("outages", self.outages), ("unequal", self.unequal)):
            for entry in entries:
                number = entry.get("replica")
                if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < self.replicas:
                    raise ConfigError(
                        f"mode.{key}: replica must be 0 to {self.replicas - 1}, found {number!r} in {entry}"
                    )

    def run(self, config: Config, on_begin: OnBegin) -> dict[str, Any]:
        from framework_fleet.mode import fleet

        return fleet(config, self, on_begin)
