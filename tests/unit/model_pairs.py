"""A model here and the same in transformers, and what must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_greedy import greedy
from fake_engines import make_llm

from framework import registry
from framework.model.dense import dense_logits
from framework.model.loading import LoadedModel, load_model
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

Pair = tuple[LoadedModel, Any]

_TIERS = pytest.param(
    "gather",
    True,
    marks=pytest.mark.skipif("tiers" not in registry.names("below"), reason="needs tiers below the pool"),
)
SERVED = [("torch", False), _TIERS]
"""Backend, and whether tiers lie below the pool."""


def make_pair(folder: Path, family: str, overrides: dict[str, Any]) -> Pair:
    """Our model and theirs, in float32, from one folder."""
    transformers: Any = pytest.importorskip("transformers")
    make_checkpoint(folder, family, **overrides)
    # Theirs applies soft caps and sinks in its plain attention alone.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return load_model(folder), theirs.eval()


def prompt_of(model: LoadedModel, length: int, seed: int = 0) -> torch.Tensor:
    """Tokens drawn uniformly."""
    return torch.randint(4, model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def check_logits(pair: Pair, allowed: float) -> None:
    """Logits of prompts of several lengths differ by no more than `allowed`."""
    ours, theirs = pair
    for length in (1, 2, 33, 160):
        prompt = prompt_of(ours, length, seed=length)
        difference = (dense_logits(ours.decoder, prompt) - theirs(prompt[None]).logits[0]).abs().max()
        assert difference <= allowed, f"length {length}: {difference}"


def check_greedy(pair: Pair) -> None:
    """160 greedy tokens are theirs."""
    ours, theirs = pair
    prompt = prompt_of(ours, 21)
    expected = theirs.generate(prompt[None], do_sample=False, max_new_tokens=160, eos_token_id=None)[0, 21:].tolist()
    found = greedy(ours.decoder, prompt, 160)
    assert len(expected) == 160
    assert found.tokens == expected
    assert len(set(found.tokens)) > 8, f"a degenerate text proves little: {found.tokens}"


def check_served(pair: Pair, backend: str, tiers: bool) -> None:
    """Served twice over; the second time, with tiers, from below a pool that has no room for it all."""
    ours, _ = pair
    prompts = [prompt_of(ours, length, seed=length).tolist() for length in (3, 41, 60)]
    wanted = [greedy(ours.decoder, prompt, 16).tokens for prompt in prompts]
    below = {"name": "tiers", "tiers": [{"store": "host", "num_blocks": 400}]}
    pool = {"below": below, "num_blocks": 25} if tiers else {"num_blocks": 120}
    engine = {"chunk_size": 16, "max_batch_requests": 2, "max_batch_tokens": 64}
    llm = make_llm(ours, backend=backend, block_size=4, poison=True, **engine, **pool)
    sampling = Sampling(max_tokens=16, ignore_eos=True)
    for _ in range(2):
        assert [request.completions[0].tokens for request in llm.generate(prompts, sampling)] == wanted
    assert (llm.stats().get("num_loads", 0) > 0) == tiers
    llm.close()
