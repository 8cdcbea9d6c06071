"""Conformance kit of compressions: what is served follows from what they keep, and the pool gets back what they drop.

`compression_checks` are plain functions `check(make)`; `make()` builds a fresh compression. Each serves a tiny model,
and compares the log-probability of every generated token with that of a dense model that attends to the kept tokens
alone. A check is skipped where nothing is dropped of prompts of up to 130 tokens: give a smaller budget.
"""

# Shapes: T tokens  V words  L layers  K kv heads

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch

from framework import LLM
from framework.config.sections import CacheOptions, EngineOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.engine.request import Request
from framework.interfaces.compression import Compression
from framework.model.dense import DenseCache
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework_lossy.compression import Kept, TokenDropping, Written
from framework_testing.rules import blamed, checks_of, need

Make = Callable[[], Compression]
History = Sequence[tuple[int, int, Kept]]
"""What a sequence kept, each time: of how many computed tokens, in blocks of which size, and what."""

CLOSE = 1e-3
"""Largest difference of a log-probability from the reference's, in float32."""
_GREEDY = Sampling(max_tokens=10, ignore_eos=True, logprobs=0)


@cache
def _tiny() -> Any:
    return LLM("tiny", cache=CacheOptions(num_blocks=64), device="cpu").model


def recorded(compression: TokenDropping) -> dict[int, list[tuple[int, int, Kept]]]:
    """From here on, what `compression` keeps, by the sequence's id."""
    keep, kept = compression.keep, dict[int, list[tuple[int, int, Kept]]]()

    def recording(written: Written) -> Kept | None:
        dropped = keep(written)
        if dropped is not None:
            kept.setdefault(written.info.id, []).append((written.computed, written.block_size, dropped))
        return dropped

    compression.keep = recording  # type: ignore[method-assign]
    return kept


