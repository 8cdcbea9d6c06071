"""What a workload answers is checked, and its facts stand beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from framework import api
from framework.errors import PluginError
from framework.guard.boundary import remember_origin
from framework.guard.workload import GuardedWorkload
from framework.interfaces.workload import Workload, WorkloadRequest
from framework.results.reading import read_result
from framework.workload import requests_of


class Faulty(Workload):
    reported: Any = MappingProxyType({})

    def requests(self) -> Iterator[WorkloadRequest]:
        for number in range(3):
            yield WorkloadRequest(prompt=[1, 2, 3, number], output_tokens=2)

    def facts(self) -> Mapping[str, Any]:
        if isinstance(self.reported, BaseException):
            raise self.reported
        found: Any = self.reported
        return dict(found) if isinstance(found, Mapping) else found  # type: ignore[no-any-return]


remember_origin(Faulty, "acme 1.5")


@pytest.mark.parametrize("wrong", [5, None, "request"])
def test_a_workload_that_yields_no_request_is_named(wrong: Any) -> None:
    class Yields(Faulty):
        def requests(self) -> Iterator[WorkloadRequest]:
            yield wrong

    with pytest.raises(PluginError, match=r"Yields.requests: must yield a WorkloadRequest"):
        list(requests_of(Yields(), "yields"))


@pytest.mark.parametrize(
    ("hook", "rule"), [("in_steps", "must return a bool"), ("recording", "must return a Recording")]
)
def test_a_workload_that_answers_a_question_with_something_else_is_named(
    hook: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, hook, lambda self: "yes", raising=False)
    with pytest.raises(PluginError, match=rf"Faulty\.{hook}: {rule}"):
        getattr(GuardedWorkload(Faulty()), hook)()


@pytest.mark.parametrize("reported", [ArithmeticError("x"), 5, {"a b": 1}], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("executor", ["none", "serve"])
def test_facts_that_fail_fail_the_run_by_name(
    reported: Any, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match=r"acme 1\.5: workload Faulty\.facts: "):
        run(executor, reported, tmp_path, monkeypatch)
    result = read_result(tmp_path / "run")
    assert result["status"] == "failed", result
    assert "acme 1.5: workload Faulty.facts: " in result["reasons"][0], result


@pytest.mark.parametrize("executor", ["none", "serve"])
def test_facts_stand_beside_what_was_measured(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = {"hit_rate": 99.0, "status": "great", "first_failure": "none"}
    result = run(executor, reported, tmp_path, monkeypatch)
    assert {f"workload_{name}": result[f"workload_{name}"] for name in reported} == {
        f"workload_{name}": value for name, value in reported.items()
    }
    assert result["status"] == "ok"
    assert result["hit_rate"] is None or 0 <= result["hit_rate"] <= 1
    assert "first_failure" not in result


def run(executor: str, reported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    from framework import registry

    monkeypatch.setattr(Faulty, "reported", reported)
    real = registry.build
    monkeypatch.setattr(
        registry, "build", lambda kind, *rest, **more: Faulty() if kind == "workload" else real(kind, *rest, **more)
    )
    mode = {"mode": "serve"} if executor == "serve" else {"mode": "replay", "executor": executor}
    config = {**mode, "workload": "chat", "cache": {"num_blocks": 64, "block_size": 2}}
    api.run({**config, "run": {"dir": str(tmp_path / "run"), "progress": False, "check_requests": 0}})
    return read_result(tmp_path / "run")
