"""Bars on a terminal."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from framework.cli.progress import reference_progress, replay_progress, request_progress, sweep_progress


def test_every_bar_is_drawn_before_and_after_its_first_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    metrics = SimpleNamespace(num_output_tokens=5, num_scheduled_tokens=7_000, statuses={"finished": 3})
    state = SimpleNamespace(step_number=64, rows=SimpleNamespace(num_active=2))
    engine: Any = SimpleNamespace(num_unfinished=4, metrics=metrics, state=state)
    outcome: Any = SimpleNamespace(state="failed", took_s=1.0, directory="x")
    with request_progress(engine) as tick:
        tick()
    with replay_progress(enabled=True) as replayed:
        replayed(engine)
    with reference_progress(70_000) as counted:
        counted(65_536)
    with reference_progress(70_000, enabled=False) as silent:
        silent(4_464)
    with sweep_progress(3, 1, enabled=True) as ended:
        ended(outcome)
    said = capsys.readouterr().err
    for part in ("5 tokens, 2 running", "0 tokens", "7,000 tokens", "65536/70000", "1 failed"):
        assert part in said, f"no {part!r} in {said!r}"
    assert "4464/70000" not in said
