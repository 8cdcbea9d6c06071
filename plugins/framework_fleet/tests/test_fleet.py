"""Fleets: replicas, a router and clients on one clock."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fleet_helpers import events, rows, run
from processes import Command

from framework import registry
from framework.errors import ConfigError

_WALL = {"replay_s", "started_at", "job"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], list[Any]]]:
    """Result and events of the plain replay in an order of the queue, run once."""

    @functools.cache
    def replayed(scheduling: str) -> tuple[dict[str, Any], list[Any]]:
        folder = tmp_path_factory.mktemp(scheduling)
        return run(folder, "replay", scheduling=scheduling), events(folder)

    return replayed


@pytest.mark.parametrize(
    ("router", "scheduling"), [*((name, "fcfs") for name in registry.names("router")), ("lmetric", "longest_prefix")]
)
def test_one_replica_behind_any_router_is_the_plain_replay_to_the_event(
    router: str, scheduling: str, plain: Callable[[str], tuple[dict[str, Any], list[Any]]], tmp_path: Path
) -> None:
    wanted, log = plain(scheduling)
    one = run(tmp_path / "fleet", {"name": "fleet", "router": router, "loop": "open"}, scheduling=scheduling)
    assert len(log) > 500
    assert events(tmp_path / "fleet") == log
    same = {key: one[key] for key in wanted if key not in ("mode", *_WALL) and not key.endswith("_at")}
    assert same == {key: wanted[key] for key in same}


def test_a_closed_loop_sends_each_turn_after_the_answer_before_it(tmp_path: Path) -> None:
    slow = {"replay": {"step_s": 0.05}, "executor": "none", "workload": {
        "name": "agents", "num_sessions": 6, "rate_per_s": 30.0, "tool_s": 0.2}}  # fmt: skip
    result = run(tmp_path, {"name": "fleet", "replicas": 2}, **slow)
    assert result["loop"] == "closed"
    sessions: dict[str, list[dict[str, Any]]] = {}
    for row in rows(tmp_path):
        sessions.setdefault(row["session"], []).append(row)
    pairs = [pair for found in sessions.values() for pair in pairwise(found)]
    assert len(pairs) > 10
    for before, after in pairs:
        assert after["arrival_s"] >= before["finished_s"], (before, after)
    plain = run(tmp_path / "open", {"name": "fleet", "replicas": 2, "loop": "open"}, **slow)
    assert (plain["loop"], plain["prompt_tokens"]) == ("open", result["prompt_tokens"])
    assert any(
        after["arrival_s"] < before["finished_s"]
        for found in ([row for row in rows(tmp_path / "open") if row["session"] == name] for name in sessions)
        for before, after in pairwise(found)
    )


def test_the_same_run_gives_the_same_events(tmp_path: Path) -> None:
    mode = {"name": "fleet", "replicas": 3, "router": "random", "report_s": 0.3, "lag_s": 0.1, "event_loss": 0.2}
    for name in ("a", "b"):
        run(tmp_path / name, mode)
    assert (tmp_path / "a/events.jsonl").read_bytes() == (tmp_path / "b/events.jsonl").read_bytes()
    assert (tmp_path / "a/requests.jsonl").read_bytes() == (tmp_path / "b/requests.jsonl").read_bytes()


@pytest.mark.parametrize("router", ["round_robin", "dynamo_kv", "sglang_cache_aware", "preble"])
def test_a_replica_that_leaves_loses_what_it_has_and_others_take_its_requests(router: str, tmp_path: Path) -> None:
    outages = [{"replica": 1, "leaves_s": 0.2, "returns_s": 0.5}]
    result = run(tmp_path, {"name": "fleet", "replicas": 3, "router": router, "outages": outages})
    assert (result["status"], result["resent_requests"] > 0) == ("ok", True), result
    found = rows(tmp_path)
    assert len(found) == len({row["key"] for row in found})
    assert {row["status"] for row in found} == {"finished"}
    away = [row for row in found if row["replica"] == 1 and 0.2 <= row["arrival_s"] < 0.5]
    assert not away, away
    whole = run(tmp_path / "whole", {"name": "fleet", "replicas": 3, "router": router})
    assert whole["num_finished"] == len(found)


def test_a_request_waits_at_its_client_while_no_replica_is_there(tmp_path: Path) -> None:
    outages = [{"replica": 0, "leaves_s": 0.1, "returns_s": 9.0}]
    run(tmp_path, {"name": "fleet", "outages": outages, "loop": "open"})
    late = [row for row in rows(tmp_path) if 0.1 <= row["arrival_s"] < 9.0]
    assert late
    assert min(row["first_token_s"] for row in late) >= 9.0
    with pytest.raises(ConfigError, match="no replica is there"):
        run(tmp_path / "never", {"name": "fleet", "outages": [{"replica": 0, "leaves_s": 0.1}]})


def twice(folder: Path, *arrivals_s: float, tokens: int = 1024, output: int = 1) -> dict[str, Any]:
    """Settings of a trace in which one prompt of whole blocks comes at these times; a step takes half a second."""
    lines = [
        {"timestamp": 1000 * at_s, "input_length": tokens, "output_length": output, "hash_ids": [*range(tokens // 512)]}
        for at_s in arrivals_s
    ]
    folder.mkdir(exist_ok=True)
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"executor": "none", "replay": {"step_s": 0.5}, "cache": {"block_size": 512, "num_blocks": 20},
            "workload": {"name": "trace", "path": str(path), "format": "mooncake", "time_unit": "ms"}}  # fmt: skip


def test_a_router_expects_no_whole_prompt_to_be_found_and_nothing_of_who_has_left(tmp_path: Path) -> None:
    mode = {"name": "fleet", "router": "dynamo_kv", "loop": "open"}
    stays = run(tmp_path / "stays", mode, **twice(tmp_path, 0.0, 5.0, 20.0))
    assert (stays["expected_hit_tokens"], stays["hit_tokens"]) == (1024, 1024)
    outages = [{"replica": 0, "leaves_s": 10.0, "returns_s": 11.0}]
    left = run(tmp_path / "left", {**mode, "outages": outages}, **twice(tmp_path, 0.0, 5.0, 20.0))
    assert (left["expected_hit_tokens"], left["hit_tokens"]) == (512, 512), (
        "the second found the first's, the third nothing"
    )


def test_who_comes_back_has_no_requests(tmp_path: Path) -> None:
    outages = [{"replica": 0, "leaves_s": 1.0, "returns_s": 2.0}]
    mode = {"name": "fleet", "replicas": 2, "router": "least_load", "loop": "open", "outages": outages}
    run(tmp_path / "run", mode, **twice(tmp_path, 0.0, 100.0, output=9))
    assert [row["replica"] for row in sorted(rows(tmp_path / "run"), key=lambda row: row["arrival_s"])] == [1, 0]


def test_a_request_that_comes_as_a_step_begins_is_in_it(tmp_path: Path) -> None:
    settings = twice(tmp_path, 0.0, 1.0, 1.5, 2.0, 2.5, output=4)
    run(tmp_path / "plain", "replay", **settings)
    run(tmp_path / "fleet", {"name": "fleet", "loop": "open"}, **settings)
    assert events(tmp_path / "fleet") == events(tmp_path / "plain")


def test_replicas_may_be_unequal(tmp_path: Path) -> None:
    small = [{"replica": 1, "cache": {"num_blocks": 90}, "engine": {"max_batch_requests": 2}}]
    result = run(tmp_path, {"name": "fleet", "replicas": 2, "unequal": small})
    assert result["num_blocks"] == 160 + 90
    found = rows(tmp_path, "replicas.jsonl")
    assert [row["replica"] for row in found] == [0, 1]
    assert found[1]["peak_running"] <= 2 < found[0]["peak_running"]
    assert found[1]["peak_used_blocks"] <= 90


def test_misses_of_a_fleet_have_causes_that_sum_to_its_prompts(tmp_path: Path) -> None:
    result = run(tmp_path, {"name": "fleet", "replicas": 4, "router": "round_robin", "loop": "open"})
    missed = [result[f"missed_{cause}_tokens"] for cause in ("elsewhere", "evicted", "new")]
    assert min(missed) >= 0, missed
    assert sum(missed) + result["hit_tokens"] == result["prompt_tokens"]
    assert missed[0] > 0, "agents of one kind share their instructions, and turns go round"
    affine = run(tmp_path / "affine", {"name": "fleet", "replicas": 4, "router": "session_affinity", "loop": "open"})
    assert affine["missed_elsewhere_tokens"] < missed[0]


def test_an_index_that_is_late_lossy_or_guessed_expects_other_hits(tmp_path: Path) -> None:
    found = {}
    for name, sight in {"exact": {}, "late": {"lag_s": 0.5}, "lossy": {"event_loss": 0.9}, "sent": {"index": "sent"},
                        "forgets": {"index": "sent", "index_ttl_s": 0.01}}.items():  # fmt: skip
        mode = {"name": "fleet", "replicas": 3, "router": "dynamo_kv", "loop": "open", **sight}
        found[name] = run(tmp_path / name, mode)["expected_hit_tokens"]
    assert found["late"] < found["exact"]
    assert found["lossy"] < found["exact"]
    assert found["forgets"] < found["sent"]


def test_load_is_seen_as_it_was_last_reported(tmp_path: Path) -> None:
    """With reports once in an hour nobody's queue is ever seen, so queues weigh nothing."""
    mode = {"name": "fleet", "replicas": 3, "loop": "open", "router": {
        "name": "llm_d", "prefix_weight": 0.0, "kv_weight": 0.0, "shuffle": False}}  # fmt: skip
    run(tmp_path / "late", {**mode, "report_s": 3600.0})
    assert {row["replica"] for row in rows(tmp_path / "late")} == {0}
    run(tmp_path / "now", mode, engine={"max_batch_requests": 1})
    assert {row["replica"] for row in rows(tmp_path / "now")} == {0, 1, 2}


