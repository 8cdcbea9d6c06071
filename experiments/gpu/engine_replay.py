"""Whole decode steps, captured and replayed as the engine does it, judged against a dense model in fp64.

    python experiments/gpu/engine_replay.py BACKEND [--dry-run]

Requests of unlike lengths come, are preempted and end, so that lengths, tables, rows and batch sizes change between
replays. Each judged row is compared with the dense model in fp64; allowed is twice the error of the dense model in the
served dtype. One JSON line a captured size. Exit status: 0 right, 1 wrong, 4 the backend cannot run here or not so.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from framework import registry
from framework.engine.graphs import reasons_against
from framework.errors import FrameworkError
from framework.llm import LLM, CacheOptions, EngineOptions, FaultOptions, Trial
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.dense import dense_logits
from framework.model.loading import LoadedModel
from framework.model.tokenizer import ByteTokenizer
from framework.sampling import Sampling
from framework.testing.attention_runs import ReplayRecorder

SIZES = (1, 2, 4, 8)
PROMPTS = (3, 900, 40, 257, 16, 511, 128, 700, 64, 33)
_JUDGED = 6
"""Rows of a size."""


@dataclass(slots=True)
class Row:
    """One row of a replayed step: what it had read, and the logits it gave."""

    size: int
    tokens: torch.Tensor
    logits: torch.Tensor


def main() -> int:
    """Serve, then judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, calls in place of replays, small")
    options = parser.parse_args()
    device = "cpu" if options.dry_run else "cuda"
    model = build_model("float32" if options.dry_run else "bfloat16", device, small=options.dry_run)
    backend = registry.build("backend", options.backend, {}, {})
    reasons = [] if options.dry_run else reasons_against(backend, device)
    if reasons:
        print("; ".join(reasons))
        return 4
    scale = 30 if options.dry_run else 1
    try:
        llm = build_engine(model, backend, device, longest=max(PROMPTS) // scale + 40)
    except FrameworkError as error:
        print(f"{type(error).__name__}: {error}")
        return 4
    rows = watch(llm)
    prompts = [[(7 * i + j) % 250 for j in range(-(-n // scale))] for i, n in enumerate(PROMPTS)]
    llm.generate(prompts, [Sampling(max_tokens=4 + 3 * i, ignore_eos=True) for i in range(len(prompts))])
    llm.engine.check()
    print(json.dumps({"backend": options.backend, "device": device, **llm.executor.summary()}), flush=True)
    return judge(model, rows, replayed=not options.dry_run)


def build_model(dtype: str, device: str, *, small: bool) -> LoadedModel:
    """Four layers (two in small) of Qwen3's kind with random weights."""
    config = ModelConfig(
        family="qwen3",
        vocab_size=512 if small else 4096,
        hidden_size=64 if small else 512,
        num_layers=2 if small else 4,
        num_heads=4 if small else 8,
        num_kv_heads=2,
        head_dim=32 if small else 128,
        intermediate_size=128 if small else 1024,
        qk_norm=True,
        max_position_embeddings=4096,
        dtype=dtype,
    )
    decoder = Decoder(config, device=device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in decoder.named_parameters():
        parameter.fill_(1.0) if name.endswith("norm") else parameter.normal_(std=0.05, generator=generator)
    return LoadedModel(decoder, ByteTokenizer(config.vocab_size, ()), config, "random")


def build_engine(model: LoadedModel, backend: Any, device: str, *, longest: int) -> LLM:
    """Small enough that rows come and go; on the CPU work is repeated in place of replays."""
    engine = EngineOptions(
        max_model_len=longest, max_batch_requests=max(SIZES), max_batch_tokens=512, prepack=False,
        cuda_graphs=device == "cuda", graph_batch_sizes=SIZES,
    )  # fmt: skip
    step = backend.capabilities.block_size_multiple_of
    size = step if step > 1 else 16
    cache = CacheOptions(num_blocks=max(SIZES) * (-(-longest // size) + 1), block_size=size)
    trial = Trial(faults=FaultOptions(poison=True, preempt_every=11))
    llm = LLM(model, backend=backend, device=device, cache=cache, engine=engine, trial=trial)
    if device == "cpu":
        llm.executor.capture(ReplayRecorder(check=False), SIZES)
    return llm


def watch(llm: LLM) -> list[Row]:
    """Keep some rows of every replayed step as it is sampled."""
    found: list[Row] = []
    executor, sample, replays = llm.executor, llm.executor.sample, 0

    def watched(at: Any, streams: Any, step: Any, rows: Any) -> Any:
        nonlocal replays
        graphs = executor.graphs
        assert graphs is not None
        if graphs.num_replays > replays:
            size = graphs.size_for(step)
            assert size is not None
            i = step.number % len(step.sampled)
            row = int(step.rows[step.sampled[i]])
            tokens = rows.tokens[row, : rows.length[row]].astype(np.int64)
            found.append(Row(size, torch.from_numpy(tokens), executor.logits[i].double().cpu()))
        replays = graphs.num_replays
        return sample(at, streams, step, rows)

    executor.sample = watched  # type: ignore[method-assign]
    return found


def judge(model: LoadedModel, rows: list[Row], *, replayed: bool) -> int:
    """Print one line a size; 1 if any row errs more than allowed, or a size was never replayed."""
    exact = copy.deepcopy(model.decoder).double()
    wrong = 0
    for size in SIZES:
        picked = [row for row in rows if row.size == size]
        picked = picked[:: max(1, len(picked) // _JUDGED)]
        error = allowed = 0.0
        for row in picked:
            tokens = row.tokens.to(model.decoder.device)
            want = dense_logits(exact, tokens)[-1].cpu()
            plain = dense_logits(model.decoder, tokens)[-1].double().cpu()
            error = max(error, float((row.logits - want).abs().max()))
            allowed = max(allowed, 2 * float((plain - want).abs().max()) + 1e-5 * float(want.abs().max()))
        ok = bool(picked) and error <= allowed
        wrong += not ok
        lengths = [len(row.tokens) for row in picked]
        facts = {"size": size, "ok": ok, "lengths": lengths, "error": error, "allowed": allowed, "replayed": replayed}
        print(json.dumps(facts), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
