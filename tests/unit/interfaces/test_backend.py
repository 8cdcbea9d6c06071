"""The short base class of backends: one method is a backend."""

import pytest
import torch

from framework.errors import Unsupported
from framework.interfaces.backend import Capabilities, DenseBackend
from framework.testing.backend import backend_checks


class OneMethod(DenseBackend):
    capabilities = Capabilities(
        dtypes=frozenset({"float32"}), devices=frozenset({"cpu"}), features=frozenset({"sliding_window"})
    )

    def attend_one(self, q, k, v, row):
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,chd->hqc", q, k) * row.spec.softmax_scale
        return torch.einsum("hqc,chd->qhd", scores.masked_fill(~row.visible(q.device), -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__.removeprefix("check_"))
def test_one_method_is_a_backend(check):
    check(OneMethod, "cpu", "small")


def test_a_spec_outside_the_capabilities_is_refused_at_setup_with_all_reasons():
    from framework.interfaces.backend import AttentionSpec

    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, dtype="float16", block_size=4, soft_cap=2.0)
    with pytest.raises(Unsupported, match=r"dtype float16 is not supported; supported: float32; soft_cap is not"):
        OneMethod().setup(spec, "cpu")
