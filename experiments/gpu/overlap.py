"""Part of a GPU run: decode steps with and without copies in flight. A JSON line for each direction of the copies.

    python experiments/gpu/overlap.py BACKEND [--dry-run]

Qwen3-0.6B's shape with random weights in bf16 and 64 rows that decode. Beside it the transfers of a serve run keep
copies in flight between the host store and another pool of the same shape: out of the device, into it, or both. Phases
with and without copies alternate; each is timed from an idle device to an idle device. The aim: steps slow by 5 % at
most.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from framework.engine.block_bytes import parts_of, pool_bytes
from framework.engine.pool import KVPool
from framework.engine.tiers.setup import open_store
from framework.errors import BackendUnavailable
from framework.interfaces.store import BlockFormat
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import random_model
from framework.sampling import Sampling
from framework.tiers.transfers import Copy
from framework.tiers.worker import WorkerTransfers
from framework.types import BlockHash

AIM = 0.05
BLOCKS = 256
"""Of the other pool, and of the host store: a half is written, a half is read."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the experiment: rows, tokens before the first phase, steps a phase, pairs of phases, copies in flight."""

    rows: int
    prompt: int
    steps: int
    pairs: int
    in_flight: int


class Copies:
    """Keeps copies in flight, in the directions that are asked for."""

    def __init__(self, pool: KVPool, in_flight: int) -> None:
        bytes_of = pool_bytes(parts_of(pool))
        self.block_bytes, self._in_flight = bytes_of.block_bytes, in_flight
        format = BlockFormat("overlap", pool.dtype, pool.layout, pool.block_size, "counted", self.block_bytes)
        store = open_store({"store": {"name": "host"}, "num_blocks": BLOCKS}, format, bytes_of)
        self._transfers = WorkerTransfers(bytes_of, [store], time.perf_counter)
        self._numbers = {way: itertools.cycle(range(BLOCKS // 2)) for way in ("out", "in")}
        self._half = BLOCKS // 2
        self.ended = 0
        self._transfers.submit([self._copy("in", number, store=True) for number in range(self._half)])
        self.drain()

    def _copy(self, way: str, number: int, *, store: bool) -> Copy:
        key = BlockHash(f"{way} {number}".encode())
        block = 1 + number + (self._half if way == "in" else 0)
        return Copy(key, 0, 1, block) if store else Copy(key, 1, 0, block)

    def top_up(self, ways: Sequence[str]) -> None:
        """Note what has ended, and ask for as many more."""
        self._note()
        for way in itertools.islice(itertools.cycle(ways), max(0, self._in_flight - self._transfers.num_pending)):
            self._transfers.submit([self._copy(way, next(self._numbers[way]), store=way == "out")])

    def drain(self) -> None:
        """Wait for the end of all."""
        while self._transfers.num_pending:
            self._transfers.wait(None)
            self._note()

    def _note(self) -> None:
        for copy in self._transfers.finished():
            if copy.failed:
                raise RuntimeError(copy.failed)
            self.ended += 1

    def close(self) -> None:
        """End the thread."""
        self._transfers.close(drain=True)


def main() -> int:
    """Decode, copy, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("--dry-run", action="store_true", help="the tiny model, two rows, on the CPU")
    options = parser.parse_args()
    dry = options.dry_run
    size = Size(2, 8, 2, 2, 2) if dry else Size(64, 1024, 20, 8, 8)
    tokens = size.prompt + 2 + 3 * 2 * size.pairs * size.steps
    engine = EngineOptions(max_batch_requests=size.rows, max_batch_tokens=16 * size.prompt, max_model_len=tokens)
    device = "cpu" if dry else "cuda"
    page = 256 if options.backend in ("flash_attn", "varlen") else 16
    cache = CacheOptions(block_size=page, num_blocks=size.rows * -(-tokens // page) + 1)
    try:
        llm = LLM("tiny" if dry else random_model("qwen3-0.6b", dtype="bfloat16", device="cuda"),
                  backend=options.backend, device=device, cache=cache, engine=engine)  # fmt: skip
    except BackendUnavailable as error:
        print(error)
        return 4
    config = llm.model.config
    shape = (config.num_layers, config.num_kv_heads, config.head_dim, llm.kv_dtype)
    copies = Copies(KVPool(BLOCKS, page, *shape, device=device), size.in_flight)
    draw = np.random.default_rng(0)
    sampling = Sampling(max_tokens=tokens - size.prompt, ignore_eos=True)
    requests = [llm.engine.submit(draw.integers(0, 250, size.prompt).tolist(), sampling) for _ in range(size.rows)]
    while any(request.first_token_s is None for request in requests):
        llm.engine.step()
    for ways in (("out",), ("in",), ("out", "in")):
        print(json.dumps({"backend": options.backend, **compared(llm, copies, ways, size, dry=dry)}), flush=True)
    copies.close()
    for request in requests:
        llm.engine.cancel(request)
    llm.close()
    return 0


def compared(llm: LLM, copies: Copies, ways: Sequence[str], size: Size, *, dry: bool) -> dict[str, Any]:
    """Median steps of both kinds of phases, and what was copied beside the one."""
    alone, beside, rates = list[float](), list[float](), list[float]()
    for _ in range(size.pairs):
        alone.append(phase(llm, copies, (), size.steps, dry=dry))
        before = copies.ended
        beside.append(phase(llm, copies, ways, size.steps, dry=dry))
        rates.append((copies.ended - before) * copies.block_bytes / (beside[-1] * size.steps))
        copies.drain()
    ratios = [with_copies / without for with_copies, without in zip(beside, alone, strict=True)]
    return {
        "copies": "+".join(ways),
        "rows": len(llm.engine.state.rows.sequences),
        "block_bytes": copies.block_bytes,
        "step_s": float(np.median(alone)),
        "step_s_with_copies": float(np.median(beside)),
        "slowdown": float(np.median(ratios)) - 1,
        "slowdown_quartiles": [float(value) - 1 for value in np.quantile(ratios, (0.25, 0.75))],
        "copied_bytes_per_s": float(np.median(rates)),
        "within_aim": bool(np.median(ratios) - 1 <= AIM),
    }


def phase(llm: LLM, copies: Copies, ways: Sequence[str], steps: int, *, dry: bool) -> float:
    """Seconds a step."""
    synchronize(dry=dry)
    start = time.perf_counter()
    for _ in range(steps):
        if ways:
            copies.top_up(ways)
        llm.engine.step()
    if not dry:
        torch.cuda.current_stream().synchronize()  # the engine's: copies may go on
    return (time.perf_counter() - start) / steps


def synchronize(*, dry: bool) -> None:
    """Wait for an idle device."""
    if not dry:
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
