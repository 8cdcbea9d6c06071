"""One model over several processes: the tokens and the log of one, and one clean error when a rank fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engines import make_llm
from torch import Tensor

from framework import registry
from framework.engine.request import Request, Status
from framework.errors import ConfigError, InvalidArgument, RankError
from framework.interfaces.backend import AttentionBackend, Batch, LayerKV
from framework.llm import LLM
from framework.model.dense import dense_logits
from framework.model.loading import LoadedModel, load_model
from framework.model.ranks import rank_devices
from framework.modes.dense_check import compare
from framework.sampling import Sampling

HEAD = list("A prefix that all prompts share: größer, so that tokens of both ranks occur. ".encode())
PROMPTS = [HEAD + list(tail) for tail in (b"one", b"two, longer", b"three", b"and a fourth one", b"five")]
SAMPLINGS = [
    Sampling(max_tokens=14),
    Sampling(max_tokens=10, n=3, temperature=0.9, seed=4),
    Sampling(max_tokens=9, beam_width=3),
    Sampling(max_tokens=12, temperature=0.7, top_k=20, top_p=0.9),
    Sampling(max_tokens=8, logprobs=2),
]


@pytest.fixture(scope="module")
def whole() -> LoadedModel:
    return load_model("tiny")


@pytest.fixture(scope="module")
def pair() -> Iterator[LoadedModel]:
    """The tiny model over two ranks, which serve one LLM after another."""
    model = load_model("tiny", tensor_parallel_size=2)
    yield model
    model.close()


def make(model: LoadedModel | str, size: int, log: list[Any] | None = None, **options: Any) -> LLM:
    options = {"num_blocks": 80, "block_size": 4, "device": "cpu", "poison": True, "max_model_len": 128, **options}
    record = None if log is None else lambda event, **facts: log.append((event, facts))
    return make_llm(model, tensor_parallel_size=size, log=record, **options)


def serve(model: LoadedModel, size: int, **options: Any) -> tuple[LLM, list[Request], list[Any]]:
    log: list[Any] = []
    llm = make(model, size, log, **options)
    requests = llm.generate(PROMPTS, SAMPLINGS)
    llm.engine.check()
    return llm, requests, log


def answers_of(requests: list[Request]) -> list[Any]:
    return [(r.status, r.reason, r.num_cached_tokens, [c.tokens for c in r.completions]) for r in requests]


def gone(pids: list[int], within_s: float = 10.0) -> list[int]:
    """Those of `pids` that are still there after waiting for them to go."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.02)
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_blocks": 52, "chunk_size": 7, "preempt_every": 5, "eviction": "fifo"},
        {"allocator": "cow", "layout": "HND", "backend": "gather"},
        {"allocator": "contiguous", "num_blocks": 300},
    ],
    ids=["prefix_cow", "small pool, chunks, preempted", "cow, HND, gather", "contiguous"],
)
def test_two_ranks_give_the_tokens_and_the_log_of_one(
    whole: LoadedModel, pair: LoadedModel, options: dict[str, Any]
) -> None:
    one, alone, log_alone = serve(whole, 1, **options)
    two, together, log_together = serve(pair, 2, **options)
    assert answers_of(together) == answers_of(alone)
    assert all(request.status is Status.FINISHED for request in together), answers_of(together)
    assert log_together == log_alone
    assert two.engine.metrics.num_forks == one.engine.metrics.num_forks > 0
    copied = two.engine.metrics.num_copied_blocks
    assert copied == one.engine.metrics.num_copied_blocks
    assert copied > 0 or options.get("allocator") == "contiguous", copied
    assert two.pool.layers[0].k.numel() * 2 == one.pool.layers[0].k.numel(), "each rank holds half of the heads"
    assert two.kv_bytes == one.kv_bytes == 2 * two.pool.bytes
    checked = compare(two, together, 8)[1]
    assert (checked["dense_checked"], checked["dense_mismatches"]) == (2, 0), checked


def test_log_probabilities_and_dense_logits_are_those_of_one_rank(whole: LoadedModel, pair: LoadedModel) -> None:
    tokens = PROMPTS[1]
    expected = dense_logits(whole.decoder, tokens)
    torch.testing.assert_close(dense_logits(pair.decoder, tokens), expected, atol=1e-4, rtol=1e-4)
    sampling = Sampling(max_tokens=6, logprobs=3)
    (alone,), (together,) = (make(model, size).generate(tokens, sampling) for model, size in ((whole, 1), (pair, 2)))
    ours, theirs = together.completions[0].logprobs, alone.completions[0].logprobs
    assert ours is not None
    assert theirs is not None
    for one, other in zip(ours, theirs, strict=True):
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert one.chosen == pytest.approx(other.chosen, abs=1e-4)


@pytest.mark.slow
def test_fewer_kv_heads_than_ranks(whole: LoadedModel) -> None:
    with make("tiny", 4, num_blocks=None, memory_fraction=1e-5) as llm:
        assert llm.model.ranks is not None
        pids = llm.model.ranks.pids
        assert len(pids) == 3
        requests = llm.generate(PROMPTS[:2], SAMPLINGS[:2])
        assert llm.pool.layers[0].k.shape[2] == 1, "the one kv head that this rank's query head reads"
        assert llm.num_blocks < make(whole, 1, num_blocks=None, memory_fraction=1e-5).num_blocks
        checked = compare(llm, requests, 8)[1]
        assert (checked["dense_checked"], checked["dense_mismatches"]) == (1, 0), checked
    assert gone(pids) == []
    alone = make(whole, 1, num_blocks=llm.num_blocks).generate(PROMPTS[:2], SAMPLINGS[:2])
    assert answers_of(requests) == answers_of(alone)


