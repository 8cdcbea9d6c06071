"""Tokens by their ids."""

from __future__ import annotations

import numpy as np

from framework.types import TokenArray


def tokens(*ids: int) -> TokenArray:
    return np.array(ids, dtype=np.int32)
