"""The pool's shapes, sizes, copies and poison."""

import numpy as np
import pytest
import torch

from framework.engine import pool as pool_module
from framework.engine.pool import KVPool, block_bytes, num_blocks_for
from framework.errors import InvalidArgument, OutOfMemory
from framework.interfaces.backend import AttentionSpec
from framework.types import BlockCopy, BlockId
from framework_torch.gather import GatherBackend


def spec_of(dtype="float32", layout="NHD"):
    return AttentionSpec(num_heads=3, num_kv_heads=3, head_dim=8, dtype=dtype, block_size=4, layout=layout)


def make(num_blocks=5, dtype="float32", layout="NHD", **options):
    return KVPool(spec_of(dtype, layout), 2, num_blocks, **options)


def backend(layout="NHD"):
    chosen = GatherBackend()
    chosen.setup(spec_of(layout=layout), "cpu")
    return chosen


def copies(*pairs):
    return [BlockCopy(BlockId(source), BlockId(destination)) for source, destination in pairs]


def parts(layer):
    return [part for part in (layer.k, layer.v, layer.k_scale, layer.v_scale) if part is not None]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(("layout", "shape"), [("NHD", (6, 4, 3, 8)), ("HND", (6, 3, 4, 8))])
def test_every_layer_has_the_usable_blocks_and_the_null_block(layout, shape, dtype):
    pool = make(dtype=dtype, layout=layout)
    scales = [shape[:-1]] * 2 if dtype == "int8" else []
    assert [[tuple(part.shape) for part in parts(layer)] for layer in pool.layers] == [[shape, shape, *scales]] * 2
    assert (pool.layers[0].num_blocks, pool.layers[0].block_size) == (6, 4)
    assert pool.bytes == sum(t.numel() * t.element_size() for layer in pool.layers for t in parts(layer))
    assert pool.bytes == 6 * block_bytes(spec_of(dtype), 2)


def test_poison_spares_the_null_block_only():
    pool = make(poison=True)
    for layer in pool.layers:
        for tensor in (layer.k, layer.v):
            assert not tensor[0].any()
            assert tensor[1:].isnan().all()


def test_freed_blocks_are_poisoned_and_others_are_not():
    pool = make(poison=True)
    for layer in pool.layers:
        layer.k[1:], layer.v[1:] = 1.0, 2.0
    pool.freed(np.array([2, 5], dtype=np.int32))
    for layer in pool.layers:
        for tensor in (layer.k, layer.v):
            spoiled = tensor.isnan().flatten(1).all(dim=1).tolist()
            assert spoiled == [False, False, True, False, False, True], spoiled
            assert not tensor[[1, 3, 4]].isnan().any()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    "pairs", [[(1, 2)], [(1, 2), (2, 3)], [(1, 2), (2, 1)], [(1, 3), (3, 4), (2, 3)], [(1, 2), (3, 2), (2, 5)], []]
)
def test_copies_happen_in_order_in_every_layer(layout, pairs, dtype):
    pool = make(dtype=dtype, layout=layout)
    held = [part for layer in pool.layers for part in parts(layer)]
    for at, part in enumerate(held):
        for block in range(1, 6):
            part[block] = 10 * at + block
    content = list(range(6))
    for source, destination in pairs:
        content[destination] = content[source]
    pool.copy([backend(layout=layout)] * 2, copies(*pairs))
    for at, part in enumerate(held):
        for block in range(1, 6):
            assert (part[block] == 10 * at + content[block]).all(), (at, block, pairs)


def test_fp8_pools_carry_scales():
    pool = make(dtype="float8_e4m3fn", poison=True)
    assert pool.layers[0].k.dtype == torch.float8_e4m3fn
    assert pool.layers[0].k_scale.tolist() == [1.0] * 3
    assert pool.layers[0].k[1:].float().isnan().all()
    assert pool.bytes == 6 * 2 * 2 * 4 * 3 * 8


def test_a_dtype_that_no_pool_has_is_refused():
    with pytest.raises(InvalidArgument, match="int4"):
        make(dtype="int4")


def test_a_pool_larger_than_the_machine_says_bytes_asked_free_and_what_fits():
    with pytest.raises(OutOfMemory, match=r"takes [\d,]+ bytes .* are free on cpu; at most \d+ blocks fit"):
        make(num_blocks=10**12)


def test_a_failing_allocation_is_a_typed_error(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(pool_module.torch, "zeros", fail)
    with pytest.raises(OutOfMemory, match=r"lower cache\.num_blocks"):
        make()


def test_a_memory_fraction_becomes_blocks_with_the_null_block_paid(monkeypatch):
    each = block_bytes(spec_of(), 2)
    monkeypatch.setattr(pool_module, "free_bytes", lambda device: 100 * each)
    assert num_blocks_for(0.5, "cpu", spec_of(), 2) == 49
    assert num_blocks_for(1.0, "cpu", spec_of(), 2) == 99
    with pytest.raises(OutOfMemory, match="raise the fraction"):
        num_blocks_for(0.01, "cpu", spec_of(), 2)


def test_poison_of_an_int8_pool_is_in_its_scales():
    pool = make(dtype="int8", poison=True)
    layer = pool.layers[0]
    assert layer.k_scale[1:].isnan().all()
    assert layer.v_scale[0].isfinite().all()
    layer.v_scale[2] = 1.0
    pool.freed(np.array([2]))
    assert layer.v_scale[2].isnan().all()
