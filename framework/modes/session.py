"""How a run is called, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework import tracking
from framework.registry.options import section
from framework.tracking import RunLabel

_KINDS = ("allocator", "eviction", "hash", "backend")


def label(config: Mapping[str, Any]) -> RunLabel:
    """How trackers call this run."""
    settings = section(config, "run")
    names = [str((config.get(kind) or {}).get("name", "default")) for kind in _KINDS]
    return RunLabel(
        name=str(settings.get("name") or "-".join(names)),
        group=str(settings.get("group") or ""),
        job_type="-".join(names),
    )


def provenance(config: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Where this run comes from."""
    components = {kind: str((config.get(kind) or {}).get("name", "default")) for kind in _KINDS}
    path = section(config, "workload").get("path")
    return tracking.collect_provenance(
        components=components,
        seeds={"seed": int(config.get("seed", 0))},
        device=device,
        inputs=[Path(str(path))] if path else [],
    )
