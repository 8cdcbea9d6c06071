"""KV events of runs, through the command line: the file, the publisher, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

from processes import Command

from framework.results.reading import read_result

SMALL = (
    "workload.num_requests=10", "workload.output_tokens=12", "run.check_requests=0", "run.progress=false",
    "cache.num_blocks=30", "cache.block_size=8", "workload.prefix_tokens=24", "workload.suffix_tokens=20",
)  # fmt: skip
SIZES = tuple(word for word in SMALL if not word.startswith("workload."))


def lines(folder: Path) -> list[str]:
    return (folder / "kv_events.jsonl").read_text().splitlines()


def test_the_replay_of_a_recorded_run_writes_the_same_kv_events(command: Command, elsewhere: Path) -> None:
    out = command.ok(*SMALL, "observers=[kv_events]", "run.record=true", "run.dir=served")
    assert "blocks removed" in out
    command.ok(
        "mode=replay", "workload=recording", "workload.path=served/recording.jsonl", *SIZES, "observers=[kv_events]",
        "run.dir=replayed",
    )  # fmt: skip
    served, replayed = lines(elsewhere / "served"), lines(elsewhere / "replayed")
    assert served == replayed
    result = read_result(elsewhere / "served")
    batches = [json.loads(line) for line in served[1:]]
    assert [batch["seq"] for batch in batches] == [*range(result["kv_event_batches"])]
    removed = [event for batch in batches for event in batch["events"] if event["type"] == "BlockRemoved"]
    assert sum(len(event["block_hashes"]) for event in removed) == result["kv_event_removed_blocks"] > 0
    assert result["kv_event_removed_blocks"] == result["num_evictions"]


def test_what_keeps_no_blocks_has_no_kv_events(command: Command) -> None:
    status, _, errors = command(
        "+experiment=cache_only", "workload=conversations", "observers=[kv_events]", "run.dir=x"
    )
    assert status == 2
    assert "observer kv_events has no part in mode=cache_only" in errors
