"""engine.compile: the decoder through torch.compile, attention opaque to it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from fake_engines import finished, make_llm
from static_backend import StaticBackend

from framework.engine.compiled import opaque_attention
from framework.errors import ConfigError
from framework.llm import LLM
from framework.sampling import Sampling
from framework_testing.attention_runs import ReplayRecorder

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in inductor

SAMPLINGS = [
    Sampling(max_tokens=12, ignore_eos=True),
    Sampling(max_tokens=9, temperature=0.9, top_p=0.9, seed=2, ignore_eos=True),
    Sampling(max_tokens=8, beam_width=2, ignore_eos=True),
    Sampling(max_tokens=7, n=2, temperature=1.0, seed=1, ignore_eos=True),
]


class _Owner:
    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        return q * layer + k.sum() - v.sum()


def test_the_opaque_operator_calls_its_owner_and_does_not_keep_it_alive() -> None:
    first, second = _Owner(), _Owner()
    one, other = opaque_attention(first), opaque_attention(second)
    q = torch.ones(2, 3, 4)
    assert torch.equal(one(3, q, q, q), q * 3)
    alive = weakref.ref(first)
    del first
    gc.collect()
    assert alive() is None
    with pytest.raises(KeyError):
        one(1, q, q, q)
    assert torch.equal(other(2, q, q, q), q * 2)


def make(compiled: bool, **options: Any) -> LLM:
    engine = {"max_batch_requests": 8, "max_batch_tokens": 24, "max_model_len": 64, "chunk_size": 7, "prepack": False}
    cache = {"num_blocks": 120, "block_size": 4}
    return make_llm("tiny", device="cpu", compile=compiled, preempt_every=9, **cache, **engine, **options)


def serve(llm: LLM) -> list[Any]:
    found = finished(llm.generate([[5, *range(30, 39 + 4 * i)] for i in range(len(SAMPLINGS))], SAMPLINGS))
    llm.engine.check()
    return found


@pytest.mark.slow
def test_a_compiled_decoder_gives_the_tokens_of_the_eager_one_and_compiles_twice() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    wanted = serve(make(False))
    counters.clear()
    llm = make(True)
    assert serve(llm) == wanted
    compiled = counters["stats"]["unique_graphs"]
    assert 1 <= compiled <= 2, f"{compiled}: one program for a single token, one for any other number"
    assert not counters["graph_break"], counters["graph_break"]
    # Other numbers of tokens and rows: nothing is compiled again.
    serve(llm)
    llm.generate([[9] * n for n in (3, 11, 2)], Sampling(max_tokens=5, ignore_eos=True))
    assert counters["stats"]["unique_graphs"] == compiled, "a step was compiled again"


@pytest.mark.slow
def test_one_model_after_another_is_compiled_in_one_process() -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(3):
            for prompts in ([[5, 6, 7], [8, 9]], [[5]]):
                finished(make(True).generate(prompts, Sampling(max_tokens=3, ignore_eos=True)))


@pytest.mark.slow
def test_a_compiled_decoder_can_be_captured() -> None:
    wanted = serve(make(False, backend=StaticBackend()))
    llm = make(True, backend=StaticBackend())
    llm.executor.capture(ReplayRecorder(check=False), (1, 3, 8))
    assert serve(llm) == wanted
    assert llm.executor.summary()["graph_steps"] > 5


def test_a_model_over_several_ranks_is_not_compiled(monkeypatch: Any) -> None:
    llm = make(False)
    monkeypatch.setattr(type(llm.model.decoder.shard), "size", 2, raising=False)
    with pytest.raises(ConfigError, match=r"engine\.compile=true cannot be with a model over 2 ranks"):
        llm.executor.compile()
