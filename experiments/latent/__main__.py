"""Decode of a model with latent attention on this CPU: this engine beside transformers and vLLM, over the same weights.

Beside vLLM in its environment, which `make live` sets up: `.live/bin/python -m experiments.latent`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.shared import columns, finish, panels, parse, save
from framework import LLM, Sampling
from framework.llm import CacheOptions, EngineOptions
from framework.model.loading import load_model
from framework_testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 1408, "first_k_dense_replace": 2, "max_position_embeddings": 4096, "vocab_size": 512,
}  # fmt: skip
"""Attention of DeepSeek-V2-Lite: 16 heads over rows of 512 + 64. Narrow and shallow around it, so that it shows."""
CONTEXTS, STEPS, ROUNDS = (256, 1024, 3072), 4, 7


def main(arguments: Sequence[str] | None = None) -> int:
    """Every context length, all engines in turn, round by round."""
    options = parse(__doc__, "latent", arguments)
    torch.set_num_threads(1)
    contexts, rounds = (CONTEXTS[:1], 2) if options.quick else (CONTEXTS, ROUNDS)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(folder, "deepseek_v3", tokenizer=False, **SHAPE)
        rows = [row for context in contexts for row in measured(path, context, rounds)]
    beside = {name: version(name) for name in ("transformers", "vllm") if _installed(name)}
    finish(options, {"latent": rows}, {"latent": _table(rows)}, shape=SHAPE, steps=STEPS, rounds=rounds, threads=1,
           load_before=round(load, 1), engines=beside)  # fmt: skip
    lines = [{**row, "rate": 1e3 / row["step_ms"]} for row in rows]
    shown = ("step_ms", 1, "decode step, ms"), ("rate", 1, "tokens / s")
    save(panels(lines, "engine", ("context", 1, "context, tokens"), *shown), options, "latent")
    return 0


def measured(path: Path, context: int, rounds: int) -> list[dict[str, Any]]:
    """Decode steps behind so many tokens, a row an engine: medians, and the median and spread of the rounds' ratios."""
    drawn = torch.randint(4, SHAPE["vocab_size"], (context,), generator=torch.Generator().manual_seed(context))
    prompt, count = drawn.tolist(), STEPS * rounds + 2
    engines = {
        name: engine(path, prompt, count) for name, engine in ENGINES.items() if _installed(NEEDS.get(name, "torch"))
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    tokens: dict[str, list[int]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, steps in engines.items():
            start = time.perf_counter()
            tokens[name] += steps()
            seconds[name].append((time.perf_counter() - start) / STEPS)
    rows = []
    for name in engines:
        ratios = np.array(seconds[name]) / np.array(seconds["torch"])
        equal = sum(a == b for a, b in zip(tokens["torch"], tokens[name], strict=True))
        rows.append({
            "context": context, "engine": name, "step_ms": float(np.median(seconds[name])) * 1e3,
            "ratio": float(np.median(ratios)), "ratio_least": float(ratios.min()), "ratio_most": float(ratios.max()),
            "equal_tokens": equal, "tokens": len(tokens["torch"]),
        })  # fmt: skip
    return rows


def _ours(backend: str, path: Path, prompt: list[int], count: int) -> Callable[[], list[int]]:
    cache = CacheOptions(block_size=16, num_blocks=(len(prompt) + count) // 16 + 2)
    llm = LLM(load_model(path), backend=backend, cache=cache, engine=EngineOptions(max_batch_requests=1))
    stream = llm.stream(prompt, Sampling(max_tokens=count, ignore_eos=True))
    next(stream)

    def steps() -> list[int]:
        return [token for _ in range(STEPS) for token in next(stream).tokens]

    return steps


@torch.inference_mode()
def _transformers(path: Path, prompt: list[int], count: int) -> Callable[[], list[int]]:
    import transformers

    library: Any = transformers  # typed in part only
    model = library.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    cache = library.DynamicCache(config=model.config)
    last = model(torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits[0, -1].argmax()

    @torch.inference_mode()
    def steps() -> list[int]:
        nonlocal last
        found = []
        for _ in range(STEPS):
            last = model(last[None, None], past_key_values=cache, use_cache=True).logits[0, -1].argmax()
            found.append(int(last))
        return found

    return steps


def _vllm(path: Path, prompt: list[int], count: int) -> Callable[[], list[int]]:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # read as it is imported
    import vllm

    library: Any = vllm  # typed in part only
    llm = library.LLM(
        str(path), dtype="float32", skip_tokenizer_init=True, block_size=16, max_num_seqs=1, seed=0,
        kv_cache_memory_bytes=2**28, async_scheduling=False, enable_prefix_caching=False,
    )  # fmt: skip
    asked = library.SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, detokenize=False)
    engine = llm.llm_engine
    engine.add_request("0", {"prompt_token_ids": prompt}, asked)
    done = 0

    def until(number: int) -> list[int]:
        nonlocal done
        while True:
            for output in engine.step():
                if len(answer := output.outputs[0].token_ids) >= number:
                    start, done = done, len(answer)
                    return list(answer[start:])

    until(1)
    return lambda: until(done + STEPS)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


NEEDS = {"native": "framework_native", "transformers": "transformers", "vllm": "vllm"}
ENGINES: dict[str, Callable[[Path, list[int], int], Callable[[], list[int]]]] = {
    "torch": partial(_ours, "torch"), "native": partial(_ours, "native"), "transformers": _transformers, "vllm": _vllm,
}  # fmt: skip
"""Name -> what takes `STEPS` decode steps at a time behind a prompt, and says which tokens: ours by backend, others."""


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return columns(rows, {
        "context, tokens": "{context}", "engine": "{engine}", "ms a step": "{step_ms:.1f}",
        "times ours on torch": "{ratio:.2f}", "least, most": "{ratio_least:.2f}, {ratio_most:.2f}",
        "equal tokens": "{equal_tokens} of {tokens}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
