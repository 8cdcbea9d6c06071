"""A run followed by another process, which writes a trace of it without what is private."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from command_line import command
from processes import Command, start, wait_until

from framework.results.reading import read_result
from framework_kv_events.file import read_batches

main, record = command("trace"), command("record_events")

pytest.importorskip("zmq", reason="KV events over ZeroMQ need pyzmq")
SIZES = ("cache.num_blocks=120", "cache.block_size=8", "run.progress=false")
SERVED = (
    "workload=conversations",
    "workload.num_sessions=6",
    "engine.max_batch_requests=1",
    "run.check_requests=0",
    *SIZES,
)


def free_addresses() -> tuple[str, str]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return tuple(f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in (one, two))  # type: ignore[return-value]


def published(addresses: tuple[str, str], more: str = "") -> str:
    endpoint, replay = addresses
    return f"observers=[{{name: kv_events, file: true, publish: '{endpoint}', replay_endpoint: '{replay}'{more}}}]"


@pytest.fixture
def recorded(command: Command, elsewhere: Path) -> Path:
    """A serve run that publishes, and what `python -m framework record_events` wrote of it until Ctrl-C."""
    addresses = free_addresses()
    words = ("record_events", addresses[0], "--replay", addresses[1], "--report-hits", "--out", "trace.jsonl")
    recorder = start(elsewhere, *words, module="framework")
    try:
        wait_until((elsewhere / "trace.jsonl").exists, recorder)
        command.ok(*SERVED, published(addresses, ", report_hits: true"), "run.dir=served")
        last = max(number for number, _ in read_batches(elsewhere / "served" / "kv_events.jsonl"))
        wait_until(lambda: max(number for number, _ in read_batches(elsewhere / "trace.jsonl")) == last, recorder)
        recorder.send_signal(signal.SIGINT)
        out, _ = recorder.communicate(timeout=30)
    finally:
        recorder.kill()
    assert recorder.returncode == 0, out
    assert "0 were lost" in out
    return elsewhere / "trace.jsonl"


def test_a_recording_holds_every_batch_nothing_private_and_replays_to_the_hits_of_the_run(
    recorded: Path, command: Command, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = [*read_batches(elsewhere / "served" / "kv_events.jsonl")]
    written = [*read_batches(recorded)]
    assert [number for number, _ in written] == [number for number, _ in served]
    hashes = {name for _, batch in served for event in batch.events for name in getattr(event, "block_hashes", ())}
    sessions = {getattr(event, "session_id", None) for _, batch in served for event in batch.events} - {None}
    text = recorded.read_text()
    assert hashes
    assert sessions
    assert not any(str(name) in text for name in hashes), "an engine's hash could be computed from a guessed prompt"
    stored = [json.loads(line) for line in text.splitlines()[1:]]
    events = [event for batch in stored for event in batch["events"] if event["type"] == "BlockStored"]
    assert all(event["token_ids"] == [] and "extra_keys" not in event for event in events)
    assert not {event.get("session_id") for event in events} & sessions
    assert stored[0]["ts"] == 0, "no time of day"
    assert recorded.stat().st_mode & 0o077 == 0
    result = read_result(elsewhere / "served")
    assert result["num_evictions"] > 0, "a pool that holds everything shows little"
    for number, workload in enumerate(("workload=trace", "workload=kv_events")):
        out = command.ok(
            "mode=replay", workload, f"workload.path={recorded}", *SIZES, "engine.max_batch_requests=1",
            f"run.dir=replayed{number}",
        )  # fmt: skip
        again = read_result(elsewhere / f"replayed{number}")
        assert again["hit_tokens"] == result["hit_tokens"], (again, result)
    assert again["recorded_hit_blocks"] == result["hit_blocks"]
    assert again["recorded_stored_blocks"] >= again["recorded_lost_blocks"] > 0
    assert "recorded blocks lost" in out
    assert main(["describe", str(recorded)]) == 0
    out = capsys.readouterr().out
    assert "kv_events" in out
    assert "unique blocks" in out


def test_a_recording_never_writes_over_a_file_and_leaves_none_where_nothing_came(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "mine.jsonl").write_text("precious")
    endpoint, _ = free_addresses()
    assert record([endpoint, "--out", "mine.jsonl", "--seconds", "0.1"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (elsewhere / "mine.jsonl").read_text() == "precious"
    assert record([endpoint, "--out", "new.jsonl", "--seconds", "0.1"]) == 2
    assert "no block was stored at" in capsys.readouterr().err
    assert not (elsewhere / "new.jsonl").exists()
    assert record(["nowhere://", "--out", "new.jsonl"]) == 2
    assert "is no address" in capsys.readouterr().err
    assert record([endpoint, "--out", "new.jsonl", "--seconds", "-1"]) == 2
