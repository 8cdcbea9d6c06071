"""Synthetic workloads: seeded, streaming, shaped as asked, and the same whether served or written as a trace."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework import trace
from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.errors import ConfigError, WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_allocator
from framework.replay.items import feed, trace_items
from framework.replay.paths import build_paths
from framework.replay.reference import replay_infinite
from framework.workload import build, stream
from framework.workload.draws import Draws, Zipf
from framework.workload.to_trace import SYNTHETIC, synthetic_trace
from framework.workload.traces import TraceRequest, open_trace, write_trace

FINGERPRINT = """
import hashlib
from framework.workload import build
for name in ("system_prompts", "conversations", "agents", "rag", "forks"):
    requests = build(name, {"rate_per_s": 3.0}, seed=7)
    text = repr([(r.tokens.tolist(), r.output.tolist(), r.sampling, r.arrival_s, r.key) for r in requests])
    print(hashlib.sha256(text.encode()).hexdigest())
"""


def drawn(name: str, seed: int = 0, **options: Any) -> list[WorkloadRequest]:
    requests = build(name, options, seed=seed)
    assert all(isinstance(request, WorkloadRequest) for request in requests)
    return requests  # type: ignore[return-value]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_seed_alone_decides_a_synthetic_workload(name: str) -> None:
    assert build(name, seed=3) == build(name, seed=3)
    assert build(name, seed=3) != build(name, seed=4)


def test_a_synthetic_workload_is_the_same_in_any_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1, outputs


def test_the_streams_themselves_have_not_changed() -> None:
    """A changed stream is a changed workload: results of before and after cannot be compared."""
    text = repr([(r.tokens.tolist(), r.output.tolist()) for name in SYNTHETIC for r in drawn(name, seed=1)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "fb82e621fd9750a9"


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_rate_moves_arrivals_and_nothing_else(name: str) -> None:
    slow, fast = drawn(name, rate_per_s=1.0), drawn(name, rate_per_s=4.0)
    by_key = [{r.key: (r.tokens.tolist(), r.output.tolist()) for r in requests} for requests in (slow, fast)]
    assert by_key[0] == by_key[1]
    arrivals = [[r.arrival_s for r in requests] for requests in (slow, fast)]
    for times in arrivals:
        assert times == sorted(times), times
    assert arrivals[0][-1] == pytest.approx(4 * arrivals[1][-1]), "four times as fast"


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_burstiness_asked_for(burstiness: float) -> None:
    options = {"num_requests": 2500, "rate_per_s": 5.0, "burstiness": burstiness, "system_tokens": 0, "user_tokens": 1}
    gaps = np.diff([r.arrival_s for r in drawn("system_prompts", **options)])
    assert gaps.mean() == pytest.approx(0.2, rel=0.15), gaps.mean()
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.15, abs=1e-9), gaps.std() / gaps.mean()


def test_arrivals_may_come_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    times = [5.0, 5.0, 6.5, 9.0]
    write_trace(path, [TraceRequest(arrival_s=t, input_tokens=1, output_tokens=1) for t in times])
    requests = drawn("rag", num_requests=4, arrivals=str(path))
    assert [r.arrival_s for r in requests] == [0.0, 0.0, 1.5, 4.0]
    with pytest.raises(WorkloadError, match="has 4 arrivals, fewer than"):
        build("rag", {"num_requests": 5, "arrivals": str(path)})
    with pytest.raises(ConfigError, match=r"rate_per_s .* must be 0"):
        build("rag", {"rate_per_s": 1.0, "arrivals": str(path)})


def test_popularity_follows_zipf() -> None:
    requests = drawn(
        "system_prompts", num_requests=4000, num_prompts=10, zipf_alpha=1.0, system_tokens=4, user_tokens=1
    )
    counts = Counter(r.tenant for r in requests)
    harmonic = sum(1 / k for k in range(1, 11))
    for k in range(10):
        expected = 4000 / ((k + 1) * harmonic)
        assert counts[f"application-{k}"] == pytest.approx(expected, rel=0.15), (k, counts)
    uniform = Counter(r.tenant for r in drawn("system_prompts", num_requests=4000, num_prompts=4, zipf_alpha=0.0))
    assert max(uniform.values()) < 1.2 * min(uniform.values()), uniform


@pytest.mark.parametrize(("size", "count", "alpha"), [(50, 5, 1.0), (50, 5, 40.0), (8, 8, 0.0), (8, 6, 300.0)])
def test_distinct_draws_are_distinct_and_as_many_as_asked(size: int, count: int, alpha: float) -> None:
    draws, law = Draws("test", 0, vocab_size=2, spread=0.0), Zipf(size, alpha)
    for _ in range(20):
        found = law.distinct(draws.random, count)
        assert len(found) == len(set(found)) == count, found
        assert set(found) <= set(range(size)), found


def test_lengths_have_the_mean_asked_for_and_no_spread_makes_them_equal() -> None:
    options = {"num_requests": 3000, "system_tokens": 0, "user_tokens": 60, "output_tokens": 20}
    requests = drawn("system_prompts", **options)
    assert np.mean([len(r.tokens) for r in requests]) == pytest.approx(60, rel=0.05)
    assert np.mean([len(r.output) for r in requests]) == pytest.approx(20, rel=0.05)
    even = drawn("system_prompts", **{**options, "num_requests": 20, "spread": 0.0})
    assert {(len(r.tokens), len(r.output), r.sampling.max_tokens) for r in even} == {(60, 20, 20)}


def test_an_application_has_one_system_prompt() -> None:
    openings: dict[str, set[bytes]] = {}
    for request in drawn("system_prompts", spread=0.0, system_tokens=64, num_requests=60):
        openings.setdefault(request.tenant, set()).add(request.tokens[:64].tobytes())
    assert len(openings) > 3
    assert all(len(found) == 1 for found in openings.values())
    assert len(set.union(*openings.values())) == len(openings), "different applications open differently"


def test_a_turn_repeats_its_conversation_with_its_answers() -> None:
    requests = drawn("conversations", num_sessions=20, turns=4.0, rate_per_s=2.0, think_s=3.0)
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    sessions: dict[str, list[WorkloadRequest]] = {}
    for request in requests:
        sessions.setdefault(request.session, []).append(request)
    assert len(sessions) == 20
    for turns in sessions.values():
        for earlier, later in itertools.pairwise(turns):
            history = np.concatenate([earlier.tokens, earlier.output])
            assert later.tokens[: len(history)].tolist() == history.tolist(), later.key
            assert len(later.tokens) > len(history), later.key
    interleaved = [r.session for r in requests]
    assert len(list(itertools.groupby(interleaved))) > len(sessions), "sessions overlap in time"


def test_all_first_turns_come_first_where_all_is_at_once() -> None:
    turns = [int(r.key.rpartition("-")[2]) for r in drawn("conversations", num_sessions=10)]
    assert turns == sorted(turns)


def test_an_agent_grows_until_it_compacts_and_never_passes_its_context() -> None:
    options = {"num_sessions": 20, "steps": 20.0, "max_context_tokens": 1200, "agent_tokens": 200, "rate_per_s": 1.0}
    compacted = 0
    sessions: dict[str, WorkloadRequest] = {}
    for request in drawn("agents", **options):
        assert len(request.tokens) + len(request.output) <= 1200, request.key
        before = sessions.get(request.session)
        if before is not None:
            opening = min(len(before.tokens), len(request.tokens), 50)
            assert request.tokens[:opening].tolist() == before.tokens[:opening].tolist(), "instructions stay"
            history = np.concatenate([before.tokens, before.output])
            grows = request.tokens[: len(history)].tolist() == history.tolist()
            compacted += not grows
            assert grows or len(request.tokens) < len(history), request.key
        sessions[request.session] = request
    assert compacted > 5


def test_a_long_summary_is_cut_to_the_context() -> None:
    options = {
        "num_sessions": 10,
        "steps": 20.0,
        "max_context_tokens": 900,
        "agent_tokens": 200,
        "summary_tokens": 3000,
    }
    longest = max(len(r.tokens) + len(r.output) for r in drawn("agents", **options))
    assert longest == 900, longest


def infinite_rate(name: str, **options: Any) -> float:
    return replay_infinite(build_paths(synthetic_trace(name, options, seed=0, block_tokens=16))).hit_rate


def test_shuffled_documents_share_less_than_sorted_ones() -> None:
    shuffled, ordered = (infinite_rate("rag", num_requests=200, shuffle=flag) for flag in (True, False))
    assert shuffled < ordered, (shuffled, ordered)
    sets = [
        {d.tobytes() for d in np.array_split(r.tokens[32 : 32 + 4 * 128], 4)}
        for r in drawn("rag", num_requests=3, spread=0.0)
    ]
    assert all(len(documents) == 4 for documents in sets), "four different documents"


def test_forks_ask_for_samples_and_beams() -> None:
    kinds = Counter((r.sampling.n, r.sampling.beam_width) for r in drawn("forks", num_requests=200, beam_share=0.25))
    assert set(kinds) == {(4, 1), (1, 4)}, kinds
    assert 30 <= kinds[(1, 4)] <= 70, kinds
    assert infinite_rate("forks", num_requests=50) < 0.01


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("system_prompts", {"num_requests": 0}, r"num_requests .* at least 1, found 0"),
        ("system_prompts", {"num_request": 1}, "did you mean 'num_requests'"),
        ("rag", {"documents_per_request": 65}, "1 to 64, found 65"),
        ("conversations", {"turns": 0.5}, r"turns .* at least 1"),
        ("agents", {"spread": -1.0}, r"spread .* 0 to 3"),
        ("agents", {"burstiness": -1.0}, r"burstiness .* at least 0"),
        ("forks", {"beam_share": 1.5}, "0 to 1"),
        ("forks", {"temperature": 0.0}, "greedy ones are all equal"),
    ],
)
def test_an_option_out_of_range_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stream(name, options)


@pytest.mark.parametrize("block_tokens", [None, 16])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_trace_file_says_what_the_workload_says(name: str, block_tokens: int | None, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_trace(path, synthetic_trace(name, {"rate_per_s": 2.0}, seed=5, block_tokens=block_tokens))
    for read, request in zip(open_trace(path), drawn(name, seed=5, rate_per_s=2.0), strict=True):
        assert (read.input_tokens, read.output_tokens) == (len(request.tokens), len(request.output))
        assert (read.session, read.tenant, read.arrival_s) == (request.session, request.tenant, request.arrival_s)
        assert (read.sampling.n, read.sampling.beam_width) == (request.sampling.n, request.sampling.beam_width)
        if block_tokens is None:
            assert read.tokens is not None
            assert read.tokens.tolist() == request.tokens.tolist()
        assert read.block_ids is not None
        assert len(read.block_ids) == -(-len(request.tokens) // 16)


@pytest.mark.parametrize(("line", "field"), [({"n": 0}, "n"), ({"n": 2, "beam_width": 2}, "n"), ({"n": "x"}, "n")])
def test_forks_of_a_trace_line_are_checked(tmp_path: Path, line: dict[str, Any], field: str) -> None:
    path = tmp_path / "t.jsonl"
    header = {"format": "kvlab-trace", "version": 1, "block_tokens": 16}
    path.write_text(
        f"{json.dumps(header)}\n{json.dumps({'arrival_s': 0, 'input_tokens': 3, 'output_tokens': 2, **line})}\n"
    )
    with pytest.raises(WorkloadError, match=rf"t\.jsonl:2: {field}: expected"):
        list(open_trace(path))


def test_replay_forks_what_the_trace_asks_for() -> None:
    allocator = build_allocator("cow", "lru", "sha256", num_blocks=2000, block_size=16, max_model_len=4096)
    engine = Engine(allocator, ReplayExecutor(constant_step(0.01)), max_model_len=4096)
    requests = list(synthetic_trace("forks", {"num_requests": 8, "beam_share": 0.0, "n": 3}, seed=0, block_tokens=16))
    for _ in feed(engine, trace_items(requests)):
        pass
    engine.check()
    assert engine.state.num_forks == 16, "two further samples each"
    assert engine.metrics.num_output_tokens == 3 * sum(r.output_tokens for r in requests)


def test_the_command_writes_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rag.jsonl.gz"
    words = ["synth", "rag", "num_requests=9", "shuffle=false", "rate_per_s=2", "--out", str(out), "--seed", "3"]
    assert trace.main([*words, "--block-tokens", "32"]) == 0
    assert "9 requests" in capsys.readouterr().out
    expected = list(
        synthetic_trace("rag", {"num_requests": 9, "shuffle": False, "rate_per_s": 2.0}, seed=3, block_tokens=32)
    )
    for read, request in zip(open_trace(out), expected, strict=True):
        assert read.block_ids is not None
        assert request.block_ids is not None
        assert read.block_ids.tolist() == request.block_ids.tolist()
    for wrong, message in (
        (["synth", "rag", "--out", str(out), "shuffle"], "expected OPTION=VALUE"),
        (["synth", "chat", "--out", str(out)], "this workload has text"),
        (["synth", "rag", "--out", str(out), "num=3"], "has no option 'num'"),
    ):
        assert trace.main(wrong) == 2
        assert message in capsys.readouterr().err


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        options = {"num_sessions": count, "rate_per_s": 1.0, "think_s": 1.0, "turns": 2.0}
        for _ in stream("conversations", options, seed=0):
            pass
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(20)
    short, long = peak(100), peak(1000)
    assert long < 3 * short, (short, long)
