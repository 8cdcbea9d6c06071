"""What observers are given of an engine, what they add to a run, and what becomes of one that fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_engines import Heard, fake_engine
from paged_helpers import make

from framework.api import run
from framework.errors import OutOfBlocks, PluginError
from framework.guard.allocator import GuardedAllocator
from framework.guard.observer import GuardedObserver, Observers
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Observer
from framework.sampling import Sampling
from framework.types import Namespace, RequestId, RequestInfo, as_tokens

SAMPLING = Sampling(max_tokens=4, ignore_eos=True)


def test_a_call_is_given_when_it_has_ended_with_its_request_its_events_and_its_table() -> None:
    heard = Heard()
    guarded = GuardedAllocator(make(num_blocks=4, block_size=2))
    tables = []

    class Tables(Observer):
        def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
            tables.append((call.name, call.table().tolist()))

    guarded.observe(Observers([heard, Tables()]))
    info, tokens = RequestInfo(id=RequestId(7), max_total_tokens=8), as_tokens([1, 2, 3, 4, 5])
    guarded.allocate(info, tokens, guarded.lookup(tokens, Namespace()))
    table = guarded.table(RequestId(7)).tolist()
    guarded.commit(RequestId(7), tokens[:4])
    with pytest.raises(OutOfBlocks):
        guarded.extend(RequestId(7), 20)
    guarded.free(RequestId(7))
    guarded.reset()
    given = [(call.name, call.request, len(events)) for call, events in heard.calls]
    assert given == [("allocate", 7, 0), ("commit", 7, 1), ("free", 7, 0), ("reset", None, 1)]
    assert heard.calls[0][0].info is info
    assert heard.calls[1][1][0].blocks == table[:2]
    assert tables == [("allocate", table), ("commit", table), ("free", table), ("reset", [])]


def test_what_only_the_engine_knows_is_given_in_order_and_before_anything_changes() -> None:
    order: list[tuple[str, Any]] = []

    class Order(Heard):
        def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
            order.append(("call", call.name))

        def noted(self, note: Any) -> None:
            order.append(("note", note.event))

    engine = fake_engine(num_blocks=16, observers=(Order(),))
    engine.submit([1, 2, 3, 4, 5], SAMPLING)
    engine.step()
    assert order == [
        ("note", "arrive"), ("note", "ask"), ("call", "allocate"), ("call", "extend"), ("note", "admit"),
        ("call", "publish"), ("note", "queue"), ("note", "step"), ("call", "commit"), ("note", "computed"),
    ]  # fmt: skip
    engine.run()
    assert order[-3:] == [("call", "free"), ("note", "finished"), ("note", "computed")]


def test_an_observer_begins_with_a_reset_engine_as_with_a_new_one() -> None:
    heard = Heard()
    engine = fake_engine(num_blocks=16, observers=(heard,))
    engine.reset(fake_engine(num_blocks=16).allocator)
    engine.submit([1, 2, 3], SAMPLING)
    engine.run()
    assert [(cache.num_blocks, cache.block_size) for cache in heard.caches] == [(16, 4)] * 2
    assert heard.caches[0].lies_below is None, "there are no tiers"
    assert heard.calls


def test_an_engine_without_observers_pays_nothing_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("framework.guard.allocator.Call", lambda *given, **named: made.append(given))
    for module in ("state", "scheduler"):
        monkeypatch.setattr(f"framework.engine.{module}.Note", lambda *given, **named: made.append(given))
    engine = fake_engine(num_blocks=64)
    for _ in range(4):
        engine.submit([*range(1, 20)], SAMPLING)
    engine.run()
    allocator: Any = engine.allocator
    assert (made, allocator.cache.listener) == ([], None)


class Fails(Heard):
    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        super().heard(call, events)
        if call.name == "commit":
            raise ZeroDivisionError("by design")


def test_an_observer_that_fails_ends_the_step_by_its_name() -> None:
    fails = Fails()
    engine = fake_engine(num_blocks=16, observers=(fails,))
    engine.submit([1, 2, 3, 4, 5], SAMPLING)
    with pytest.raises(ZeroDivisionError, match=r"observer Fails\.heard: raised ZeroDivisionError\('by design'\)"):
        engine.run()
    assert engine.interrupted
    assert [call.name for call, _ in fails.calls] == ["allocate", "extend", "publish", "commit"]


@pytest.mark.parametrize(
    ("hook", "answer", "says"),
    [
        ("results", [1], r"results: must return a mapping of texts, returned \[1\]"),
        ("row", {1: 2}, "row: must return a mapping of texts"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_named(hook: str, answer: Any, says: str) -> None:
    class Wrong(Observer): ...

    setattr(Wrong, hook, lambda self, *given: answer)
    with pytest.raises(PluginError, match=rf"observer Wrong\.{says}"):
        getattr(GuardedObserver(Wrong()), hook)(*([0] if hook == "row" else []))


def replayed(folder: Path, **options: Any) -> dict[str, Any]:
    observers = [{"name": "observing:Counts", **options}]
    return run({
        "mode": "replay", "observers": observers, "allocator": "prefix",
        "workload": {"name": "conversations"}, "cache": {"num_blocks": 40, "block_size": 16},
        "run": {"dir": str(folder), "progress": False},
    })  # fmt: skip


def test_an_observer_adds_rows_results_and_files_and_the_next_run_removes_those_that_installed_ones_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = replayed(tmp_path / "run")
    assert result["calls"] > 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert [row["mine"] for row in rows] == [row["request"] for row in rows]
    assert json.loads((tmp_path / "run" / "calls.jsonl").read_text()) == {"calls": result["calls"]}
    monkeypatch.setattr("framework.tracking.run_directory.files_of_a_run", lambda: ("calls.jsonl",))
    with pytest.raises(ValueError, match="by design"):
        replayed(tmp_path / "run", fail="results")
    assert not (tmp_path / "run" / "calls.jsonl").exists()


@pytest.mark.parametrize("method", ["start", "heard", "results"])
def test_a_run_whose_observer_fails_is_failed_and_its_result_says_who(method: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"Counts.{method}: raised ValueError\('by design'\)"):
        replayed(tmp_path / "run", fail=method)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert f"Counts.{method}" in result["reasons"][0], result
