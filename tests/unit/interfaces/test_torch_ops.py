"""The default write and copy on fp8 pools: quantised with the head's scale, moved as bytes."""

import pytest
import torch

from framework.interfaces import _torch_ops
from framework.interfaces.backend import LayerKV


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_fp8_pools_store_value_over_scale_and_copy_exactly(layout):
    shape = (4, 2, 3, 8) if layout == "NHD" else (4, 3, 2, 8)
    scales = torch.tensor([0.5, 1.0, 2.0])
    pool = LayerKV(
        torch.zeros(shape, dtype=torch.float8_e4m3fn),
        torch.zeros(shape, dtype=torch.float8_e4m3fn),
        layout,
        scales,
        scales * 4,
    )
    k = torch.full((3, 3, 8), 6.0)
    _torch_ops.write(pool, k, k * 2, torch.tensor([3, -1, 4]))
    at = (1, 1) if layout == "NHD" else (1, slice(None), 1)
    assert pool.k[at].float()[:, 0].tolist() == [12.0, 6.0, 3.0]
    assert pool.v[at].float()[:, 0].tolist() == [6.0, 3.0, 1.5]
    written = pool.k.float().flatten(1).any(dim=1).tolist()
    assert written == [False, True, True, False], written
    _torch_ops.copy_blocks(pool, torch.tensor([[1, 3]]))
    assert torch.equal(pool.k[3].view(torch.uint8), pool.k[1].view(torch.uint8))
    assert torch.equal(pool.v[3].view(torch.uint8), pool.v[1].view(torch.uint8))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("context", [0, 1, 3, 4, 7])
def test_gather_gives_exactly_the_context(layout, context):
    tokens = torch.arange(12.0).view(12, 1, 1).expand(12, 2, 5)
    pool = tokens.reshape(3, 4, 2, 5)
    pool = pool.transpose(1, 2).contiguous() if layout == "HND" else pool
    k, v = _torch_ops.gather(LayerKV(pool, pool + 100, layout), torch.tensor([2, 1, 0], dtype=torch.int32), context)
    want = [8.0, 9.0, 10.0, 11.0, 4.0, 5.0, 6.0, 7.0][:context]
    assert k.shape == (context, 2, 5)
    assert k[:, 0, 0].tolist() == want
    assert v[:, 1, 4].tolist() == [value + 100 for value in want]