def test_a_later_llm_takes_the_ranks_over_and_the_earlier_one_says_so(pair: LoadedModel) -> None:
    first, second = make(pair, 2), make(pair, 2)
    with pytest.raises(RankError, match="another LLM was made over the same ranks"):
        first.generate(PROMPTS[:1], SAMPLINGS[:1])
    assert second.generate(PROMPTS[:1], SAMPLINGS[:1])[0].status is Status.FINISHED


def test_what_cannot_be_sent_to_a_rank_is_refused_and_the_ranks_live_on(pair: LoadedModel) -> None:
    backend = registry.build("backend", "torch", {}, {})
    backend.lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent to the other ranks' processes"):
        make(pair, 2, backend=backend)
    assert make(pair, 2).generate(PROMPTS[:1], SAMPLINGS[:1])[0].status is Status.FINISHED


class FailsElsewhere(AttentionBackend):
    """The torch backend, but for a fault on every rank that is not the first."""

    capabilities = registry.build("backend", "torch", {}, {}).capabilities

    def attend(self, q: Tensor, pool: LayerKV, batch: Batch, out: Tensor, *, lse: Tensor | None = None) -> None:
        if multiprocessing.parent_process() is not None:
            raise ValueError("a fault of rank 1 alone")
        out.zero_()


def test_a_rank_that_raises_fails_the_run_with_its_own_words() -> None:
    threads = torch.get_num_threads()
    with make("tiny", 2, backend=FailsElsewhere) as llm:
        assert llm.model.ranks is not None
        pids = llm.model.ranks.pids
        says = r"rank 1 of 2 failed: .*FailsElsewhere\.attend: raised ValueError\('a fault of rank 1 alone"
        for _ in range(2):  # the second time without asking anybody
            with pytest.raises(RankError, match=says):
                llm.generate(PROMPTS, SAMPLINGS)
    assert gone(pids) == []
    assert torch.get_num_threads() == threads


def test_a_killed_rank_is_one_prompt_error_and_leaves_no_process() -> None:
    llm = make("tiny", 2)
    ranks = llm.model.ranks
    assert ranks is not None
    requests = [llm.submit(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]
    llm.engine.step()
    os.kill(ranks.pids[0], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2 was killed by SIGKILL"):
        llm.drain()
    assert time.monotonic() - start < 30, "far less than the timeout of 300 s"
    assert ranks.broken
    assert gone(ranks.pids) == []
    assert any(not request.status.ended for request in requests), answers_of(requests)
    with pytest.raises(RankError, match="killed by SIGKILL"):
        dense_logits(llm.model.decoder, [1, 2])
    llm.close()


@pytest.mark.slow
def test_a_fault_of_rank_0_ends_the_others() -> None:
    llm = make("tiny", 2)
    ranks = llm.model.ranks
    assert ranks is not None

    def broken(*args: Any) -> None:
        raise ValueError("here")

    llm.backend.attend = broken  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="here"):
        llm.generate(PROMPTS, SAMPLINGS)
    assert gone(ranks.pids) == []
    with pytest.raises(RankError, match=r"the 2 ranks of this model were ended by .*ValueError\('here'\)"):
        dense_logits(llm.model.decoder, [1, 2, 3])


@pytest.mark.slow
def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    from framework_testing.checkpoints import make_checkpoint

    folder, before = make_checkpoint(tmp_path), multiprocessing.active_children()
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(Exception, match="is damaged or no safetensors file"):
        load_model(folder, tensor_parallel_size=2)
    assert set(multiprocessing.active_children()) <= set(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in inductor
def test_compiled_parts_give_the_tokens_of_the_whole(whole: LoadedModel) -> None:
    with make("tiny", 2, compile=True) as llm:
        found = answers_of(llm.generate(PROMPTS[:2], SAMPLINGS[:2]))
    assert found == answers_of(make(whole, 1).generate(PROMPTS[:2], SAMPLINGS[:2]))


def test_sizes_that_cannot_be_are_refused_before_weights_are_read(tmp_path: Path, whole: LoadedModel) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 6, '
        '"num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 8}'
    )
    with pytest.raises(InvalidArgument, match=r"num_heads 6 is not a multiple of it.*Would work: 1, 2, 6"):
        make(str(tmp_path), 4)
    with pytest.raises(InvalidArgument, match="tensor_parallel_size 3 does not divide this qwen3 model"):
        load_model("tiny", tensor_parallel_size=3)
    with pytest.raises(ConfigError, match="loaded over 1 ranks; load it with load_model"):
        make(whole, 2)


def test_too_few_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2 needs as many CUDA devices, found 1"):
        load_model("tiny", tensor_parallel_size=2, device="cuda")
    with pytest.raises(ConfigError, match="found 1; lower it, take device=cuda"):
        rank_devices("cuda:0", 2)
    assert rank_devices("cpu:0", 3) == ["cpu"] * 3
