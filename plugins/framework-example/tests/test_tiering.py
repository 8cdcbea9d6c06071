"""NearRoot keeps every promise of a tiering rule, and stores what it means to."""

from __future__ import annotations

from typing import Any

import pytest
from framework.types import BlockHash
from framework_testing import tiering_checks
from framework_tiers.tiering import TierBlock

from framework_example.tiering import NearRoot


@pytest.mark.parametrize("check", tiering_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(NearRoot)


def test_deep_blocks_are_not_stored() -> None:
    block = TierBlock(key=BlockHash(b"deep"), tier=0, depth=8, num_tokens=144, uses=1)
    assert not NearRoot(depth=8).store(block, "evicted", 1.0)
    assert NearRoot(depth=9).store(block, "evicted", 1.0)
