"""What a workload or a trace reader answers is checked, and its facts stand beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from framework import api
from framework.errors import PluginError, WorkloadError
from framework.guard.boundary import remember_origin
from framework.interfaces.trace import JsonLinesReader, Record
from framework.interfaces.workload import Workload, WorkloadRequest
from framework.results.reading import read_result
from framework.workload import requests_of
from framework.workload.traces import reader as readers
from framework.workload.traces.reader import Trace, detect_format, open_trace


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


class Reader(JsonLinesReader):
    """Does what its class attributes say."""

    does: Callable[..., Any] = staticmethod(lambda: iter(()))
    size: Any = 0
    recognised: Any = True

    @classmethod
    def recognises(cls, head: Any, path: Path) -> bool:
        return done(cls.recognised)  # type: ignore[no-any-return]

    def block_size(self, head: Any, asked: int | None) -> int:
        return done(self.size)  # type: ignore[no-any-return]

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        return WorkloadRequest(input_tokens=4, output_tokens=1)

    def read(self, lines: Any, path: Path) -> Iterator[Record]:
        yield from type(self).does()


remember_origin(Reader, "acme 1.5")


def done(what: Any) -> Any:
    if isinstance(what, BaseException):
        raise what
    return what


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "trace.jsonl").write_text('{"x": 1}\n')
    return tmp_path / "trace.jsonl"


@pytest.mark.parametrize(
    ("yielded", "says"),
    [
        (5, "must yield"),
        ((1, None), "must yield"),
        ((1, 2, 3), "must yield"),
        ((1, WorkloadRequest(input_tokens=8, block_ids=[1, 2], block_tokens=4)), "blocks of 4 tokens where block_size"),
    ],
)
def test_what_a_trace_reader_yields_is_checked(yielded: Any, says: str, trace: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "does", staticmethod(lambda: iter([yielded])))
        with pytest.raises(PluginError, match=f"trace reader Reader.read: .*{says}"):
            list(Trace(trace, "acme", Reader, 16, 16, "raise"))


@pytest.mark.parametrize("size", [-1, 2.5, True, None, "16", 2**80])
def test_a_block_size_that_is_none_is_refused(size: Any, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_reader", lambda name: Reader)
    monkeypatch.setattr(Reader, "size", size)
    with pytest.raises(PluginError, match=r"Reader.block_size: must return an int"):
        open_trace(trace, format="acme")


@pytest.mark.parametrize("answer", ["no", 1, None, ArithmeticError("x")], ids=lambda value: type(value).__name__)
def test_a_reader_that_does_not_say_whether_it_knows_a_file_is_named(
    answer: Any, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_reader", lambda name: Reader)
    monkeypatch.setattr(readers, "formats", lambda: ("acme",))
    monkeypatch.setattr(Reader, "recognised", answer)
    with pytest.raises(WorkloadError, match=r"could not be asked: acme 1.5: trace reader Reader.recognises"):
        detect_format(trace)