def masked_logits(decoder: Any, tokens: Sequence[int], history: History) -> torch.Tensor:
    """(T, V): each token attends to what was there when it was computed, of each head of each layer of full attention;
    of a model with an indexer, to what that selects."""
    config, length, plain = decoder.config, len(tokens), DenseCache(decoder)
    full = [one for one in config.attention_layers if config.window(one) is None and config.chunk(one) is None]
    alive = torch.ones(len(full), config.num_kv_heads, length, length, dtype=torch.bool).tril()
    there = [[np.arange(length)] * config.num_kv_heads for _ in full]
    for computed, size, kept in history:
        for layer, heads in enumerate(there):
            for head, stored in enumerate(heads):
                old = stored[stored < computed]
                left = old[_stays(kept, len(old), size, layer, head)]
                alive[layer, head, computed:, np.setdiff1d(old, left)] = False
                heads[head] = np.concatenate([left, np.arange(computed, length)])

    def attend(layer: int, q: torch.Tensor, *inputs: Any) -> torch.Tensor:
        if layer not in full:
            return plain.attend(layer, q, *inputs)
        (k, v, *rest), layer = inputs, full.index(layer)
        index = rest[0] if rest else None
        group = config.num_heads // config.num_kv_heads
        q, k, v = q.transpose(0, 1), *(one.transpose(0, 1).repeat_interleave(group, 0) for one in (k, v))
        scores = q @ k.transpose(1, 2) * (config.attention_scale or config.head_dim**-0.5)
        mask = alive[layer]
        if index is not None:
            worth = ((index.queries @ index.keys.T).relu() * index.weights[..., None]).sum(1)
            best = worth.masked_fill(~mask[0], -torch.inf).topk(min(config.index_count, length)).indices
            mask = mask & torch.zeros_like(mask).scatter(-1, best[None], value=True)
        mask = mask.repeat_interleave(group, 0)
        out: torch.Tensor = (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(0, 1)
        return out

    with torch.inference_mode():
        logits: torch.Tensor = decoder.logits(decoder(torch.tensor([*tokens]), torch.arange(length), attend))
        return logits


def _stays(kept: Kept, num_stored: int, size: int, layer: int, head: int) -> Any:
    if kept.tokens is None:
        return np.isin(np.arange(num_stored) // size, [*kept.blocks])
    tokens = kept.tokens[min(layer, len(kept.tokens) - 1), min(head, kept.tokens.shape[1] - 1)]
    return tokens[tokens >= 0]


def differences(
    decoder: Any, requests: Sequence[Request], kept: dict[int, list[tuple[int, int, Kept]]], close: float = CLOSE
) -> list[tuple[int, int, float]]:
    """(request, place, difference) of the generated tokens whose log-probability is not the reference's.

    Args:
        requests: with `Sampling.logprobs`; samples of one prompt are forked once it is computed; none was preempted.
        kept: of `recorded`. close: the least that is a difference.
    """
    gaps = []
    for request in requests:
        first, prompt = request.sequences[0].id, len(request.prompt)
        shared = [one for one in kept.get(first, []) if one[0] <= prompt]
        for seq, completion in zip(request.sequences, request.completions, strict=True):
            own = kept.get(seq.id, [])
            history = own if seq.id == first else [*shared, *own]
            tokens = [*request.prompt.tolist(), *completion.tokens]
            logprobs = masked_logits(decoder, tokens[:-1], history).log_softmax(-1)
            for place, said in enumerate(completion.logprobs or (), prompt):
                gap = abs(float(logprobs[place - 1, tokens[place]]) - said.chosen)
                if not gap < close:
                    gaps.append((request.number, place, gap))
    return gaps


class _Run:
    """An engine over the tiny model with the compression under test, and what that keeps."""

    def __init__(self, make: Make, *, block_size: int = 4, num_blocks: int | None = None, **options: Any) -> None:
        plugin = make()
        if not isinstance(plugin, TokenDropping):
            raise unittest.SkipTest(f"{type(plugin).__name__} drops nothing")
        self.plugin = plugin
        self.kept = recorded(self.plugin)
        engine = EngineOptions(**{"max_batch_tokens": 256, "max_batch_requests": 8} | options)
        cache = CacheOptions(num_blocks=num_blocks or 2048 // block_size, block_size=block_size)
        self.log: list[tuple[str, dict[str, Any]]] = []
        self._trial = Trial(log=lambda event, **facts: self.log.append((event, facts)))
        self.llm = LLM(_tiny(), compression=self.plugin, cache=cache, engine=engine, device="cpu", trial=self._trial)

    def serve(self, prompts: Sequence[Sequence[int]], sampling: Sampling = _GREEDY) -> list[Request]:
        """All of them, at once; the pool is sound afterwards and nobody's.

        Raises:
            Violation: a request fails, or the plugin's answer is refused.
            unittest.SkipTest: nothing was dropped.
        """
        with blamed(self.plugin):
            requests = self.llm.generate([[*prompt] for prompt in prompts], sampling)
            self.llm.engine.check()
        need(self.plugin, self.llm.stats()["used_blocks"] == 0, "leaves blocks in use", self.llm.stats())
        if not self.llm.stats().get("dropped_tokens"):
            raise unittest.SkipTest(f"{type(self.plugin).__name__} drops nothing of prompts of up to 130 tokens")
        return requests

    def follows(self, requests: Sequence[Request]) -> None:
        """What these generated is what a dense model does over the kept tokens."""
        wrong = differences(_tiny().decoder, requests, self.kept)
        need(
            self.plugin, not wrong, "what is served must follow from the tokens that stay (request, place, gap)", wrong
        )


def _prompts(count: int = 3, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(32, 127, 61 + 23 * (number % 4)).tolist() for number in range(count)]


def check_what_is_served_follows_from_what_stays(make: Make) -> None:
    """Later tokens attend to the kept tokens of each head, at their positions, and to nothing else."""
    for block_size in (1, 4, 16):
        run = _Run(make, block_size=block_size)
        run.follows(run.serve(_prompts()))


def check_chunks_are_computed(make: Make) -> None:
    """Prompts that are computed in chunks, beside requests that generate, are served the same way."""
    run = _Run(make, chunk_size=24, max_batch_tokens=64)
    run.follows(run.serve(_prompts(6)))


def check_a_prefix_is_found_only_where_it_is_whole(make: Make) -> None:
    """Requests that share a prefix, together and later, hit no block that lost tokens, and lose none of their own."""
    run = _Run(make)
    shared = _prompts(1)[0]
    prompts = [[*shared, *tail] for tail in _prompts(3, seed=1)]
    run.follows(run.serve([*prompts, shared]))
    run.follows(run.serve([shared, *prompts]))


def check_samples_copy_what_they_write(make: Make) -> None:
    """Samples of one prompt share what stayed; each writes, and loses, its own."""
    run = _Run(make)
    sampling = Sampling(n=3, temperature=1.0, max_tokens=24, ignore_eos=True, seed=5, logprobs=0)
    run.follows(run.serve(_prompts(2), sampling))


def check_beams_and_preempted_requests_end(make: Make) -> None:
    """Beams go on over what stayed; a preempted request is computed, and compressed, anew."""
    _Run(make).serve(_prompts(2), Sampling(beam_width=3, max_tokens=8, ignore_eos=True))
    run = _Run(make, num_blocks=96)
    run.llm.engine.preempt_every = 5
    run.serve(_prompts(6))
    assert run.llm.stats()["num_preemptions"] > 0, run.llm.stats()


def check_the_same_requests_keep_the_same(make: Make) -> None:
    """Two fresh compressions keep the same tokens of the same requests."""
    runs, kept = [_Run(make) for _ in range(2)], []
    for run in runs:
        run.serve(_prompts())
        with np.printoptions(threshold=10**6):
            kept.append(repr(run.kept))
    need(runs[0].plugin, kept[0] == kept[1], "keeps other tokens of the same requests", kept)


def check_the_cache_is_read_only_by_who_says_so(make: Make) -> None:
    """With `reads_cache` False, `layers` is not called, and a replay without a model drops the same."""
    if make().reads_cache:
        return
    run = _Run(make)
    run.serve(_prompts())
    plugin = make()
    log: list[tuple[str, dict[str, Any]]] = []
    engine = Engine(
        build_allocator("prefix_cow", "lru", "sha256", num_blocks=512, block_size=4, max_model_len=512),
        ReplayExecutor(constant_step(1.0)), limits=ModelLimits(max_model_len=512), virtual_clock=True,
        options=EngineOptions(max_batch_tokens=256, max_batch_requests=8), compression=plugin,
        trial=Trial(log=lambda event, **facts: log.append((event, facts))),
    )  # fmt: skip
    for prompt in _prompts():
        engine.submit(prompt, _GREEDY)
    with blamed(plugin):
        while engine.num_unfinished:
            engine.step()
    drops = [[facts for event, facts in one if event == "drop"] for one in (run.log, log)]
    need(plugin, drops[0] == drops[1], "a replay drops other tokens than a served run", drops)


def check_results_are_declared(make: Make) -> None:
    """What `results` gives is declared in `metrics`, and is text or a finite number."""
    run = _Run(make)
    run.serve(_prompts())
    known, results = {metric.key for metric in run.plugin.metrics}, run.plugin.results()
    need(run.plugin, {*results} <= known, f"results must be among its metrics {sorted(known)}", results)
    for name, value in results.items():
        plain = isinstance(value, (str, int)) or (isinstance(value, float) and isfinite(value))
        need(run.plugin, plain, f"result {name} must be a text or a finite number", value)


compression_checks = checks_of(globals())
