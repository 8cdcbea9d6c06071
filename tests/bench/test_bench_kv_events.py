"""What KV events cost a full replay: nothing without them, and so much a block with them.

pytest tests/bench/test_bench_kv_events.py --benchmark-only -s

Rounds are interleaved and in CPU seconds, so that what else runs on the machine disturbs all alike.
"""

import time
from statistics import median

import numpy as np
import pytest

from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.kv_events.json_lines import JsonLines
from framework.kv_events.stream import EventStream
from framework.registry.components import build_allocator
from framework.sampling import Sampling

ROUNDS, REQUESTS, BLOCKS, SIZE = 7, 150, 600, 16


class Nobody:
    """A sink that takes batches and does nothing."""

    def put(self, sequence, step, events):
        pass

    def close(self):
        pass

    def facts(self):
        return {}


def replay(stream):
    """CPU seconds of a replay of conversations under pressure, and the engine."""
    allocator = build_allocator("prefix_cow", "lru", "sha256", num_blocks=BLOCKS, block_size=SIZE, max_model_len=4096)
    engine = Engine(allocator, ReplayExecutor(constant_step(1.0)), max_model_len=4096, max_batch_tokens=8192,
                    kv_events=stream)  # fmt: skip
    draw = np.random.default_rng(0)
    talks = [draw.integers(0, 1000, 512) for _ in range(20)]
    for _ in range(REQUESTS):
        prompt = np.append(talks[draw.integers(20)], draw.integers(0, 1000, 300)).astype(np.int32)
        engine.submit(prompt, Sampling(max_tokens=64, ignore_eos=True))
    began = time.process_time()
    engine.run()
    return time.process_time() - began, engine


@pytest.mark.benchmark(group="KV events")
def test_kv_events_cost_so_much_a_block(benchmark, tmp_path):
    """Microseconds of CPU a block stored or removed: the events themselves, and with a JSON line a batch."""
    from framework.files.jsonl import dump_line

    def lines():
        return EventStream([JsonLines(lambda record: file.write(dump_line(record)))])

    kinds = {"off": lambda: None, "events": lambda: EventStream([Nobody()]), "events and JSON lines": lines}
    spent, blocks = {name: [] for name in kinds}, 0

    def rounds():
        nonlocal blocks
        for _ in range(ROUNDS):
            for name, make in kinds.items():
                stream = make()
                spent[name].append(replay(stream)[0])
                if stream is not None:
                    blocks = stream.num_stored + stream.num_removed

    with (tmp_path / "events").open("wb") as file:
        benchmark.pedantic(rounds, rounds=1)
    assert blocks > 5000
    for name in list(kinds)[1:]:
        each = [1e6 * (more - less) / blocks for more, less in zip(spent[name], spent["off"], strict=True)]
        ratio = [more / less for more, less in zip(spent[name], spent["off"], strict=True)]
        benchmark.extra_info[name] = median(each)
        print(
            f"\n{name}: {median(each):.1f} us a block (rounds {min(each):.1f} to {max(each):.1f}), "
            f"{median(ratio):.2f} times the replay without ({blocks} blocks)",
            end="",
        )
    print()
