"""Weights & Biases around sweeps: what an offline record holds, and W&B's own controller driving our command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import command
from wandb_offline import read_offline_run

from framework import registry
from framework.config.hydra.compose import compose
from framework.interfaces.tracker import RunLabel
from framework.run import call
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import TrackedRun
from framework_lab.wandb_sweeps import sweep_config

main = command("wandb")

SERVE = ("workload.num_requests=3", "workload.output_tokens=4", "run.check_requests=0", "tracker=wandb")


@pytest.mark.slow  # tracker, sweep and report meet in pairs elsewhere
def test_the_offline_record_of_a_sweep_holds_every_number_of_every_result(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = call(["-m", *SERVE, "run.sweep=s", "run.events=true", "seed=0,1"])
    assert status == 0, capsys.readouterr().err
    folders = sorted(path.parent for path in Path("sweeps/s").glob("*/result.json"))
    assert len(folders) == 2
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        run = read_offline_run(folder)
        missing = {key: value for key, value in result.items() if value is not None and run.summary.get(key) != value}
        assert not missing, missing
        assert (run.group, run.exit_code) == ("s", 0)
        assert run.config["seed"] == result["seed"]
        assert run.config["run"]["dir"] == str(folder.absolute())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        curve = [step["live_slots"] for step in run.history if "live_slots" in step]
        assert curve == [line["live_slots"] for line in lines]
        for key in ("hit_rate", "evictions"):  # so far: what a curve over time is drawn from
            assert [step[key] for step in run.history if key in step][: len(lines)] == [line[key] for line in lines]
        assert any("requests" in name and name.endswith(".table.json") for name in run.files), run.files
        assert any("memory" in name and name.endswith(".png") for name in run.files), run.files
    report = read_offline_run(Path("sweeps/s/wandb"))
    assert (report.group, report.job_type) == ("s", "report")
    assert any(name.endswith(".html") for name in report.files), report.files


def test_a_killed_run_continues_under_its_id_and_a_finished_one_does_not(tmp_path: Path) -> None:
    def begin(finish: bool) -> str:
        with RunDirectory(tmp_path / "run", overwrite=True) as run:
            tracked = TrackedRun(run, registry.build("tracker", "wandb", {"mode": "offline"}))
            tracked.start({"seed": 0}, RunLabel(name="r"))
            found = (run.path / "wandb-id").read_text()
            if finish:
                tracked.finish({"status": "ok"})
            else:
                tracked._tracker._run.finish(exit_code=1)  # type: ignore[union-attr]
        return found

    killed, continued = begin(finish=False), begin(finish=True)
    assert killed == continued
    assert not (tmp_path / "run" / "wandb-id").exists()
    assert begin(finish=True) != killed


def test_a_sweep_configuration_drives_our_command_line() -> None:
    words = ["+eviction=lru,fifo", "cache.num_blocks=range(64,257,64)", "+allocator=prefix", "seed=int(interval(0,9))"]
    config = sweep_config(words, method="bayes", metric="ttft_s_p95")
    assert config["parameters"] == {
        "eviction": {"values": ["lru", "fifo"]},
        "cache.num_blocks": {"values": [64, 128, 192, 256]},
        "seed": {"distribution": "int_uniform", "min": 0, "max": 9},
    }
    assert config["metric"] == {"name": "ttft_s_p95", "goal": "minimize"}
    command = config["command"]
    assert command[:4] == ["${env}", "${interpreter}", "-m", "framework.run"]
    assert command[-1] == "${args_no_hyphens}"
    # What an agent makes of the command, one value for each parameter.
    chosen = [f"{key}={found.get('values', [found.get('min')])[0]}" for key, found in config["parameters"].items()]
    composed = compose([*command[4:-1], *chosen])
    assert (composed.eviction.name, composed.allocator.name, composed.tracker.name) == ("lru", "prefix", "wandb")
    assert composed.cache.num_blocks == 64


def test_the_configuration_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eviction=lru,fifo", "backend=gather"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config == sweep_config(["eviction=lru,fifo", "backend=gather"])


def test_under_an_agent_the_agent_s_id_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    seen: dict[str, Any] = {}

    class Started(Exception):
        pass

    def init(**given: Any) -> Any:
        seen.update(given)
        raise Started

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    with RunDirectory(tmp_path / "run") as run, pytest.raises(Started):
        registry.build("tracker", "wandb", {"mode": "offline"}).start({}, run, RunLabel())
    assert "id" not in seen
    assert sys.modules["wandb"] is wandb
