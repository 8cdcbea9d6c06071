"""Tiers below a model that fails, or that nobody holds any more."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

from fake_engines import make_llm
from tier_helpers import over

from framework.engine.request import Status
from framework.interfaces.below import THREAD
from framework.llm import EngineOptions
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint
from framework_torch.backend import TorchBackend

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
