"""The kind of plugin that this package opens. Help imports it, so it lies apart from what imports NumPy."""

from __future__ import annotations

from framework.registry.kinds import Kind

REPLAY_CORE = Kind(
    "replay_core",
    "framework_cache_only.replay_core:ReplayCore",
    is_group=False,
    chosen="mode.replay_core={name}",
    command="python -m framework.run mode=cache_only mode.replay_core={name}",
    kit="framework_cache_only.testing",
)
