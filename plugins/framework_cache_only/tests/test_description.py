"""What the description of a trace says of answers whose length nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from framework.interfaces.workload import WorkloadRequest
from framework_cache_only.description import describe
from framework_traces.command import _rows
from framework_workloads.trace.own_format import OwnFormat
from framework_workloads.trace.reader import Trace


class Answers(Trace):
    """Requests of ten tokens with these answers' lengths."""

    def __init__(self, lengths: Sequence[int | None]) -> None:
        super().__init__(Path("t"), "third-party", OwnFormat, 0, 0, "raise")
        self.lengths = lengths

    def __iter__(self) -> Iterator[WorkloadRequest]:
        for number, length in enumerate(self.lengths):
            yield WorkloadRequest(input_tokens=10, output_tokens=length, arrival_s=float(number))


def test_an_unknown_answer_is_no_answer_of_no_tokens() -> None:
    found, _ = describe(Answers([None, 6, None, 0]))
    assert found.output_tokens is not None
    assert (found.unknown_outputs, found.output_tokens.mean, found.output_tokens.max) == (2, 3.0, 6)
    assert dict(_rows(asdict(found)))["unknown outputs"] == "2"


def test_where_no_answer_is_known_nothing_is_said_of_their_lengths() -> None:
    found, _ = describe(Answers([None, None]))
    assert (found.unknown_outputs, found.output_tokens) == (2, None)
    assert {name: text for name, text in _rows(asdict(found)) if name.startswith("output")} == {
        "output tokens": "unknown"
    }
