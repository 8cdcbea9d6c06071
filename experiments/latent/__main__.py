"""Decode of a model with latent attention on this CPU: this engine beside transformers, over the same weights."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.shared import columns, finish, panels, parse, save
from framework import LLM, Sampling
from framework.llm import CacheOptions, EngineOptions
from framework.model.loading import LoadedModel, load_model
from framework_testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 1408, "first_k_dense_replace": 2, "max_position_embeddings": 4096, "vocab_size": 512,
}  # fmt: skip
"""Attention of DeepSeek-V2-Lite: 16 heads over rows of 512 + 64. Narrow and shallow around it, so that it shows."""
CONTEXTS, STEPS, ROUNDS = (256, 1024, 3072), 4, 7


def main(arguments: Sequence[str] | None = None) -> int:
    """Every context length, engine and transformers in turn, round by round."""
    options = parse(__doc__, "latent", arguments)
    torch.set_num_threads(1)
    contexts, rounds = (CONTEXTS[:1], 2) if options.quick else (CONTEXTS, ROUNDS)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(folder, "deepseek_v3", tokenizer=False, **SHAPE)
        rows = [measured(path, context, rounds) for context in contexts]
    finish(options, {"latent": rows}, {"latent": _table(rows)}, shape=SHAPE, steps=STEPS, rounds=rounds, threads=1,
           load_before=round(load, 1))  # fmt: skip
    lines = [
        {"engine": name, "context": row["context"], "step_ms": took, "rate": 1e3 / took}
        for name in ("ours", "transformers")
        for row in rows
        if (took := row[f"{name}_step_ms"])
    ]
    shown = ("step_ms", 1, "decode step, ms"), ("rate", 1, "tokens / s")
    save(panels(lines, "engine", ("context", 1, "context, tokens"), *shown), options, "latent")
    return 0


def measured(path: Path, context: int, rounds: int) -> dict[str, Any]:
    """Decode steps behind so many tokens: medians, and of the rounds' ratios the median and its spread."""
    prompt = torch.randint(4, SHAPE["vocab_size"], (context,), generator=torch.Generator().manual_seed(context))
    ours, theirs = _ours(load_model(path), prompt.tolist(), rounds), _theirs(path, prompt)
    seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    tokens: dict[str, list[int]] = {"ours": [], "transformers": []}
    for _ in range(rounds):
        for name, steps in (("ours", ours), ("transformers", theirs)):
            start = time.perf_counter()
            tokens[name] += steps()
            seconds[name].append((time.perf_counter() - start) / STEPS)
    equal = sum(a == b for a, b in zip(tokens["ours"], tokens["transformers"], strict=True))
    ratios = np.array(seconds["transformers"]) / np.array(seconds["ours"])
    return {
        "context": context,
        "ours_step_ms": float(np.median(seconds["ours"])) * 1e3,
        "transformers_step_ms": float(np.median(seconds["transformers"])) * 1e3,
        "ratio": float(np.median(ratios)),
        "ratio_least": float(ratios.min()),
        "ratio_most": float(ratios.max()),
        "equal_tokens": equal,
        "tokens": len(tokens["ours"]),
    }


def _ours(model: LoadedModel, prompt: list[int], rounds: int) -> Callable[[], list[int]]:
    count = STEPS * rounds + 2
    cache = CacheOptions(block_size=16, num_blocks=(len(prompt) + count) // 16 + 2)
    llm = LLM(model, backend="torch", cache=cache, engine=EngineOptions(max_batch_requests=1))
    stream = llm.stream(prompt, Sampling(max_tokens=count, ignore_eos=True))
    next(stream)

    def steps() -> list[int]:
        return [token for _ in range(STEPS) for token in next(stream).tokens]

    return steps


@torch.inference_mode()
def _theirs(path: Path, prompt: torch.Tensor) -> Callable[[], list[int]]:
    import transformers

    library: Any = transformers  # typed in part only
    model = library.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    cache = library.DynamicCache(config=model.config)
    last = model(prompt[None], cache=cache, use_cache=True).logits[0, -1].argmax()

    @torch.inference_mode()
    def steps() -> list[int]:
        nonlocal last
        found = []
        for _ in range(STEPS):
            last = model(last[None, None], cache=cache, use_cache=True).logits[0, -1].argmax()
            found.append(int(last))
        return found

    return steps


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return columns(rows, {
        "context, tokens": "{context}", "ours, ms a step": "{ours_step_ms:.1f}",
        "transformers, ms a step": "{transformers_step_ms:.1f}", "times faster": "{ratio:.1f}",
        "least, most": "{ratio_least:.1f}, {ratio_most:.1f}", "equal tokens": "{equal_tokens} of {tokens}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
