"""Every combination of parts gives the same greedy tokens as transformers' own generate, in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engines import ALLOCATORS, make_llm

from framework.engine.request import Status
from framework.model.loading import LoadedModel, load_model
from framework.modes.dense_check import compare
from framework.sampling import Sampling
from framework_testing.attention_cases import pairwise
from framework_testing.checkpoints import make_checkpoint

NUM_TOKENS = 8
MAX_LEN = 64
AXES: dict[str, list[Any]] = {
    "allocator": ALLOCATORS,
    "eviction": ["lru", "fifo"],
    "hash": ["xxh64", "sha256"],
    "backend": ["torch", "gather"],
    "block_size": [1, 16, 256],
    "chunk_size": [5, None],
    "preempt_every": [0, 2],
}
BLOCKS = {1: 150, 16: 14, 256: 5}
TRITON = [
    {"allocator": "prefix_cow", "eviction": "lru", "hash": "sha256", "block_size": 16, "chunk_size": 5},
    {"allocator": "naive", "eviction": "fifo", "hash": "xxh64", "block_size": 1, "chunk_size": None},
    {"allocator": "prefix", "eviction": "lru", "hash": "xxh64", "block_size": 256, "chunk_size": 5},
]


@dataclass
class Served:
    """A checkpoint, prompts that share prefixes, and what transformers says to them."""

    model: LoadedModel
    prompts: list[list[int]]
    tokens: list[list[int]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    path = make_checkpoint(
        tmp_path_factory.mktemp("cube"), hidden_size=32, num_hidden_layers=2, intermediate_size=48,
        vocab_size=96, tokenizer=True,
    )  # fmt: skip
    model = load_model(str(path), dtype="float32", device="cpu")
    random = np.random.default_rng(1)
    head = random.integers(4, model.config.vocab_size, 34).tolist()
    tails = (1, 2, 14, 15, 15)
    prompts = [head[: 34 - 5 * (i % 2)] + random.integers(4, model.config.vocab_size, n).tolist()
               for i, n in enumerate(tails)]  # fmt: skip
    return Served(model, prompts, _transformers_greedy(path, prompts))


def _transformers_greedy(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False,
                             eos_token_id=[], pad_token_id=0)  # fmt: skip
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs


def differences(served: Served, count: int | None = None, **point: Any) -> str:
    """Serve the prompts at `point`; "" if all went as it must."""
    num_blocks = BLOCKS[point["block_size"]]
    llm = make_llm(served.model, num_blocks=num_blocks, poison=True, max_model_len=MAX_LEN, device="cpu", **point)
    requests = llm.generate(served.prompts[:count], Sampling(max_tokens=NUM_TOKENS, ignore_eos=True))
    llm.engine.check()
    wrong = [
        f"prompt {i}: {request.status.value} {request.reason} {[c.tokens for c in request.completions]}, not {tokens}"
        for i, (request, tokens) in enumerate(zip(requests, served.tokens, strict=False))
        if request.status is not Status.FINISHED or [c.tokens for c in request.completions] != [tokens]
    ]
    dense = compare(llm, requests, len(requests))[1]
    if dense["dense_mismatches"] or dense["dense_checked"] != len(requests):
        wrong.append(f"against the dense model: {dense}")
    if point["preempt_every"] and not llm.engine.metrics.num_preemptions:
        wrong.append("nothing was preempted")
    return f"{point}: {wrong}" if wrong else ""


def test_the_references_are_worth_comparing_with(served: Served) -> None:
    assert all(len(tokens) == NUM_TOKENS for tokens in served.tokens), served.tokens
    assert len({tuple(tokens) for tokens in served.tokens}) == len(served.tokens), served.tokens
    assert max(len(set(tokens)) for tokens in served.tokens) > 3, served.tokens


def test_any_two_parts_together_give_transformers_tokens(served: Served) -> None:
    points = pairwise(AXES)
    assert len(points) < 40, len(points)
    wrong = [found for point in points if (found := differences(served, **point))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("point", TRITON, ids=lambda point: f"{point['allocator']}-{point['block_size']}")
def test_the_interpreted_triton_backend_gives_transformers_tokens(served: Served, point: dict[str, Any]) -> None:
    pytest.importorskip("framework_triton")
    found = differences(served, 2, backend="triton", preempt_every=2, **point)
    assert not found, found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("backend", ["torch", "gather", "triton"])
@pytest.mark.parametrize("at", range(len(ALLOCATORS)))
def test_the_whole_cube_gives_transformers_tokens(served: Served, at: int, backend: str) -> None:
    if backend == "triton":
        pytest.importorskip("framework_triton")
    axes = {**AXES, "allocator": [ALLOCATORS[at]], "backend": [backend]}
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    count = 2 if backend == "triton" else None
    wrong = [found for point in points if (found := differences(served, count, **point))]
    assert not wrong, f"{len(wrong)} of {len(points)}:\n" + "\n".join(wrong)
