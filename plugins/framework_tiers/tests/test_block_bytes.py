"""Copies of a pool's blocks: bytes and order on CUDA streams, shown without a GPU by streams that are not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fake_engines import finished, make_llm
from pretended_cuda import Cuda, pretended_cuda
from stepped_worker import InTurn
from tier_helpers import over

from framework.engine.pool import KVPool
from framework.errors import InvalidArgument
from framework.interfaces.attention import AttentionSpec
from framework.llm import LLM, EngineOptions
from framework.sampling import Sampling
from framework_tiers import block_bytes, setup
from framework_tiers.block_bytes import CudaPoolBytes, HostPoolBytes, as_bytes, pool_bytes

BLOCKS = 8
OUT, IN, GATHERING = "stream 1", "stream 2", "stream 3"
LATE = {
    "engine": {"engine"},
    "copies": {OUT, IN, GATHERING},
    "bus": {OUT, IN},
    "gathering": {GATHERING},
    "nobody": set(),
}


def on_device(cuda: Cuda, dtype: str = "float32") -> tuple[KVPool, CudaPoolBytes]:
    spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=8, dtype="float32", block_size=4, kv_dtype=dtype)
    pool = KVPool(spec, 3, BLOCKS)
    for layer in pool.layers:
        for part in (layer.k, layer.v, layer.k_scale, layer.v_scale):
            if part is not None:
                cuda.put_on_device(part)
    return pool, CudaPoolBytes(as_bytes(pool.tensors_of(0)))


def compute(pool: KVPool, block: int, value: float) -> None:
    """What a step of the engine writes into a block."""
    for layer in pool.layers:
        layer.k[block].fill_(value)
        layer.v[block].fill_(-value)


def whole(pool: KVPool, block: int) -> list[float]:
    """The values of a block, K and V of each layer, as they are when all has ended."""
    found = [float(part[block].unique().item()) for layer in pool.layers for part in (layer.k, layer.v)]
    return sorted(set(found))


def reads_what_was_written(cuda: Cuda) -> None:
    """Every block is written, read, and overwritten at once, more of them than have room on their way out."""
    pool, bytes_of = on_device(cuda)
    memory = np.frombuffer(bytes_of.allocate(BLOCKS * bytes_of.block_bytes), dtype=np.uint8).reshape(BLOCKS, -1)
    waits: list[Callable[[], Any]] = []
    for block in range(1, BLOCKS + 1):
        compute(pool, block, float(block))
        waits.append(bytes_of.read(block, memory[block - 1] if block % 2 else None))
        compute(pool, block, 100.0)
    for block, wait in enumerate(waits, start=1):
        assert sorted(set(wait().view(np.float32).tolist())) == [-block, block], f"block {block}"


def writes_after_the_last_reader(cuda: Cuda) -> None:
    """What the engine was asked for before reads the old content; what it is asked for after sees the new one."""
    pool, bytes_of = on_device(cuda)
    data = np.frombuffer(bytes_of.allocate(bytes_of.block_bytes), dtype=np.uint8)
    kept, later = torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8)
    compute(pool, 1, 1.0)
    kept.copy_(pool.layers[0].k[1:2])
    data.view(np.float32)[:] = 5.0
    bytes_of.write(1, data)
    data.view(np.float32)[:] = 6.0  # the memory is the caller's again
    later.copy_(pool.layers[0].k[1:2])
    cuda.synchronize()
    assert kept.unique().tolist() == [1.0], "the last content was read too late"
    assert later.unique().tolist() == [5.0] == whole(pool, 1)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("what", [reads_what_was_written, writes_after_the_last_reader])
def test_bytes_are_right_whoever_is_late(
    what: Callable[[Cuda], None], late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_bytes, "_MOST_GATHERED", 2)
    with pretended_cuda(LATE[late]) as cuda:
        what(cuda)


def test_a_copy_out_waits_for_the_writer_and_the_engine_for_the_gathering_alone() -> None:
    with pretended_cuda(()) as cuda:
        _, bytes_of = on_device(cuda)
        cuda.log.clear()
        wait = bytes_of.read(3)
        assert cuda.log == [
            f"{GATHERING} waits for engine",
            f"{GATHERING} runs cat",
            f"engine waits for {GATHERING}",
            f"{OUT} waits for {GATHERING}",
            f"{OUT} copies out",
        ]
        wait()
        assert cuda.log[-1] == f"host waits for {OUT}"


def test_pageable_memory_is_refused_even_if_it_is_said_to_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_cuda(()) as cuda:
        _, bytes_of = on_device(cuda)
        plain = np.zeros(bytes_of.block_bytes, dtype=np.uint8)
        with pytest.raises(InvalidArgument, match="not pinned"):
            bytes_of.write(1, plain)
        with pytest.raises(InvalidArgument, match="not pinned"):
            bytes_of.read(1, plain)
        monkeypatch.setattr(block_bytes, "_require_pinned", lambda memory: memory)
        with pytest.raises(AssertionError, match="over pageable memory"):
            bytes_of.write(1, plain)


def test_memory_that_cannot_be_pinned_is_a_memory_error_and_what_is_freed_is_unpinned() -> None:
    with pretended_cuda(()) as cuda:
        _, bytes_of = on_device(cuda)
        before = len(cuda.pinned)
        memory = bytes_of.allocate(64)
        assert len(cuda.pinned) == before + 1
        del memory
        assert len(cuda.pinned) == before
        cuda.cudaHostRegister = lambda start, size, flags: 2  # type: ignore[method-assign]
        with pytest.raises(MemoryError, match="64 bytes of host memory cannot be pinned: CUDA error 2"):
            bytes_of.allocate(64)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_block_is_the_same_bytes_on_either_device(dtype: str) -> None:
    with pretended_cuda(()) as cuda:
        pool, bytes_of = on_device(cuda, dtype)
        plain = HostPoolBytes(as_bytes(pool.tensors_of(0)))
        data = np.frombuffer(bytes_of.allocate(bytes_of.block_bytes), dtype=np.uint8)
        data[:] = np.random.default_rng(0).integers(0, 100, len(data), dtype=np.uint8)
        bytes_of.write(2, data)
        cuda.synchronize()
        assert plain.block_bytes == bytes_of.block_bytes
        assert plain.read(2)().tolist() == data.tolist() == bytes_of.read(2)().tolist()
        parts = [part for layer in pool.layers for part in (layer.k, layer.v, layer.k_scale, layer.v_scale)]
        assert plain.block_bytes == sum(part[2].nbytes for part in parts if part is not None), "all of a block"


class InThread(InTurn):
    """All that moves is pinned until its end."""

    llm: Any = None
    jobs: list[str]

    def _start(self) -> None:
        self.jobs = []

    def _do(self, job: Any) -> str:
        copy, llm = job.copy, self.llm
        if copy is not None:
            tier = llm.engine.state.tiers.placement.lower.tiers[max(copy.source, copy.target) - 1]
            assert tier.is_pinned(copy.key), "below, a block on its way can be evicted"
            if not copy.target:
                tables = [llm.engine.state.guarded.table(seq.id) for seq in llm.engine.state.tiers.holding()]
                dropped = [llm.engine.state.guarded.table(load.seq.id) for load in llm.engine.state.tiers.dropped]
                assert any(copy.block in table.tolist() for table in tables + dropped), "the pool's block is nobody's"
            self.jobs.append("load" if not copy.target else "store")
        return super()._do(job)


def served(prompts: Sequence[list[int]], **tiers: Any) -> tuple[list[Any], LLM]:
    llm = make_llm(
        "tiny", allocator="prefix_cow", hash="sha256", num_blocks=16, block_size=4, device="cpu", dtype="float32",
        engine=EngineOptions(max_batch_requests=3, max_model_len=64, prepack=False), **tiers,
    )  # fmt: skip
    InThread.llm = llm
    return finished(llm.generate(prompts, Sampling(max_tokens=6, ignore_eos=True))), llm


@pytest.mark.parametrize(("rule", "late"), [("on_eviction", "bus"), ("write_through", "nobody")])
def test_a_serve_run_over_pinned_memory_has_the_tokens_of_one_without_tiers(
    rule: str, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[1 + stem, *range(40 * stem, 40 * stem + 17)] for stem in (0, 1, 2, 3, 0, 1, 2, 3, 0, 2)]
    right, _ = served(prompts)

    def on_cuda(parts: list[torch.Tensor]) -> CudaPoolBytes:
        for part in parts:
            cuda.put_on_device(part)
        return CudaPoolBytes(parts)

    monkeypatch.setattr(block_bytes, "pool_bytes", on_cuda)
    monkeypatch.setattr(setup, "WorkerTransfers", InThread)
    with pretended_cuda(LATE[late]) as cuda:
        asked: list[int] = []
        pin = cuda.cudaHostRegister
        cuda.cudaHostRegister = lambda start, size, flags: (asked.append(size), pin(start, size, flags))[1]  # type: ignore[method-assign]
        found, llm = served(prompts, below=over([{"store": "host", "num_blocks": 40}], rule))
        state = llm.engine.state
        jobs = state.tiers.transfers.jobs  # type: ignore[union-attr]
        block = pool_bytes(as_bytes(llm.pool.tensors_of(0))).block_bytes
        assert asked == [40 * block, block], "the store's memory is taken once, and a buffer of one block"
        assert {"load", "store"} <= set(jobs), jobs
        llm.engine.check()
        llm.close()
    assert found == right
