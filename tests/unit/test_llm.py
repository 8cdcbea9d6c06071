"""The engine over a real model: beams, faults and log-probabilities against plain torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engines import Heard, make_engine, make_llm
from static_backend import NanOnce

from framework import registry
from framework.engine.request import Request, Status
from framework.errors import ConfigError, FrameworkError, InvalidArgument, InvalidTokens
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.dense import dense_logits
from framework.model.loading import load_model
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

PROMPTS = [[5, 9, 13, 40, 22, 31, 8, 17, 60, 33, 2 + i, 71] for i in range(3)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("beams"), hidden_size=32, num_hidden_layers=2, intermediate_size=48, vocab_size=96
    )


def serve(checkpoint: Path, prompts: list[list[int]], sampling: Any, **options: Any) -> tuple[LLM, list[Request]]:
    model = load_model(str(checkpoint), dtype="float32", device="cpu")
    options = {"num_blocks": 80, "block_size": 4, "device": "cpu", "poison": True, "max_model_len": 64, **options}
    llm = make_llm(model, **options)
    requests = llm.generate(prompts, sampling)
    llm.engine.check()
    return llm, requests


@pytest.mark.parametrize("allocator", ["prefix_cow", "cow", "contiguous"])
@pytest.mark.parametrize(("width", "penalty", "ends"), [(2, 1.0, False), (4, 0.5, True)])
def test_beams_are_those_of_transformers(
    checkpoint: Path, allocator: str, width: int, penalty: float, ends: bool
) -> None:
    import transformers

    library = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    library.generation_config.eos_token_id = [20, 33, 47] if ends else None
    sampling = Sampling(max_tokens=9, beam_width=width, length_penalty=penalty, ignore_eos=True,
                        stop_token_ids=(20, 33, 47) if ends else ())  # fmt: skip
    _, requests = serve(checkpoint, PROMPTS, sampling, allocator=allocator, preempt_every=4, chunk_size=5)
    for request, prompt in zip(requests, PROMPTS, strict=True):
        ids = torch.tensor([prompt])
        out = library.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=width, num_return_sequences=width, max_new_tokens=9,
            do_sample=False, early_stopping=False, length_penalty=penalty,
            pad_token_id=0,
        )  # fmt: skip
        wanted = [_cut(row[len(prompt) :].tolist(), sampling.stop_token_ids) for row in out]
        assert [completion.tokens for completion in request.completions] == wanted, f"prompt {prompt}"


def _cut(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    """Without the padding after the first stop token."""
    ends = [i for i, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("n", [2, 3])
def test_samples_of_one_prompt_equal_the_same_streams_without_sharing(checkpoint: Path, n: int) -> None:
    sampling = Sampling(max_tokens=8, n=n, temperature=1.2, seed=5, ignore_eos=True, top_k=20, top_p=0.9)
    _, shared = serve(checkpoint, PROMPTS, sampling, allocator="prefix_cow")
    _, apart = serve(checkpoint, PROMPTS, sampling, allocator="naive", chunk_size=3, preempt_every=3, block_size=16)
    found = [[completion.tokens for completion in request.completions] for request in shared]
    assert found == [[completion.tokens for completion in request.completions] for request in apart]
    assert all(len({tuple(tokens) for tokens in samples}) == n for samples in found), found


def test_reported_log_probabilities_are_those_of_the_dense_model(checkpoint: Path) -> None:
    llm, (request,) = serve(checkpoint, PROMPTS[:1], Sampling(max_tokens=6, logprobs=3, ignore_eos=True), chunk_size=5)
    (completion,) = request.completions
    tokens = torch.tensor([*PROMPTS[0], *completion.tokens])
    with torch.inference_mode():
        dense = dense_logits(llm.model.decoder, tokens[:-1])[len(PROMPTS[0]) - 1 :].log_softmax(-1)
    assert completion.logprobs is not None
    for at, (token, found) in enumerate(zip(completion.tokens, completion.logprobs, strict=True)):
        assert found.chosen == pytest.approx(float(dense[at, token]), abs=1e-4), at
        best = dense[at].topk(3)
        assert [i for i, _ in found.top] == best.indices.tolist(), at
        assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-4), at


def test_rows_that_ask_for_other_numbers_of_log_probabilities_get_them_as_if_alone(checkpoint: Path) -> None:
    samplings = [
        Sampling(max_tokens=5, logprobs=k, n=n, temperature=0.9, seed=4, ignore_eos=True)
        for k, n in ((3, 1), (0, 2), (None, 1), (6, 3))
    ]
    prompts = [[*PROMPTS[0], i] for i in range(4)]
    _, together = serve(checkpoint, prompts, samplings)
    for request, prompt, sampling in zip(together, prompts, samplings, strict=True):
        _, (alone,) = serve(checkpoint, [prompt], sampling)
        for one, other in zip(request.completions, alone.completions, strict=True):
            assert one.tokens == other.tokens
            assert (one.logprobs is None) == (sampling.logprobs is None)
            for here, there in zip(one.logprobs or [], other.logprobs or [], strict=True):
                assert [token for token, _ in here.top] == [token for token, _ in there.top], sampling
                assert len(here.top) == sampling.logprobs
                assert here.chosen == pytest.approx(there.chosen, abs=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=4), Sampling(max_tokens=4, beam_width=2)])
@pytest.mark.parametrize("allocator", ["prefix_cow", "radix"])
def test_one_nan_fails_one_request_and_is_found_by_nobody_afterwards(
    checkpoint: Path, allocator: str, sampling: Sampling
) -> None:
    model, options = str(checkpoint), EngineOptions(max_model_len=64, chunk_size=8)
    parts = {"dtype": "float32", "num_blocks": 80, "block_size": 4, "device": "cpu", "allocator": allocator}
    (wanted,) = make_llm(model, engine=options, **parts).generate(PROMPTS[0], sampling)
    heard = Heard()
    llm = make_llm(model, engine=options, backend=NanOnce(), observers=(heard,), **parts)
    (failed,) = llm.generate(PROMPTS[0], sampling)
    assert failed.status is Status.FAILED, failed
    assert "not finite" in failed.reason, failed.reason
    assert llm.allocator.stats().cached_blocks == 0, llm.allocator.stats()
    assert heard.count("admit") == heard.count("evict") > 0, heard.calls
    (again,) = llm.generate(PROMPTS[0], sampling)
    assert again.completions == wanted.completions, again.reason
    assert again.num_cached_tokens == 0, again
    llm.engine.check()


def test_one_bad_prompt_in_a_list_is_refused_before_any_is_queued() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=20), device="cpu")
    with pytest.raises(InvalidTokens):
        llm.generate([[1, 2, 3], [4, -1]], Sampling(max_tokens=2))
    assert llm.engine.num_unfinished == 0
    (request,) = llm.generate([[1, 2, 3]], Sampling(max_tokens=2))
    assert request.number == 0, request.number


@pytest.mark.parametrize("given", ["name", "mapping", "class", "object"])
def test_a_policy_that_needs_the_future_is_refused_however_it_is_given(given: str) -> None:
    cls = registry.load("eviction", "belady")
    eviction = {"name": "belady", "mapping": {"name": "belady"}, "class": cls, "object": cls()}[given]
    with pytest.raises(ConfigError, match=r"needs every block's next use.*mode=replay"):
        LLM("tiny", eviction=eviction)


WRONG: dict[str, list[Any]] = {
    "model": [None, 5, "", []],
    "allocator": [5, {}, [], "nope", {"name": 5}],
    "eviction": [5, {}, int, {"x": 1}, "nope"],
    "hash": [5, [], "nope", {"name": "sha256", "q": 1}],
    "backend": [5, {}, "nope", object()],
    "block_size": [0, -1, "x", 2.5, True, 2**50, None],
    "num_blocks": [0, -1, "x", 2.5, True, 2**50],
    "memory_fraction": ["x", 2],
    "kv_dtype": [5, "int3"],
    "kv_scales": [5],
    "device": [5, "gpu9"],
    "seed": [-1, "x", 2.5, None, 2**70],
    "faults": ["a", 5],
    "log": [5, "x"],
    "observers": [5, [5]],
    "below": [5, "nope", {}, []],
    "engine": [{}, 5, "x", []],
}


@pytest.mark.parametrize("wrong", [{name: value} for name, values in WRONG.items() for value in values])
def test_a_wrong_argument_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(FrameworkError, match=name):
        make_llm(**{"model": "tiny", "num_blocks": 16, **wrong})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(((5,), {}), "prompts must be"), (((None,), {}), "prompts must be"), ((([1, 2], "x"), {}), "sampling must be"),
     ((([1, 2],), {"namespace": 5}), "namespace must be")],
)  # fmt: skip
def test_wrong_prompts_sampling_and_namespaces_are_refused_and_nothing_is_queued(arguments: Any, says: str) -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=16))
    with pytest.raises(InvalidArgument, match=says):
        llm.generate(*arguments[0], **arguments[1])
    assert llm.engine.num_unfinished == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [(lambda llm: llm.submit([1, 2], prioriti=3), "'prioriti'"),
     (lambda llm: llm.generate([1, 2], prioriti=3), "'prioriti'"),
     (lambda llm: llm.cancel(5), "cancel takes a request that was submitted, found 5")],
)  # fmt: skip
def test_unknown_facts_and_what_is_no_request_are_refused(call: Any, says: str) -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=16))
    with pytest.raises((TypeError, InvalidArgument), match=says):
        call(llm)
    assert llm.engine.num_unfinished == 0


def test_wrong_arguments_of_an_engine_are_refused_by_their_names() -> None:
    llm = LLM("tiny", cache=CacheOptions(num_blocks=16))
    wrong: dict[str, Any] = {
        "max_model_len": 0, "max_batch_tokens": 2.5, "max_batch_requests": "a", "chunk_size": "x", "window": 0,
        "eos_token_ids": 5, "seed": "a", "preempt_every": -1,
        "vocab_size": "x", "virtual_clock": 3, "log": 5, "observers": 5, "stop_watch": 5, "tiers": 5,
        "allocator": 5, "executor": 5, "length_advice": 5,
    }  # fmt: skip
    for name, value in wrong.items():
        good: dict[str, Any] = {"allocator": llm._build_allocator(), "executor": llm.executor, "max_model_len": 64}
        with pytest.raises((ConfigError, InvalidArgument), match=rf"\b{name}\b"):
            make_engine(**{**good, name: value})


def test_a_closed_llm_serves_nothing_more(checkpoint: Path) -> None:
    llm, (request, *_) = serve(checkpoint, PROMPTS, Sampling(max_tokens=2))
    assert repr(request) == f"<Request {request.number}: finished, 12 prompt tokens, 0 of them cached, 2 generated>"
    llm.close()
    for ask in (llm.generate, llm.submit, llm.stream):
        with pytest.raises(InvalidArgument, match="this LLM is closed"):
            ask(PROMPTS[0])
    assert llm.stats()["num_finished"] == len(PROMPTS)
