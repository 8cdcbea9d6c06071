"""What a trace reader answers is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from framework.errors import PluginError, WorkloadError
from framework.guard.boundary import remember_origin
from framework.interfaces.workload import WorkloadRequest
from framework_workloads.trace import reader as readers
from framework_workloads.trace.format import JsonLinesReader, Record
from framework_workloads.trace.reader import Trace, detect_format, open_trace


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