def test_a_router_in_a_file_is_given_its_options_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from framework_fleet.router import Router\n\n\nclass Mine(Router):\n"
        "    def __init__(self, first=0):\n        self.first = first\n\n"
        "    def route(self, request, replicas):\n        return replicas[self.first]\n"
    )
    words = ("mode=fleet", "mode.replicas=3", "mode.router={name: mine.py:Mine, first: 2}", "executor=roofline",
             "workload=agents", "workload.num_sessions=3", "cache.num_blocks=400", "run.dir=out")  # fmt: skip
    Command(capsys).ok(*words, "run.progress=false")
    assert {row["replica"] for row in rows(tmp_path / "out")} == {2}


@pytest.mark.parametrize(
    ("mode", "more", "says"),
    [
        ({"outages": [{"replica": 2, "leaves_s": 1}]}, {}, "replica must be 0 to 0, found 2"),
        ({"outages": [{"replica": 0, "leaves_s": 2, "returns_s": 1}]}, {}, "leaves_s: 60, returns_s: 120"),
        ({"unequal": [{"replica": 0, "cache": {"blocks": 1}}]}, {}, "blocks"),
        ({"unequal": [{"replica": 0, "model": "tiny"}]}, {}, "settings of cache, engine and replay"),
        ({"router": "nearest"}, {}, "no router named 'nearest'"),
        ({}, {"replay": {"optimum": True}}, "replay.optimum is of one engine"),
        ({}, {"eviction": "belady"}, "every block's next use"),
        ({"replicas": 2}, {"observers": ["explain"]}, "observers listen to one engine"),
    ],
)
def test_what_a_fleet_cannot_do_is_refused(
    mode: dict[str, Any], more: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=says):
        run(tmp_path, {"name": "fleet", **mode}, **more)
