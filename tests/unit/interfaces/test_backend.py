"""What every backend inherits."""

import pytest

from framework.errors import Unsupported
from framework.interfaces.backend import AttentionSpec, Capabilities, DenseBackend


class OneMethod(DenseBackend):
    capabilities = Capabilities(dtypes=frozenset({"float32"}), devices=frozenset({"cpu"}))

    def attend_one(self, q, k, v, row):
        return q


def test_a_spec_outside_the_capabilities_is_refused_at_setup_with_all_reasons():
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, dtype="float16", block_size=4, soft_cap=2.0)
    with pytest.raises(Unsupported, match=r"dtype float16 is not supported; supported: float32; soft_cap is not"):
        OneMethod().setup(spec, "cpu")
