"""CPU cost of a prompt block on the conversation trace, of installed allocators and of vLLM V1 where it is installed.

    python tests/bench/test_bench_conversation.py [unshared]     # interleaved in one run, CPU time, ratios

The trace's own prompts (Mooncake's conversation trace: the first 440 of at most 32,768 tokens have 609 blocks of 16 on
the mean; prefixes shared as it says, 5 % of the tokens in this pool, or with `unshared` none), one after another
through a pool that is full. A prompt block is what `test_bench_allocator` means by it; there all prompts have 1,024
tokens, so that what a request costs beside its blocks counts for ten times as much.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from test_bench_allocator import NAMES, NS, SIZE, Ours, base_of, beside, subject, vllm_is_there

from framework.types import RequestId, RequestInfo

TRACE, POOL, ALIVE, TURN, LONGEST = "mooncake_conversation_trace.jsonl.gz", 20_000, 8, 20, 32_768


def prompts(folder: Path, count: int, unshared: bool = False) -> list[np.ndarray]:
    """The first `count` prompts of at most LONGEST tokens: equal names of 512 tokens are equal tokens."""
    made: list[np.ndarray] = []
    next_name = 0
    with gzip.open(folder / TRACE, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["input_length"] <= LONGEST and len(made) < count:
                names = np.array(entry["hash_ids"], dtype=np.int32)
                if unshared:
                    names, next_name = (
                        np.arange(next_name, next_name + len(names), dtype=np.int32),
                        next_name + len(names),
                    )
                made.append((names[:, None] * 512 + np.arange(512, dtype=np.int32)).ravel()[: entry["input_length"]])
    return made


class Conversation:
    """A subject that admits prompts one by one, and frees the oldest of ALIVE requests before each."""

    def __init__(self, name: str) -> None:
        self.subject, self.number, self.alive = subject(name, POOL), 0, deque[Any]()

    def admit(self, prompt: Any) -> float:
        """Seconds of CPU to admit and publish one prompt."""
        if len(self.alive) == ALIVE:
            self.subject.manager.free(self.alive.popleft())
        self.number += 1
        start = time.process_time()
        self.alive.append((self._ours if isinstance(self.subject, Ours) else self._theirs)(prompt))
        return time.process_time() - start

    def _ours(self, prompt: np.ndarray) -> RequestId:
        manager, request = self.subject.manager, RequestInfo(id=RequestId(self.number), max_total_tokens=len(prompt))
        hit = manager.lookup(prompt, NS)
        assert manager.fits(request, prompt, hit)
        manager.allocate(request, prompt, hit)
        manager.commit(request.id, prompt)
        return request.id

    def _theirs(self, prompt: list[int]) -> Any:
        made, manager = self.subject, self.subject.manager
        request = made.Request(str(self.number), prompt, made.params, None, block_hasher=made.hasher)
        blocks, num_hit = manager.get_computed_blocks(request)[:2]
        assert manager.allocate_slots(request, len(prompt) - num_hit, num_hit, blocks) is not None
        request.num_computed_tokens = len(prompt)
        return request


def compare(folder: Path, unshared: bool, turns: int = 20) -> None:
    """Print ns of CPU a prompt block for each subject, and how many times the slowest's (vLLM's if installed)."""
    names = [*NAMES, *(["vllm", "vllm:xxh3_128"] if vllm_is_there() else [])]
    made = {name: Conversation(name) for name in names}
    spent: dict[str, list[float]] = {name: [] for name in names}
    entries = prompts(folder, TURN * (turns + 2), unshared)
    for turn in range(turns + 2):
        part = entries[turn * TURN : (turn + 1) * TURN]
        for name in names:
            tokens = [prompt.tolist() for prompt in part] if name.startswith("vllm") else part
            taken = sum(made[name].admit(prompt) for prompt in tokens)
            if turn >= 2:  # the pool is full from here on
                spent[name].append(taken * 1e9 / sum(len(prompt) // SIZE for prompt in part))
    for name in names:
        print(f"{name:19} {beside(spent[base_of(name, names)], spent[name])}")


if __name__ == "__main__":
    traces = Path(os.environ.get("KVLAB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
    sys.exit(compare(traces, "unshared" in sys.argv[1:]))
