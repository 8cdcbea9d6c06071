"""CPU cost of the books: installed allocators, and vLLM V1's KVCacheManager where it is installed.

pytest tests/bench/test_bench_allocator.py --benchmark-only --benchmark-group-by=group
python tests/bench/test_bench_allocator.py     # interleaved in one run, CPU time, ratios with their spread

Steady state: the pool is full, so new content evicts. Prompts share their first half with an earlier one.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import entry_points
from statistics import median

import numpy as np
import pytest

from framework.types import Namespace, RequestId, RequestInfo

SIZE, PROMPT, GENERATED, ROWS, POOL = 16, 1024, 256, 32, 8192
PROMPT_BLOCKS = ROWS * PROMPT // SIZE
NS = Namespace()
INSTALLED = {point.name: point for point in entry_points(group="framework.allocator")}
NAMES = [name for name in ("prefix_cow", "prefix", "native_cow", "native") if name in INSTALLED]


def load(kind: str, name: str):
    (point,) = entry_points(group=f"framework.{kind}", name=name)
    return point.load()


def prompts(draw: np.random.Generator, stems: np.ndarray) -> list[np.ndarray]:
    """ROWS prompts with room for what they generate: a known first half, the rest new."""
    new = draw.integers(0, 2**31 - 1, (ROWS, PROMPT + GENERATED - stems.shape[1]), dtype=np.int32)
    return [np.concatenate([stems[at % len(stems)], new[at]]) for at in range(ROWS)]


class Ours:
    """One of the installed allocators, called as the engine calls it."""

    def __init__(self, name: str) -> None:
        self.books = INSTALLED[name].load()(
            num_blocks=POOL, block_size=SIZE, hash=load("hash", "sha256")(), eviction=load("eviction", "lru")()
        )
        self.next = 0

    def admit(self, tokens: list[np.ndarray]) -> None:
        books = self.books
        self.rows = range(self.next + 1, self.next + 1 + ROWS)
        self.next += ROWS
        for number, row in zip(self.rows, tokens, strict=True):
            prompt, request = row[:PROMPT], RequestInfo(id=RequestId(number), max_total_tokens=len(row))
            hit = books.lookup(prompt, NS)
            assert books.fits(request, prompt, hit)
            books.allocate(request, prompt, hit)
            books.commit(request.id, prompt)

    def decode(self, tokens: list[np.ndarray]) -> None:
        """Room at each block boundary, publication of each filled block: the engine calls for nothing in between."""
        books = self.books
        for length in range(PROMPT + 1, PROMPT + GENERATED + 1):
            if length % SIZE == 1:
                for number in self.rows:
                    books.extend(RequestId(number), length)
            elif length % SIZE == 0:
                for number, row in zip(self.rows, tokens, strict=True):
                    books.commit(RequestId(number), row[:length])

    def free(self) -> None:
        for number in self.rows:
            self.books.free(RequestId(number))


class Vllm:
    """vLLM V1's KVCacheManager with SHA-256 names, called as its scheduler does."""

    def __init__(self) -> None:
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        init_none_hash(sha256)
        self.hasher, self.Request = get_request_block_hasher(SIZE, sha256), Request
        self.params = SamplingParams(max_tokens=GENERATED)
        spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
        config = KVCacheConfig(
            num_blocks=POOL + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.books = KVCacheManager(
            config, max_model_len=8192, scheduler_block_size=SIZE, hash_block_size=SIZE, enable_caching=True
        )
        self.next = 0

    def admit(self, tokens: list[list[int]]) -> None:
        self.rows = []
        for row in tokens:
            self.next += 1
            request = self.Request(str(self.next), row[:PROMPT], self.params, None, block_hasher=self.hasher)
            blocks, num_hit = self.books.get_computed_blocks(request)[:2]
            assert self.books.allocate_slots(request, PROMPT - num_hit, num_hit, blocks) is not None
            request.num_computed_tokens = PROMPT
            self.rows.append(request)

    def decode(self, tokens: list[list[int]]) -> None:
        for at in range(PROMPT, PROMPT + GENERATED):
            for request, row in zip(self.rows, tokens, strict=True):
                request.append_output_token_ids(row[at])
                assert self.books.allocate_slots(request, 1) is not None
                request.num_computed_tokens += 1

    def free(self) -> None:
        for request in self.rows:
            self.books.free(request)


def subject(name: str):
    return Vllm() if name == "vllm" else Ours(name)


def vllm_is_there() -> bool:
    try:
        import vllm.v1.core.kv_cache_manager  # noqa: F401
    except Exception:  # any of its many dependencies may be missing
        return False
    return True


@pytest.fixture(params=[*NAMES, "vllm"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "vllm" and not vllm_is_there():
        pytest.skip("vLLM V1's KVCacheManager does not import: pip install --no-deps vllm, and what it asks for")
    return request.param


@pytest.mark.parametrize("phase", ["prompt", "decode", "free"])
def test_books(benchmark, name, phase):
    books, draw = subject(name), np.random.default_rng(0)
    stems = draw.integers(0, 2**31 - 1, (ROWS // 4, PROMPT // 2), dtype=np.int32)
    state: dict[str, list] = {}

    def fresh():
        if state:
            books.free()
        rows = prompts(draw, stems)
        state["tokens"] = [row.tolist() for row in rows] if name == "vllm" else rows
        if phase != "prompt":
            books.admit(state["tokens"])
        if phase == "free":
            books.decode(state["tokens"])

    def work():
        if phase == "free":
            books.free()
            state.clear()
        else:
            books.admit(state["tokens"]) if phase == "prompt" else books.decode(state["tokens"])

    benchmark.group = phase
    units = {"prompt": PROMPT_BLOCKS, "decode": ROWS * GENERATED, "free": ROWS * (PROMPT + GENERATED) // SIZE}[phase]
    benchmark.extra_info["units"] = units  # blocks, tokens, blocks
    benchmark.pedantic(work, setup=fresh, rounds=12, warmup_rounds=6)


def compare(rounds: int = 15) -> None:
    """Print ns of CPU a unit for each subject, and how many times the slowest's (vLLM's where it is installed)."""
    names = [*NAMES, *(["vllm"] if vllm_is_there() else [])]
    books = {name: subject(name) for name in names}
    draw = np.random.default_rng(0)
    stems = draw.integers(0, 2**31 - 1, (ROWS // 4, PROMPT // 2), dtype=np.int32)
    spent: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 6):
        rows = prompts(draw, stems)
        for name in names:
            tokens = [row.tolist() for row in rows] if name == "vllm" else rows
            for phase, units in (("prompt block", PROMPT_BLOCKS), ("decode token", ROWS * GENERATED),
                                 ("free block", ROWS * (PROMPT + GENERATED) // SIZE)):  # fmt: skip
                method = getattr(books[name], {"p": "admit", "d": "decode", "f": "free"}[phase[0]])
                start = time.process_time()
                method() if phase[0] == "f" else method(tokens)
                if turn >= 6:  # the pool is full from here on
                    spent.setdefault((phase, name), []).append((time.process_time() - start) * 1e9 / units)
    for phase in ("prompt block", "decode token", "free block"):
        base = spent[phase, names[-1] if names[-1] == "vllm" else "prefix_cow"]
        for name in names:
            ratios = sorted(b / a for a, b in zip(spent[phase, name], base, strict=True))
            print(
                f"{phase:13} {name:11} {median(spent[phase, name]):9.1f} ns CPU  {median(ratios):6.1f}x "
                f"(from {ratios[len(ratios) // 10]:.1f} to {ratios[-1 - len(ratios) // 10]:.1f})"
            )


if __name__ == "__main__":
    sys.exit(compare())
