"""The kinds of plugin that this package opens. Help imports them, so they lie apart from what imports NumPy."""

from __future__ import annotations

from framework.registry.kinds import Kind

_KIT = "framework_tiers.testing"

TIERING = Kind(
    "tiering",
    "framework_tiers.tiering:Tiering",
    is_group=False,
    chosen="below.tiering={name}",
    command="python -m framework.run +below=tiers 'below.tiers=[{{store: host, num_blocks: 64}}]' below.tiering={name}",
    kit=_KIT,
)
STORE = Kind(
    "store",
    "framework_tiers.store:Store",
    is_group=False,
    chosen="below.tiers=[{{store: {name}, ...}}]",
    command="python -m framework.run +below=tiers 'below.tiers=[{{store: {name}, num_blocks: 64}}]'",
    kit=_KIT,
)
