"""What an attention layer sees."""

from __future__ import annotations

import numpy as np
import pytest

from framework.interfaces.attention import AttentionSpec


@pytest.mark.parametrize(
    ("span", "first"),
    [({}, [0, 0, 0, 0]), ({"sliding_window": 4}, [0, 0, 2, 10]), ({"attention_chunk": 6}, [0, 0, 0, 12])],
)
def test_the_first_position_that_a_query_sees(span: dict[str, int], first: list[int]) -> None:
    """A row without tokens has its query at -1."""
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=8, block_size=4, dtype="float32", **span)
    assert spec.first_seen(np.array([-1, 0, 5, 13])).tolist() == first
