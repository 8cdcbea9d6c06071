"""The tier behind vLLM's CPU tier, before stand-ins for the names it needs of vLLM."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framework.errors import Unsupported
from framework.export import vllm_secondary
from framework.export.vllm_secondary import as_vllm_tier

ROW = 8


class Manager:
    def __init__(self, spec: Any, view: memoryview, tier_type: str, detector: Any) -> None:
        self.tier_type, self.bp_detector = tier_type, detector


class Mapper:
    @staticmethod
    def from_offloading_spec(root: str, spec: Any, blocks_per_file: int) -> Any:
        return SimpleNamespace(get_run_config=lambda: {"model_name": "model", "dtype": "float16"})


VLLM = SimpleNamespace(
    LookupResult=Enum("LookupResult", "MISS HIT RETRY"),
    Locality=Enum("Locality", {"LOCAL": "LOCAL"}),
    Medium=Enum("Medium", "CPU STORAGE"),
    OffloadPolicy=Enum("OffloadPolicy", "CHUNK_LEVEL REQUEST_LEVEL"),
    RequestOffloadingContext=SimpleNamespace,
    CacheHitSource=Enum("CacheHitSource", "HOST DISK"),
    JobResult=SimpleNamespace,
    FileMapper=Mapper,
    SecondaryTierManager=Manager,
    get_offload_group_idx=lambda key: int.from_bytes(key[-4:], "big"),
)
SPEC = SimpleNamespace(blocks_per_chunk=2, tokens_per_block=(16,))
KEYS = [bytes([number, 0, 0, 0, 0]) for number in range(3)]
CONTEXT = SimpleNamespace(req_id="one", get_offload_key_position=lambda key: 32 * (key[0] + 1))


def made(memory: Any, **options: Any) -> Any:
    return as_vllm_tier(VLLM)(
        offloading_spec=SPEC, primary_kv_view=memoryview(memory), tier_type="StoreTier", **options
    )


def job(number: int, keys: list[bytes], chunks: list[int]) -> Any:
    return SimpleNamespace(job_id=number, keys=keys, chunk_ids=np.array(chunks), req_context=CONTEXT)


def test_a_file_that_is_damaged_fails_alone_and_is_a_miss(tmp_path: Path) -> None:
    memory = np.arange(4 * ROW, dtype=np.int8).reshape(4, ROW)
    tier = made(memory, store={"name": "disk", "path": str(tmp_path)}, num_blocks=8, eviction="s3fifo")
    assert tier.on_new_request(CONTEXT).policy is VLLM.OffloadPolicy.REQUEST_LEVEL
    assert tier.lookup(KEYS[0], CONTEXT) is VLLM.LookupResult.MISS
    tier.submit_store(job(1, KEYS, [2, 1, 0]))
    tier.drain_jobs()
    (ended,) = tier.get_finished_jobs()
    assert (ended.job_id, ended.success, ended.transfer_bytes) == (1, True, 3 * ROW)
    (file,) = tmp_path.rglob(f"{KEYS[1].hex()}.kv")
    file.write_bytes(file.read_bytes()[:-1])
    assert all(tier.lookup(key, CONTEXT) is VLLM.LookupResult.HIT for key in KEYS)
    before = memory.copy()
    memory[:] = 0
    tier.submit_load(job(2, KEYS, [3, 1, 0]))
    tier.on_schedule_end(None)
    tier.drain_jobs()
    (ended,) = tier.get_finished_jobs()
    assert (ended.success, ended.successful_keys) == (False, (KEYS[0], KEYS[2]))
    assert memory[3].tolist() == before[2].tolist()
    assert memory[0].tolist() == before[0].tolist()
    assert tier.lookup(KEYS[1], CONTEXT) is VLLM.LookupResult.MISS
    tier.on_request_finished(CONTEXT)
    tier.shutdown()


def test_chunks_in_plain_memory_are_reported_as_the_hosts() -> None:
    tier = made(np.zeros((2, ROW), np.int8), store="host", num_blocks=2, locality="LOCAL")
    assert (tier.medium, tier.cache_hit_source) == (VLLM.Medium.CPU, VLLM.CacheHitSource.HOST)
    tier.shutdown()


def test_what_vllm_cannot_use_is_refused() -> None:
    with pytest.raises(Unsupported, match="keys only"):
        made(np.zeros((2, ROW), np.int8), store="null", num_blocks=2)
    with pytest.raises(Unsupported, match="reads the future"):
        made(np.zeros((2, ROW), np.int8), store="host", num_blocks=2, eviction="belady")


def test_without_vllm_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_offload.base", None)
    with pytest.raises(Unsupported, match="cannot be imported"):
        as_vllm_tier()
    with pytest.raises(AttributeError, match="named StoreTier"):
        vllm_secondary.OtherTier
