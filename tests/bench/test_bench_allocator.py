"""CPU cost of block management: installed allocators, and vLLM V1's KVCacheManager where it is installed.

pytest tests/bench/test_bench_allocator.py --benchmark-only --benchmark-group-by=group
python tests/bench/test_bench_allocator.py [unshared]     # interleaved in one run, CPU time, ratios with their spread

Steady state: the pool is full, so new content evicts. Prompts share their first half with an earlier one; `unshared`:
nothing. A prompt block is everything from token ids to published: naming it (vLLM as it makes its Request, ours from
`lookup` to `commit`), finding, pinning, evicting for it, publishing it. `NAME:HASH` names blocks with another hash than
SHA-256; like is compared with like: ours with xxh3_128 against vLLM's `xxhash`, which is the same function over pickled
tokens.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from importlib.metadata import entry_points
from statistics import median

import numpy as np
import pytest

from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import Turns
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import KVGroup
from framework.interfaces.hash import HashScheme
from framework.types import Namespace, RequestId, RequestInfo

SIZE, PROMPT, GENERATED, ROWS, POOL = 16, 1024, 256, 32, 8192
PROMPT_BLOCKS = ROWS * PROMPT // SIZE
NS = Namespace()
INSTALLED = {point.name: point for point in entry_points(group="framework.allocator")}
NAMES = [name for name in ("prefix_cow", "prefix", "native_cow", "native") if name in INSTALLED]
NAMES += [f"{name}:xxh3_128" for name in NAMES if name.endswith("_cow")]
THEIRS = {"sha256": "sha256", "xxh3_128": "xxhash"}


def load(kind: str, name: str):
    (point,) = entry_points(group=f"framework.{kind}", name=name)
    return point.load()


def prompts(draw: np.random.Generator, stems: np.ndarray) -> list[np.ndarray]:
    """ROWS prompts with room for what they generate: a known first half, the rest new."""
    new = draw.integers(0, 2**31 - 1, (ROWS, PROMPT + GENERATED - stems.shape[1]), dtype=np.int32)
    return [np.concatenate([stems[at % len(stems)], new[at]]) for at in range(ROWS)]


def one_group(num_blocks: int, block_size: int, hash: HashScheme, eviction: EvictionPolicy) -> GroupedAllocator:
    """The allocator over groups of KV, of one of full attention, as a served model would have it."""
    group = KVGroup(name="full", kind="full", block_tokens=block_size, block_bytes=1)
    memory = load("memory", "pool_per_group")(coupled=False)
    memory.open([group], lambda _: eviction, num_blocks=[num_blocks], unit=block_size)
    return GroupedAllocator(memory, Turns(), hash, num_blocks=num_blocks, step_tokens=PROMPT)


class Ours:
    """One of the installed allocators, called as the engine calls it."""

    def __init__(self, name: str, pool: int = POOL) -> None:
        allocator, _, scheme = name.partition(":")
        self.scheme, self.policy = load("hash", scheme or "sha256")(), load("eviction", "lru")()
        kind = one_group if allocator == "one_group" else INSTALLED[allocator].load()
        self.manager = kind(num_blocks=pool, block_size=SIZE, hash=self.scheme, eviction=self.policy)
        self.next = 0

    def admit(self, tokens: list[np.ndarray]) -> None:
        manager = self.manager
        self.rows = range(self.next + 1, self.next + 1 + ROWS)
        self.next += ROWS
        for number, row in zip(self.rows, tokens, strict=True):
            prompt, request = row[:PROMPT], RequestInfo(id=RequestId(number), max_total_tokens=len(row))
            hit = manager.lookup(prompt, NS)
            assert manager.fits(request, prompt, hit)
            manager.allocate(request, prompt, hit)
            manager.commit(request.id, prompt)

    def decode(self, tokens: list[np.ndarray]) -> None:
        """Room at each block boundary, publication of each filled block: the engine calls for nothing in between."""
        manager = self.manager
        for length in range(PROMPT + 1, PROMPT + GENERATED + 1):
            if length % SIZE == 1:
                for number in self.rows:
                    manager.extend(RequestId(number), length)
            elif length % SIZE == 0:
                for number, row in zip(self.rows, tokens, strict=True):
                    manager.commit(RequestId(number), row[:length])

    def free(self) -> None:
        for number in self.rows:
            self.manager.free(RequestId(number))


class Vllm:
    """vLLM V1's KVCacheManager, called as its scheduler does."""

    def __init__(self, hash: str = "sha256", pool: int = POOL) -> None:
        import torch
        import vllm.utils.hashing
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        digest = getattr(vllm.utils.hashing, THEIRS[hash])
        init_none_hash(digest)
        self.hasher, self.Request = get_request_block_hasher(SIZE, digest), Request
        self.params = SamplingParams(max_tokens=GENERATED)
        spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
        config = KVCacheConfig(
            num_blocks=pool + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.manager = KVCacheManager(
            config, max_model_len=1 << 17, scheduler_block_size=SIZE, hash_block_size=SIZE, enable_caching=True
        )
        self.next = 0

    def admit(self, tokens: list[list[int]]) -> None:
        self.rows = []
        for row in tokens:
            self.next += 1
            request = self.Request(str(self.next), row[:PROMPT], self.params, None, block_hasher=self.hasher)
            blocks, num_hit = self.manager.get_computed_blocks(request)[:2]
            assert self.manager.allocate_slots(request, PROMPT - num_hit, num_hit, blocks) is not None
            request.num_computed_tokens = PROMPT
            self.rows.append(request)

    def decode(self, tokens: list[list[int]]) -> None:
        for at in range(PROMPT, PROMPT + GENERATED):
            for request, row in zip(self.rows, tokens, strict=True):
                request.append_output_token_ids(row[at])
                assert self.manager.allocate_slots(request, 1) is not None
                request.num_computed_tokens += 1

    def free(self) -> None:
        for request in self.rows:
            self.manager.free(request)


def subject(name: str, pool: int = POOL):
    first, _, scheme = name.partition(":")
    return Vllm(scheme or "sha256", pool) if first == "vllm" else Ours(name, pool)


def vllm_is_there() -> bool:
    try:
        import vllm.v1.core.kv_cache_manager  # noqa: F401
    except Exception:  # any of its many dependencies may be missing
        return False
    return True


@pytest.fixture(params=[*NAMES, "vllm", "vllm:xxh3_128"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("vllm") and not vllm_is_there():
        pytest.skip("vLLM V1's KVCacheManager does not import: pip install --no-deps vllm, and what it asks for")
    return request.param


@pytest.mark.parametrize("phase", ["prompt", "decode", "free"])
def test_allocator_calls(benchmark, name, phase):
    manager, draw = subject(name), np.random.default_rng(0)
    stems = draw.integers(0, 2**31 - 1, (ROWS // 4, PROMPT // 2), dtype=np.int32)
    state: dict[str, list] = {}

    def fresh():
        if state:
            manager.free()
        rows = prompts(draw, stems)
        state["tokens"] = [row.tolist() for row in rows] if name.startswith("vllm") else rows
        if phase != "prompt":
            manager.admit(state["tokens"])
        if phase == "free":
            manager.decode(state["tokens"])

    def work():
        if phase == "free":
            manager.free()
            state.clear()
        else:
            manager.admit(state["tokens"]) if phase == "prompt" else manager.decode(state["tokens"])

    benchmark.group = phase
    units = {"prompt": PROMPT_BLOCKS, "decode": ROWS * GENERATED, "free": ROWS * (PROMPT + GENERATED) // SIZE}[phase]
    benchmark.extra_info["units"] = units  # blocks, tokens, blocks
    benchmark.pedantic(work, setup=fresh, rounds=12, warmup_rounds=6)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("native")])
def test_the_work_a_request_causes_is_counted(name, monkeypatch):
    """A block of a prompt is named once, hit or not; a policy is called once a kind for a request."""
    subject = Ours(name)
    manager, calls = subject.manager, Counter()

    def counted(owner, method, size):
        whole = getattr(owner, method)
        monkeypatch.setattr(
            type(owner), method, lambda self, *args: calls.update({method: size(*args)}) or whole(*args)
        )

    counted(subject.scheme, "blocks", lambda parent, tokens, block_size: len(tokens) // block_size)
    for method in ("pin", "release", "victims"):
        counted(subject.policy, method, lambda *args: 1)
    draw = np.random.default_rng(0)
    stems = draw.integers(0, 2**31 - 1, (ROWS // 4, PROMPT // 2), dtype=np.int32)
    for _ in range(8):
        rows = prompts(draw, stems)
        calls.clear()
        before = manager.stats()
        subject.admit(rows)
        admitted = Counter(calls)
        subject.decode(rows)
        after = manager.stats()
        subject.free()
    assert before.free_blocks == 0, before
    half, generated = PROMPT_BLOCKS // 2, ROWS * GENERATED // SIZE
    assert after.hit_tokens - before.hit_tokens == half * SIZE, (before, after)
    assert after.evictions - before.evictions == half + generated, (before, after)
    assert admitted["blocks"] == PROMPT_BLOCKS, admitted
    assert calls["blocks"] == PROMPT_BLOCKS + generated, calls
    assert admitted["victims"] == ROWS, admitted
    assert admitted["pin"] == len(stems), admitted  # one request a stem finds it unused, the others in use
    assert calls["release"] == ROWS, calls


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("native")])
def test_the_native_core_hashes_each_block_once(name):
    """Exact counts of what the prompt path does in C++, with either hash, once its pool is full."""
    subject, draw = Ours(name), np.random.default_rng(0)
    stems = draw.integers(0, 2**31 - 1, (ROWS // 4, PROMPT // 2), dtype=np.int32)
    half, generated = PROMPT_BLOCKS // 2, ROWS * GENERATED // SIZE
    for turn in range(8):
        rows, before, hashed = prompts(draw, stems), subject.manager.stats(), subject.manager._core.hashed_blocks()
        subject.admit(rows)
        admitted = subject.manager._core.hashed_blocks() - hashed
        shared = {id(subject.manager.lookup(row[:PROMPT], NS).blocks) for row in (*rows[:1], *rows[:1])}
        subject.decode(rows)
        subject.free()
        after = subject.manager.stats()
        if turn < 2:
            continue
        assert admitted == PROMPT_BLOCKS, (turn, admitted)
        assert len(shared) == 1, "the tuple of a hit's blocks is made once"
        assert after.hit_tokens - before.hit_tokens == half * SIZE, (before, after)
        assert turn < 7 or after.evictions - before.evictions == half + generated, (before, after)


def beside(base: list[float], spent: list[float]) -> str:
    """The median of `spent`, ns of CPU, and how many times as much `base` is, with the spread of that."""
    ratios = sorted(b / a for a, b in zip(spent, base, strict=True))
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    return f"{median(spent):9.1f} ns CPU  {median(ratios):6.2f}x (from {low:.2f} to {high:.2f})"


def base_of(name: str, names: list[str]) -> str:
    """The subject that `name` is compared with: vLLM's where it is installed, with the same hash."""
    _, colon, scheme = name.partition(":")
    return ("vllm" if "vllm" in names else "prefix_cow") + colon + scheme


def compare(unshared: bool, rounds: int = 15) -> None:
    """Print ns of CPU a unit for each subject, and how many times the slowest's (vLLM's where it is installed)."""
    names = [*NAMES, "one_group", *(["vllm", "vllm:xxh3_128"] if vllm_is_there() else [])]
    manager = {name: subject(name) for name in names}
    draw = np.random.default_rng(0)
    stems = draw.integers(0, 2**31 - 1, (ROWS // 4, 0 if unshared else PROMPT // 2), dtype=np.int32)
    spent: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 6):
        rows = prompts(draw, stems)
        for name in names:
            tokens = [row.tolist() for row in rows] if name.startswith("vllm") else rows
            for phase, units in (("prompt block", PROMPT_BLOCKS), ("decode token", ROWS * GENERATED),
                                 ("free block", ROWS * (PROMPT + GENERATED) // SIZE)):  # fmt: skip
                method = getattr(manager[name], {"p": "admit", "d": "decode", "f": "free"}[phase[0]])
                start = time.process_time()
                method() if phase[0] == "f" else method(tokens)
                if turn >= 6:  # the pool is full from here on
                    spent.setdefault((phase, name), []).append((time.process_time() - start) * 1e9 / units)
    for phase in ("prompt block", "decode token", "free block"):
        for name in names:
            print(f"{phase:13} {name:19} {beside(spent[phase, base_of(name, names)], spent[phase, name])}")


if __name__ == "__main__":
    sys.exit(compare("unshared" in sys.argv[1:]))
