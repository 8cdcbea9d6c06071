"""The main job's outputs, end to end: real text with its prefixes hit, and W&B's offline record of a whole run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.files.jsonl import read_jsonl
from framework.testing.wandb_offline import read_offline_run
from framework.tracking import read_result

SMALL = ("workload.num_requests=8", "workload.output_tokens=6", "workload.prefix_tokens=48")


@pytest.fixture
def written(command: Callable[..., tuple[int, str, str]], elsewhere: Path) -> Callable[..., Path]:
    """`written(*words)`: the folder that this command line leaves, run in this process."""

    def run(*words: str) -> Path:
        status, out, err = command(*words, "run.dir=out")
        assert status == 0, f"{out}\n{err}"
        return elsewhere / "out"

    return run


def test_recorded_agents_are_served_with_their_prefixes_hit(written: Callable[..., Path], traces: Path) -> None:
    path = traces / "lmcache-agent-trace_text.tar.xz"
    if not path.exists():
        pytest.skip(f"no {path.name} among the traces")
    options = ("family=taubench", "limit=24", "max_tokens=4")
    out = written("workload=agent_text", f"workload.path={path}", *(f"workload.{option}" for option in options))
    result = read_result(out)
    assert result["num_finished"] == 24, result
    assert (result["dense_checked"], result["dense_mismatches"]) == (8, 0), result
    assert result["backend_decode"] == "eager", result
    assert result["hit_tokens"] > 0.4 * result["prompt_tokens"], result


def test_wandb_offline_holds_every_number_of_a_real_run(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.tracking.wandb._MIN_INTERVAL_S", 0.0)
    out = written(*SMALL, "+tracker=wandb")
    result, stored = read_result(out), read_offline_run(out)
    differing = {
        key: (value, stored.summary.get(key)) for key, value in result.items() if stored.summary.get(key) != value
    }
    assert not differing, differing
    steps = read_jsonl(out / "metrics.jsonl")
    live = [line for line in stored.history if "utilisation" in line]
    assert [line["_step"] for line in live] == [line["step"] for line in steps]
    assert [line["live_slots"] for line in live] == [line["live_slots"] for line in steps]
    assert any("memory" in name for name in stored.files), stored.files
    assert any("requests" in name for name in stored.files), stored.files
    assert stored.job_type == "prefix_cow-lru-sha256-torch"


def test_a_run_leaves_its_whole_record(written: Callable[..., Path]) -> None:
    out = written(*SMALL, "run.events=true")
    requests, events = read_jsonl(out / "requests.jsonl"), read_jsonl(out / "events.jsonl")
    assert len(requests) == read_result(out)["num_requests"] == 8
    assert events
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["components"]["allocator"]["distribution"] == "kvcache-framework", provenance["components"]
    assert provenance["seeds"] == {"seed": 0}
    assert (out / "config.yaml").read_text().startswith("mode: serve")
    assert not (out / "lock").exists()
