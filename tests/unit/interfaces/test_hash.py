"""Every built-in scheme hashes many blocks in one call as it does one by one."""

from __future__ import annotations

import numpy as np
import pytest

from framework import registry
from framework.types import Namespace

NS = Namespace("m", "", "salt")


@pytest.mark.parametrize("name", registry.names("hash"))
@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_one_call_equals_a_call_a_block(name: str, block_size: int) -> None:
    scheme = registry.build("hash", name)
    tokens = np.random.default_rng(block_size).integers(0, 2**31, 6 * block_size - 1, dtype=np.int32)
    parent = root = scheme.root(NS, block_size)
    one_by_one = []
    for index in range(5):
        parent = scheme.block(parent, tokens[index * block_size : (index + 1) * block_size])
        one_by_one.append(parent)
    assert scheme.blocks(root, tokens, block_size) == one_by_one
    assert scheme.blocks(root, tokens[: block_size - 1], block_size) == []
