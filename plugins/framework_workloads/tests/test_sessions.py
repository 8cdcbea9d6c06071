"""Conversations and agents: turns repeat what came before, within their context."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
from synthetic_workloads import drawn

from framework.interfaces.workload import WorkloadRequest
from framework.workload import stream


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


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        options = {"num_sessions": count, "rate_per_s": 1.0, "think_s": 1.0, "turns": 2.0}
        for _ in stream("conversations", options, seed=0):
            pass
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)
    short, long = peak(50), peak(400)
    assert long < 3 * short, (short, long)
