"""What the engine counts: slots, hits, tokens, and a log that repeats."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engines import ALLOCATORS, drive, fake_engine, named, prompts

from framework.engine.engine import Engine
from framework.engine.request import Request
from framework.sampling import Sampling


def slots(engine: Engine) -> dict[str, int]:
    names = ("live", "internal", "reserved", "external", "cached", "free")
    return dict(zip(names, engine.metrics.slots, strict=True))


def one_step(allocator: Any, prompt_tokens: int, max_tokens: int, **options: Any) -> dict[str, int]:
    engine = fake_engine(allocator, num_blocks=16, block_size=4, max_model_len=40, **options)
    engine.submit([1] * prompt_tokens, Sampling(max_tokens=max_tokens))
    engine.step()
    return slots(engine)


@pytest.mark.parametrize(
    ("allocator", "expected"),
    [
        # 6 of 8 slots written; a run of 40 = 10 blocks; of 6 + 16 -> 6 blocks; of 6 + 9 -> 4 blocks.
        ("cow", {"live": 6, "internal": 2, "reserved": 0, "external": 0, "cached": 0, "free": 56}),
        ("prefix_cow", {"live": 6, "internal": 2, "reserved": 0, "external": 0, "cached": 0, "free": 56}),
        ({"name": "contiguous", "reserve": "max"},
         {"live": 6, "internal": 2, "reserved": 32, "external": 0, "cached": 0, "free": 24}),
        ({"name": "contiguous", "reserve": "pow2"},
         {"live": 6, "internal": 2, "reserved": 16, "external": 0, "cached": 0, "free": 40}),
        ({"name": "contiguous", "reserve": "oracle"},
         {"live": 6, "internal": 2, "reserved": 8, "external": 0, "cached": 0, "free": 48}),
    ],
    ids=lambda value: named(value) if "live" not in value else "",
)  # fmt: skip
def test_slots_after_one_prefill_are_those_counted_by_hand(allocator: Any, expected: dict[str, int]) -> None:
    assert one_step(allocator, 6, 9) == expected


def test_free_blocks_between_runs_are_external_waste() -> None:
    engine = fake_engine({"name": "contiguous", "reserve": "oracle"}, num_blocks=9, block_size=4, max_model_len=36)
    first, _, third = (engine.submit([i] * 8, Sampling(max_tokens=4)) for i in range(3))
    engine.step()
    engine.cancel(first)
    engine.cancel(third)
    engine.submit([5] * 8, Sampling(max_tokens=8))
    engine.step()
    # Runs of 3 blocks; the second request keeps 4 to 6; the fourth, of 4 blocks, fits neither hole of 3.
    found = slots(engine)
    assert found == {"live": 9, "internal": 3, "reserved": 0, "external": 12, "cached": 0, "free": 12}, found


def test_time_weighted_utilisation_is_the_one_worked_out_by_hand() -> None:
    engine = fake_engine({"name": "contiguous", "reserve": "oracle"}, num_blocks=4, block_size=4, max_model_len=16)
    engine.submit([1] * 6, Sampling(max_tokens=3))
    drive(engine)
    result = engine.state.summary()
    # Three steps of a second with 6, 7 and 8 live of 12 reserved slots.
    assert result["utilisation"] == pytest.approx(21 / 36), result
    assert result["waste_internal"] == pytest.approx(3 / 36), result
    assert result["waste_reserved"] == pytest.approx(12 / 36), result
    assert result["pool_used"] == pytest.approx(36 / 48), result
    assert result["num_steps"] == 3


def computed_by(engine: Engine) -> int:
    return int(engine.executor.num_tokens)  # type: ignore[attr-defined]


@pytest.mark.parametrize("allocator", ALLOCATORS, ids=named)
@pytest.mark.parametrize("num_blocks", [7, 100])
def test_every_token_is_cached_or_computed_and_recomputed_ones_are_apart(allocator: Any, num_blocks: int) -> None:
    engine = fake_engine(allocator, num_blocks=num_blocks, max_model_len=28, max_batch_requests=3)
    requests = [engine.submit(prompt, Sampling(max_tokens=6)) for prompt in prompts(8)]
    drive(engine)
    result = engine.state.summary()
    # Of each output all but the last token is computed; nothing else is, but for what preemption cost or saved.
    needed = sum(len(request.prompt) - request.num_cached_tokens + 5 for request in requests)
    assert computed_by(engine) == needed + result["recomputed_tokens"] - result["spared_tokens"], result
    assert result["scheduled_tokens"] == computed_by(engine)
    assert result["hit_tokens"] == sum(request.num_cached_tokens for request in requests)
    assert result["prompt_tokens"] == sum(len(request.prompt) for request in requests)
    assert 0 <= result["hit_tokens"] < result["prompt_tokens"]
    assert result["output_tokens"] == 8 * 6
    assert (result["recomputed_tokens"] > 0) <= (result["num_preemptions"] > 0), result


def test_hits_are_those_counted_by_hand() -> None:
    engine = fake_engine("prefix_cow", block_size=4)
    requests: list[Request] = []
    for prompt in ([1] * 9, [1] * 9, [1] * 8, [1] * 4 + [2] * 5, [3] * 9):
        requests.append(engine.submit(prompt, Sampling(max_tokens=1)))
        drive(engine)
    assert [request.num_cached_tokens for request in requests] == [0, 8, 4, 4, 0]
    result = engine.state.summary()
    assert (result["hit_tokens"], result["prompt_tokens"]) == (16, 44), result
    assert result["hit_rate"] == pytest.approx(16 / 44)
    assert result["hit_rate_blocks"] == pytest.approx(4 / 14)
    assert result["hit_rate_request_mean"] == pytest.approx((8 / 9 + 4 / 8 + 4 / 9) / 5)


def test_every_block_handed_out_is_reported_to_the_executor_before_it_is_written() -> None:
    """What poisons blocks in a debugging run must hear of each one, or a stale read goes unseen."""
    for allocator in ALLOCATORS:
        engine = fake_engine(allocator, num_blocks=8, max_model_len=32)
        executor: Any = engine.executor
        fresh: set[int] = set()
        executor.fresh = lambda ids, fresh=fresh: fresh.update(ids.tolist())
        real = executor.forward

        def forward(step: Any, rows: Any, fresh: set[int] = fresh, real: Any = real, executor: Any = executor) -> None:
            for row, first, count in zip(step.rows, step.computed, step.num_new, strict=True):
                blocks = executor.tables[int(row)][-(-int(first) // 4) : -(-int(first + count) // 4)]
                assert fresh.issuperset(blocks), f"{set(blocks) - fresh} of {blocks} were never fresh"
                fresh.difference_update(blocks)
            real(step, rows)

        executor.forward = forward
        for prompt in prompts(5):
            engine.submit(prompt, Sampling(max_tokens=8))
        engine.run()


def test_times_are_taken_on_the_engines_clock() -> None:
    engine = fake_engine()
    early = engine.submit([1, 2], Sampling(max_tokens=4))
    late = engine.submit([3, 4], Sampling(max_tokens=1), arrival_s=100.0)
    drive(engine)
    assert (early.first_token_s, early.finished_s) == (1.0, 4.0), early
    assert (late.first_scheduled_s, late.first_token_s, late.finished_s) == (100.0, 101.0, 101.0), late
    result = engine.state.summary()
    assert result["tpot_s_p50"] == 1.0, result
    assert result["ttft_s_p95"] == 1.0, result


@pytest.mark.parametrize("allocator", ALLOCATORS, ids=named)
def test_no_copy_without_a_fork_and_no_fork_leaves_a_block(allocator: Any) -> None:
    engine = fake_engine(allocator, num_blocks=100, max_model_len=32)
    plain = [engine.submit(prompt, Sampling(max_tokens=6)) for prompt in prompts(4)]
    drive(engine)
    assert engine.metrics.num_copied_blocks == 0, [request.number for request in plain]
    for prompt in prompts(4):
        engine.submit(prompt, Sampling(max_tokens=6, n=2, temperature=1.0))
    drive(engine)
    assert engine.metrics.num_forks == 4
    stats = engine.allocator.stats()
    assert (stats.used_blocks, stats.num_requests) == (0, 0), stats
    assert engine.metrics.num_copied_blocks == stats.copied_blocks, stats


SCRIPT = """
from framework.sampling import Sampling
from fake_engines import fake_engine, prompts
lines = []
engine = fake_engine("prefix_cow", num_blocks=16, preempt_every=5, hash="xxh64", eviction="random", seed=3,
                     log=lambda event, **facts: lines.append(repr((event, facts))))
for i, prompt in enumerate(prompts(12)):
    engine.submit(prompt, Sampling(max_tokens=7, n=1 + i % 2, temperature=1.0), tenant=f"t{i % 3}")
engine.run()
print("\\n".join(lines))
"""


def test_the_same_seed_writes_the_same_log_in_any_process() -> None:
    logs = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-c", SCRIPT]
        logs.append(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert logs[0] == logs[1]
    for event in ("'arrive'", "'admit'", "'evict'", "'preempt'", "'fork'", "'step'", "'finished'"):
        assert event in logs[0], f"no {event} among {len(logs[0].splitlines())} lines"
