"""A serve step keeps every tensor on the engine's device and waits for it once: shown without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="needs a torch that can pretend a device (2.10 or newer)",
)
PROGRAM = Path(__file__).with_name("pretended_device.py")


@pytest.fixture(scope="module")
def served() -> dict[str, dict[str, Any]]:
    paths = os.pathsep.join([str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "scenario",
    ["greedy", "drawn without forks", "windows and sinks of int8", "float8_e4m3fn in HND", "recorded steps"],
)
def test_the_host_waits_exactly_once_a_step_and_no_operator_meets_two_devices(served: Any, scenario: str) -> None:
    found = served[scenario]
    assert found["status"] == ["finished"], found
    assert found["waits"] == found["steps"] > 5, found
    assert found["calls"] > 100 * found["steps"], "nothing ran on the device"
    assert (found["replays"] > 3) == (scenario == "recorded steps"), found


def test_a_step_sends_its_integers_in_one_copy_and_what_a_draw_needs_in_another(served: Any) -> None:
    for scenario, each in (("greedy", 1), ("drawn without forks", 2)):
        assert served[scenario]["uploads"] == each * served[scenario]["steps"], served[scenario]


def test_log_probabilities_and_beams_wait_once_more_each(served: Any) -> None:
    found = served["searched and preempted"]
    assert found["status"] == ["finished"], found
    assert found["waits"] <= 3 * found["steps"], "a draw, log-probabilities and a beam search in one step"
