"""PlainSoftmax keeps every promise of an attention backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from framework.interfaces.backend import AttentionSpec, Row
from framework_testing import backend_checks

from framework_example.backend import PlainSoftmax

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(PlainSoftmax, DEVICE, "small")  # "full" tries many more shapes


def test_equal_keys_share_the_attention_equally() -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=4, dtype="float32", block_size=16)
    q, k, v = torch.ones(1, 2, 4), torch.zeros(3, 1, 4), torch.arange(12.0).view(3, 1, 4)
    out = PlainSoftmax().attend_one(q, k, v, Row(spec, context=3, queries=1))
    torch.testing.assert_close(out, v.mean(0).expand(1, 2, 4))
