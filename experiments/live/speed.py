"""Output tokens a second of our engine and of vLLM on this CPU: same weights, prompts and threads.

Needs vLLM's environment: `make live-speed` sets it up and runs this. KVLAB_PYTHON is the Python of our engine, with the
native plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from experiments.live.checkpoint import make
from experiments.shared import begun, finish, output_of, parser_of, table

SHAPE = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 32_000, "max_position_embeddings": 16_384,
}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
         "num_key_value_heads": 1}  # fmt: skip
CASES = {"32 ragged prompts": ("float32", 128), "a shared prefix of 1,024": ("float32", 64),
         "32 ragged prompts, bf16": ("bfloat16", 128), "one prompt of 8,192": ("float32", 64)}  # fmt: skip
"""dtype, and tokens answered to each prompt."""
ENGINES = ("vllm", "native", "torch")
ROUNDS, ROWS, LONGEST, BLOCK, BLOCKS = 3, 32, 8320, 32, 2048

Prompts = list[list[int]]
Run = Callable[[Prompts, int], list[list[int]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rounds of all engines in turn, each a process of its own; or one of them (`--engine`), its rows as JSON."""
    parser = parser_of(__doc__, "live.speed", quick="one round of float32 and a model of one layer")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.engine:
        print(json.dumps(measured(options.engine, options.model, options.dtype)))
        return 0
    options = begun(parser, arguments, "results/speed")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = make(Path(folder) / "checkpoint", **(SHAPE | SMALL if options.quick else SHAPE))
        for turn in range(1 if options.quick else ROUNDS):
            for dtype in ("float32",) if options.quick else ("float32", "bfloat16"):
                for engine in ENGINES:
                    rows += [{"round": turn, **row} for row in _child(engine, model, dtype)]
                    print(f"round {turn}: {engine}, {dtype}", file=sys.stderr, flush=True)
    found = _compared(rows)
    rounds = [{key: row[key] for key in row if key != "answers"} for row in rows]
    tables = {"speed": table(list(found[0]), [list(row.values()) for row in found])}
    finish(options, {"rounds": rounds}, tables, vllm=version("vllm"), torch=version("torch"))
    return 0


def _child(engine: str, model: Path, dtype: str) -> list[dict[str, Any]]:
    python = sys.executable if engine == "vllm" else os.environ.get("KVLAB_PYTHON", sys.executable)
    command = [python, "-m", "experiments.live.speed", "--engine", engine, "--model", model, "--dtype", dtype]
    rows: list[dict[str, Any]] = json.loads(output_of(command).splitlines()[-1])
    return rows


def measured(engine: str, model: str, dtype: str) -> list[dict[str, Any]]:
    """One engine from its start on; each case of a dtype is timed after other prompts of the same lengths."""
    begin = time.perf_counter()
    run = (_vllm if engine == "vllm" else _ours(engine))(model, dtype)
    run([[5, 6, 7]], 2)
    start_s = time.perf_counter() - begin
    rows = []
    for case in (case for case, (used, _) in CASES.items() if used == dtype):
        new, prompts = CASES[case][1], drawn(case, seed=2)
        run(drawn(case, seed=1), 8)
        begin = time.perf_counter()
        answers = run(prompts, new)
        seconds = time.perf_counter() - begin
        if any(len(answer) != new for answer in answers):
            raise RuntimeError(f"{engine} did not answer every prompt with {new} tokens")
        rows.append({"case": case, "engine": engine, "seconds": seconds, "start_s": start_s,
                     "tokens_per_s": len(prompts) * new / seconds, "answers": answers,
                     "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20})  # fmt: skip
    return rows


def drawn(case: str, seed: int) -> Prompts:
    """The prompts of a case, of random tokens; lengths do not depend on the seed."""
    draw, lengths = np.random.default_rng(seed), np.random.default_rng(0).integers(32, 513, 32)

    def tokens(count: int) -> list[int]:
        return draw.integers(2, SHAPE["vocab_size"], count).tolist()

    if case.startswith("one"):
        return [tokens(8192)]
    if case.startswith("a shared"):
        shared = tokens(1024)
        return [shared + tokens(64) for _ in range(32)]
    return [tokens(int(length)) for length in lengths]


def _vllm(model: str, dtype: str) -> Run:
    """vLLM's offline class in this process, compiled as by default."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "ERROR",
                   "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}  # fmt: skip
    import vllm

    llm = vllm.LLM(model, dtype=dtype, skip_tokenizer_init=True, max_num_seqs=ROWS, max_model_len=LONGEST,
                   block_size=BLOCK, num_gpu_blocks_override=BLOCKS + 1)  # fmt: skip

    def run(prompts: Prompts, new: int) -> list[list[int]]:
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in answers]

    return run


def _ours(backend: str) -> Callable[[str, str], Run]:
    def start(model: str, dtype: str) -> Run:
        from framework import LLM, Sampling
        from framework.llm import CacheOptions, EngineOptions
        from framework.model.loading import load_model

        cache = CacheOptions(block_size=BLOCK, num_blocks=BLOCKS)
        engine = EngineOptions(max_batch_requests=ROWS, max_model_len=LONGEST)
        llm = LLM(load_model(model, dtype=dtype), backend=backend, cache=cache, device="cpu", engine=engine)

        def run(prompts: Prompts, new: int) -> list[list[int]]:
            served = llm.generate(prompts, Sampling(max_tokens=new, ignore_eos=True))
            return [list(one.completions[0].tokens) for one in served]

        return run

    return start


def _compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line a case and engine: medians, ranges over rounds, the ratio to vLLM's of the same round, equal answers."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        base = [row for row in rows if row["case"] == case and row["engine"] == "vllm"]
        for engine in ENGINES:
            matching = [row for row in rows if row["case"] == case and row["engine"] == engine]
            ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(matching, base, strict=True)]
            same = sum(a == b for a, b in zip(matching[0]["answers"], base[0]["answers"], strict=True))
            lines.append(
                {"case": case, "engine": engine,
                 "tokens a second": _range([row["tokens_per_s"] for row in matching], "{:,.0f}"),
                 "beside vLLM": "1" if engine == "vllm" else _range(ratios, "{:.2f}"),
                 "answers equal to vLLM's": f"{same} of {len(base[0]['answers'])}",
                 "start, s": _range([row["start_s"] for row in matching], "{:.0f}"),
                 "peak memory, GiB": _range([row["peak_gib"] for row in matching], "{:.1f}")}
            )  # fmt: skip
    return lines


def _range(values: Sequence[float], form: str) -> str:
    low, middle, high = (form.format(value) for value in (min(values), np.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
