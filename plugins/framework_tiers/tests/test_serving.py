"""Tiers below a model that fails, or that nobody holds any more."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_engines import make_llm
from tier_helpers import over
from watched_plugins import watch

from framework.api import run
from framework.engine.request import Status
from framework.interfaces.below import THREAD
from framework.interfaces.eviction import EvictionPolicy
from framework.llm import EngineOptions
from framework.results.catalogue import find
from framework.sampling import Sampling
from framework_builtin.backend.torch import TorchBackend
from framework_testing.checkpoints import make_checkpoint
from framework_tiers.tiering import Tiering

PROMPT = [5, 9, 13, 40, 22, 31, 8, 17, 60, 33, 2, 71]


class NanOnce(TorchBackend):
    """Answers NaN for every head of one token, in the first call of its life."""

    spoilt = False

    def attend(self, q, pool, batch, out, *, lse=None):  # type: ignore[no-untyped-def]
        super().attend(q, pool, batch, out, lse=lse)
        if not self.spoilt:
            self.spoilt, out[1] = True, float("nan")


def test_what_a_failed_request_wrote_leaves_the_tiers_and_the_next_process_finds_none(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", hidden_size=32, num_hidden_layers=2, vocab_size=96)
    options = EngineOptions(max_model_len=64, chunk_size=8)
    tiers = [
        {"store": "host", "num_blocks": 40},
        {"store": {"name": "disk", "path": str(tmp_path / "kv")}, "num_blocks": 40},
    ]
    parts: dict[str, Any] = {
        "dtype": "float32", "num_blocks": 80, "block_size": 4, "device": "cpu", "engine": options,
        "below": over(tiers, {"name": "write_through"}),
    }  # fmt: skip
    sampling = Sampling(max_tokens=4)
    with make_llm(str(checkpoint), backend=NanOnce(), **parts) as llm:
        (failed,) = llm.generate(PROMPT, sampling)
        assert failed.status is Status.FAILED, failed
    assert not list(tmp_path.rglob("*.kv")), "the next process would load it"
    with make_llm(str(checkpoint), **parts) as llm:
        (again,) = llm.generate(PROMPT, sampling)
        assert again.status is Status.FINISHED, again.reason
    assert list(tmp_path.rglob("*.kv")), "nothing was stored"


def test_an_llm_that_nobody_holds_ends_its_thread() -> None:
    others = set(threading.enumerate())
    llm = make_llm("tiny", num_blocks=16, below=over([{"store": "host", "num_blocks": 8}], "write_through"))
    (own,) = {thread for thread in threading.enumerate() if thread.name == THREAD} - others
    del llm
    gc.collect()
    own.join(60)
    assert not own.is_alive()


def test_only_guards_call_rules_and_policies_of_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    others: set[str] = set()
    eviction = watch(monkeypatch, "eviction", "fifo", EvictionPolicy, others)
    guards = ("framework_tiers.guarded_", "framework_tiers.rules.")
    rule = watch(monkeypatch, "tiering", "write_through", Tiering, others, *guards)
    below = over([{"store": "host", "num_blocks": 40, "eviction": eviction}], rule)
    options = EngineOptions(max_batch_requests=4, max_batch_tokens=16)
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, number] for number in range(6)]
    with make_llm("tiny", num_blocks=24, block_size=2, device="cpu", engine=options, below=below) as llm:
        for request in llm.generate(prompts, Sampling(max_tokens=6)):
            assert request.status.value == "finished", request.reason
        assert llm.stats()["tier1_bytes_in"] > 0
        llm.reset()
    assert not others, "\n".join(sorted(others))


@pytest.mark.parametrize("mode", ["cache_only", "replay"])
def test_every_key_that_a_run_with_tiers_writes_is_declared(mode: str, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000 * i, "input_length": 1500, "output_length": 3, "hash_ids": [1, 2, 3 + i]} for i in range(4)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiers = [{"store": "host", "num_blocks": 2}, {"store": "null", "num_blocks": 4, "eviction": "fifo"}]
    result = run({
        "mode": mode, "workload": {"name": "trace", "path": str(tmp_path / "trace.jsonl")},
        "cache": {"num_blocks": 3, "block_size": 512}, "below": over(tiers, "on_eviction"),
        "run": {"dir": str(tmp_path / "run"), "progress": False},
    })  # fmt: skip
    assert "tier2_bytes_in" in result
    assert not [key for key in result if find(key) is None]
