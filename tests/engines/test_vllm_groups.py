"""vLLM's own coordinator over several groups of KV does what the replay over groups does."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.hybrid.equal import SETTINGS, differences

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("layout", "settings"), SETTINGS, ids=lambda value: str(value).replace(" ", ""))
def test_hits_evictions_blocks_and_junctions_are_vllm_s(layout: str, settings: dict[str, Any]) -> None:
    found = differences(layout, num_requests=120, num_blocks=100, **settings)
    assert found["hit_tokens"] > 2_000, found
    assert found["evictions"] > 100, found
    assert not any(count for key, count in found.items() if "differ" in key), found
