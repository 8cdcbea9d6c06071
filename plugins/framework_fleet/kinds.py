"""The kind of plugin that this package opens."""

from __future__ import annotations

from framework.registry.kinds import Kind

ROUTER = Kind(
    "router",
    "framework_fleet.router:Router",
    is_group=False,
    chosen="mode.router={name}",
    command="python -m framework.run mode=fleet mode.router={name}",
    kit="framework_fleet.testing",
)
