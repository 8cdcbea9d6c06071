"""The pool's shapes, sizes, copies and poison."""

import numpy as np
import pytest
import torch

from framework.engine import pool as pool_module
from framework.engine.pool import KVPool, block_bytes, num_blocks_for
from framework.errors import InvalidArgument, OutOfMemory
from framework.interfaces.backend import AttentionSpec
from framework.types import BlockCopy, BlockId
from framework_builtin.backend.gather import GatherBackend


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


@pytest.mark.parametrize(("layout", "shape"), [("NHD", (6, 4, 3, 8)), ("HND", (6, 3, 4, 8))])
def test_every_layer_has_the_usable_blocks_and_the_null_block(layout, shape):
    pool = make(layout=layout)
    assert len(pool.layers) == 2
    assert [tuple(layer.k.shape) for layer in pool.layers] == [shape, shape]
    assert pool.layers[0].num_blocks == 6
    assert pool.layers[0].block_size == 4
    assert pool.bytes == sum(t.numel() * t.element_size() for layer in pool.layers for t in (layer.k, layer.v))
    assert pool.bytes == 6 * block_bytes(spec_of(), 2)


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


def test_without_poison_freed_blocks_keep_their_content():
    pool = make()
    pool.layers[0].k[2] = 3.0
    pool.freed(np.array([2]))
    assert (pool.layers[0].k[2] == 3.0).all()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    "pairs", [[(1, 2)], [(1, 2), (2, 3)], [(1, 2), (2, 1)], [(1, 3), (3, 4), (2, 3)], [(1, 2), (3, 2), (2, 5)], []]
)
def test_copies_happen_in_order_in_every_layer(layout, pairs):
    pool = make(layout=layout)
    content = {}
    for at, layer in enumerate(pool.layers):
        for block in range(1, 6):
            layer.k[block], layer.v[block] = 10 * at + block, 100 + 10 * at + block
            content[at, block] = 10 * at + block
    pool.copy(backend(layout=layout), copies(*pairs))
    for at, layer in enumerate(pool.layers):
        for source, destination in pairs:
            content[at, destination] = content[at, source]
        for block in range(1, 6):
            assert (layer.k[block] == content[at, block]).all(), (at, block, pairs)
            assert (layer.v[block] == 100 + content[at, block]).all(), (at, block, pairs)


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


@pytest.mark.parametrize(("layout", "shape"), [("NHD", (6, 4, 3)), ("HND", (6, 3, 4))])
def test_an_int8_pool_pays_for_a_scale_of_each_token_and_head(layout, shape):
    pool = make(dtype="int8", layout=layout)
    assert [tuple(layer.k_scale.shape) for layer in pool.layers] == [shape, shape]
    held = [t for layer in pool.layers for t in (layer.k, layer.v, layer.k_scale, layer.v_scale)]
    assert pool.bytes == sum(t.numel() * t.element_size() for t in held) == 6 * block_bytes(spec_of("int8"), 2)


def test_poison_of_an_int8_pool_is_in_its_scales():
    pool = make(dtype="int8", poison=True)
    layer = pool.layers[0]
    assert layer.k_scale[1:].isnan().all()
    assert layer.v_scale[0].isfinite().all()
    layer.v_scale[2] = 1.0
    pool.freed(np.array([2]))
    assert layer.v_scale[2].isnan().all()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_copied_int8_block_takes_its_scales_along(layout):
    pool = make(dtype="int8", layout=layout)
    layer = pool.layers[1]
    layer.k[1], layer.k_scale[1], layer.v_scale[1] = 7, 0.5, 0.25
    pool.copy(backend(layout=layout), copies((1, 2), (2, 3)))
    for block in (2, 3):
        assert layer.k[block].eq(7).all()
        assert layer.k_scale[block].eq(0.5).all()
        assert layer.v_scale[block].eq(0.25).all()
