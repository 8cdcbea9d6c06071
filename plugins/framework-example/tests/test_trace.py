"""GatewayLog keeps every promise of a trace reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from framework_testing import trace_checks

from framework_example.trace import GatewayLog


@pytest.mark.parametrize("check", trace_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(GatewayLog)


def test_a_line_is_a_request() -> None:
    line = b'{"at": 2, "prompt_len": 16, "answer_len": 1, "pages": [4]}'
    ((number, request),) = GatewayLog().read(iter([(1, line)]), Path("x.jsonl"))
    assert number == 1
    assert request == GatewayLog().parse({"at": 2, "prompt_len": 16, "answer_len": 1, "pages": [4]})
