"""Whatever a workload or a trace reader does wrong names it, and its facts stand beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from planted_faults import Unreadable

from framework import api, errors
from framework.errors import ConfigError, FrameworkError, OutOfBlocks, PluginError, StoreFailed, WorkloadError
from framework.guard.boundary import Boundary, remember_origin
from framework.guard.workload import GuardedWorkload
from framework.interfaces.trace import FieldError, JsonLinesReader, Record
from framework.interfaces.workload import Workload, WorkloadRequest
from framework.results.reading import read_result
from framework.workload import requests_of
from framework.workload.traces import reader as readers
from framework.workload.traces.reader import Trace, detect_format, open_trace

OURS = sorted(
    (
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, FrameworkError) and cls is not FrameworkError
    ),
    key=lambda cls: cls.__name__,
)
FAULTS: list[Any] = [Unreadable, SystemExit, GeneratorExit, ArithmeticError, *OURS]


class Faulty(Workload):
    fault: Any = None
    reported: Any = MappingProxyType({})

    def requests(self) -> Iterator[WorkloadRequest]:
        if self.fault is not None:
            raise self.fault
        for number in range(3):
            yield WorkloadRequest(prompt=[1, 2, 3, number], output_tokens=2)

    def facts(self) -> Mapping[str, Any]:
        if isinstance(self.reported, BaseException):
            raise self.reported
        found: Any = self.reported
        return dict(found) if isinstance(found, Mapping) else found  # type: ignore[no-any-return]


remember_origin(Faulty, "acme 1.5")


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_workload_raises_names_it(fault: type[BaseException]) -> None:
    workload = Faulty()
    workload.fault = fault("x")
    with pytest.raises(FrameworkError) as found:
        list(requests_of(workload, "faulty"))
    assert str(found.value).startswith("acme 1.5: workload Faulty.requests: "), found.value
    kept = issubclass(fault, (WorkloadError, ConfigError))
    assert isinstance(found.value, fault if kept else PluginError)


@pytest.mark.parametrize("wrong", [5, None, "request"])
def test_a_workload_that_yields_no_request_is_named(wrong: Any) -> None:
    class Yields(Faulty):
        def requests(self) -> Iterator[WorkloadRequest]:
            yield wrong

    with pytest.raises(PluginError, match=r"Yields.requests: must yield a WorkloadRequest"):
        list(requests_of(Yields(), "yields"))


@pytest.mark.parametrize(
    "reported",
    [ArithmeticError("x"), SystemExit(0), Unreadable(), WorkloadError("x"), 5, {"a b": 1}, {"x": float("nan")}],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("executor", ["none", "serve"])
def test_facts_that_fail_cost_no_measurement_and_are_said(
    reported: Any, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(executor, reported, tmp_path, monkeypatch)
    assert result["status"] == "faulty", result
    assert result["first_failure"].startswith("acme 1.5: workload Faulty.facts: "), result["first_failure"]
    assert not any(key.startswith("workload_") for key in result), result


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


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("hook", ["read", "block_size"])
def test_whatever_a_trace_reader_raises_names_the_reader(
    hook: str, fault: type[BaseException], trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_reader", lambda name: Reader)
    monkeypatch.setattr(Reader, "size", fault("x") if hook == "block_size" else 0)
    monkeypatch.setattr(Reader, "does", staticmethod(lambda: done(fault("x"))))
    with pytest.raises(FrameworkError) as found:
        list(open_trace(trace, format="acme"))
    assert str(found.value).startswith(f"acme 1.5: trace reader Reader.{hook}: "), found.value
    assert isinstance(found.value, fault if issubclass(fault, WorkloadError) else PluginError)


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


@pytest.mark.parametrize("answer", ["no", 1, None, SystemExit(0), Unreadable()], ids=lambda value: type(value).__name__)
def test_a_reader_that_does_not_say_whether_it_knows_a_file_is_named(
    answer: Any, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_reader", lambda name: Reader)
    monkeypatch.setattr(readers, "formats", lambda: ("acme",))
    monkeypatch.setattr(Reader, "recognised", answer)
    with pytest.raises(WorkloadError, match=r"could not be asked: acme 1.5: trace reader Reader.recognises"):
        detect_format(trace)


def test_a_line_s_error_without_a_text_is_a_sentence(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(FieldError):
        def __init__(self) -> None:
            super().__init__("a", "b")

        def __str__(self) -> str:
            raise ValueError

        __repr__ = __str__

    for yields in (lambda: iter([(1, Mute())]), lambda: done(Mute())):
        monkeypatch.setattr(Reader, "does", staticmethod(yields))
        with pytest.raises(WorkloadError, match=r"trace.jsonl:1: Mute"):
            list(Trace(trace, "acme", Reader, 0, 0, "raise"))


def test_an_error_of_the_contract_gets_the_plugin_s_name_once() -> None:
    boundary = Boundary("store", Faulty, (StoreFailed, PluginError, OutOfBlocks))
    with pytest.raises(StoreFailed, match=r"^acme 1.5: store Faulty.write: full$"):
        boundary.contain("write", StoreFailed("full"))
    inner = Boundary("eviction policy", Faulty).fault("victim", "must")
    with pytest.raises(PluginError, match=r"^acme 1.5: eviction policy Faulty.victim: must$"):
        boundary.contain("write", inner)
    with pytest.raises(PluginError, match=r"^acme 1.5: store Faulty.write: mine$"):
        boundary.contain("write", PluginError("mine"))
    with pytest.raises(OutOfBlocks, match=r"^need 3$"):
        boundary.contain("write", OutOfBlocks("need 3"))
    assert GuardedWorkload(Faulty()).facts() == {}
