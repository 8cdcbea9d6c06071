"""The tracker `wandb`, offline and read back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from wandb_offline import read_offline_run

from framework import registry
from framework.errors import FrameworkError
from framework.interfaces.tracker import RunLabel, Tracker
from framework.results.reading import read_result
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import TrackedRun, TrackerWarning
from framework_wandb.tracker import has_account

RESULT = {
    "hit_rate": 0.75, "output_tokens_per_s": 1234.5, "num_requests": 48, "ttft_s_p50": None, "clock": "wall",
    "by_status": {"finished": 47, "failed": 1}, "bad": float("nan"),
}  # fmt: skip

ONLINE = """
import sys
from framework import registry
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import TrackedRun
from framework_wandb import tracker as wandb
run = RunDirectory(sys.argv[1])
wandb.INIT_TIMEOUT_S = wandb._FINISH_TIMEOUT_S = 1.0
with run:
    trackers = TrackedRun(run, registry.build("tracker", "wandb"))
    trackers.start({})
    trackers.log(0, {"x": 1})
    trackers.finish({"hit_rate": 0.75})
"""


def _run(directory: Path, tracker: Tracker, steps: int = 5) -> None:
    with RunDirectory(directory) as run:
        tracked = TrackedRun(run, tracker)
        tracked.start({"seed": 1, "cache": {"block_size": 16}}, RunLabel(name="n", group="sweep", job_type="cow-lru"))
        for number in range(2):
            run.log("requests.jsonl", {"key": f"r{number}", "ttft_s": 0.5 * number, "tokens": [1, 2]})
        for step in range(steps):
            tracked.log(
                step, {"time_s": step / 10, "utilisation": 0.5, "live_slots": 8, "free_slots": 8, "nan": float("nan")}
            )
        tracked.finish(RESULT)


def test_an_offline_wandb_run_holds_every_number_of_the_result(tmp_path: Path) -> None:
    _run(tmp_path, registry.build("tracker", "wandb", {"project": "lab", "tags": ["t"]}), steps=7)
    stored = read_offline_run(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    missing = {
        key: (value, stored.summary.get(key)) for key, value in result.items() if stored.summary.get(key) != value
    }
    assert not missing, missing
    assert (stored.name, stored.project, stored.group, stored.job_type) == ("n", "lab", "sweep", "cow-lru")
    assert stored.tags == ("t",)
    assert stored.exit_code == 0
    assert stored.config["cache"] == {"block_size": 16}
    live = [line for line in stored.history if "utilisation" in line]
    assert [line["_step"] for line in live] == list(range(7))
    assert all(line["nan"] is None for line in live), live
    table = next(path for path in stored.files if "requests" in path)
    rows = json.loads(next(tmp_path.rglob(Path(table).name)).read_text())
    assert rows["columns"] == ["key", "ttft_s", "tokens"]
    assert rows["data"] == [["r0", 0.0, "[1, 2]"], ["r1", 0.5, "[1, 2]"]]
    assert any("memory" in path and path.endswith(".png") for path in stored.files), stored.files
    definitions = next(path for path in stored.files if "definitions" in path)
    meanings = json.loads(next(tmp_path.rglob(Path(definitions).name)).read_text())
    assert meanings["columns"] == ["key", "unit", "better", "definition"]
    assert {row[0] for row in meanings["data"]} <= set(result), meanings["data"]
    assert meanings["data"], "what the summary holds is defined"


def test_two_wandb_runs_side_by_side_in_one_process_stay_two_runs_of_one_group(tmp_path: Path) -> None:
    names = ("a", "b")
    runs = [RunDirectory(tmp_path / name) for name in names]
    trackers = [TrackedRun(run, registry.build("tracker", "wandb")) for run in runs]
    for name, tracker in zip(names, trackers, strict=True):
        tracker.start({"name": name}, RunLabel(name=name, group="sweep"))
    for step in range(3):
        for name, tracker in zip(names, trackers, strict=True):
            tracker.log(step, {name: step})
    for name, run, tracker in zip(names, runs, trackers, strict=True):
        tracker.finish({"who": name})
        run.close()
    for name in names:
        stored = read_offline_run(tmp_path / name)
        assert (stored.name, stored.group, stored.config["name"], stored.summary["who"]) == (name, "sweep", name, name)
        assert [line[name] for line in stored.history] == [0, 1, 2], stored.history


def test_live_metrics_are_thinned_by_their_step_alone_and_the_last_ones_arrive(tmp_path: Path) -> None:
    _run(tmp_path, registry.build("tracker", "wandb"), steps=1033)
    stored = read_offline_run(tmp_path)
    steps = [line["_step"] for line in stored.history if "utilisation" in line]
    assert steps == [*range(1000), 1000, 1010, 1020, 1030, 1032]


def test_an_unreachable_server_means_offline_and_the_run_goes_on(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    environment = {**os.environ, "WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": url}
    # A process of its own: wandb reads its environment once.
    done = subprocess.run(
        [sys.executable, "-c", ONLINE, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("W&B cannot be reached") == 1, done.stderr
    assert read_result(tmp_path) == {"hit_rate": 0.75}
    assert read_offline_run(tmp_path).summary["hit_rate"] == 0.75


def test_without_an_account_nothing_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert not has_account()
    _run(tmp_path / "auto", registry.build("tracker", "wandb"))
    assert read_offline_run(tmp_path / "auto").exit_code == 0
    with pytest.warns(TrackerWarning, match="no API key"):
        _run(tmp_path / "online", registry.build("tracker", "wandb", {"mode": "online"}))
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert has_account()


def test_wandb_that_is_not_installed_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = registry.build("tracker", "wandb")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(TrackerWarning, match=r"WandbTracker\.start failed"):
        _run(tmp_path, tracker)
    assert read_result(tmp_path)["num_requests"] == 48


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wandbb", {}, "no tracker named 'wandbb'.*did you mean 'wandb'"),
        ("wandb", {"projct": "x"}, "did you mean 'project'"),
        ("wandb", {"mode": "sometimes"}, "'auto', 'online', 'offline' or 'disabled'"),
        ("wandb", {"artifacts": "some"}, "artifacts must be a valid boolean"),
    ],
)
def test_options_that_it_does_not_have_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(FrameworkError, match=message):
        registry.build("tracker", name, options)
