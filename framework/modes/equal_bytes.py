"""What fewer bits buy: the hit rate of the same requests with K and V of the model's dtype in as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def equal_bytes(
    num_blocks: int, stored_bytes: int, own_bytes: int, hit_rate: Callable[[int], float | None]
) -> dict[str, Any]:
    """The blocks that a pool of `num_blocks` would have in the model's dtype, and their hit rate; null without a block.

    Args:
        stored_bytes, own_bytes: of a block, in the dtype of the pool and in the model's.
        hit_rate: of a pool of so many blocks.
    """
    blocks = num_blocks * stored_bytes // own_bytes
    return {"equal_bytes_num_blocks": blocks, "equal_bytes_hit_rate": hit_rate(blocks) if blocks else None}
