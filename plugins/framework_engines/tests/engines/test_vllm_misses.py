"""What vLLM's own scheduler misses has the causes that the replay of the same requests gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import command

from experiments.fidelity import our_side, vllm_side
from experiments.fidelity.streams import Talk, grown, of_trace, sampled
from experiments.live.server import policy_config
from experiments.shared import CONVERSATION, MissingTrace, trace_path
from framework.engine.engine import Engine
from framework.errors import ConfigError
from framework.interfaces.workload import WorkloadRequest
from framework.types import Namespace
from framework_explain.account import ELSEWHERE, EVICTED, Account
from framework_explain.ledger import Ledger
from framework_explain.recorded_misses import explain_stream
from framework_explain.table_of_misses import read_account

main = command("explain")

pytestmark = pytest.mark.timeout(900)
SALTS = (None, "one", "two")


class Recorder:
    """A publisher that writes vLLM's batches down, a JSON line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def publish(self, batch: Any) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(batch) + b"\n")

    def shutdown(self) -> None:
        pass


def in_vllm(
    talks: list[Talk], folder: Path, eviction: str | None = "lru", stream: Path | None = None, **limits: Any
) -> Account:
    transfer = policy_config(eviction, "steps", explain=str(folder))
    scheduler = vllm_side.scheduler_of(transfer=transfer, events=stream is not None, **limits)
    if stream is not None:
        scheduler.kv_event_publisher = Recorder(stream)
    vllm_side.run(talks, scheduler)
    scheduler.shutdown()
    return read_account(folder)


def in_replay(talks: list[Talk], eviction: str = "lru", **limits: Any) -> tuple[Account, Ledger]:
    settings = our_side.Settings(
        allocator={"name": "prefix", "watermark": 0.0, "duplicates": "keep"},
        hash=vllm_side.hash_scheme(),
        eviction=eviction,
        **limits,
    )
    ledger = Ledger(settings.block_size, policy=eviction, most_contents=2**24)
    our_side.run(talks, settings, ledger=ledger)
    return ledger.account(), ledger


def conversation(count: int) -> list[Talk]:
    try:
        return of_trace(trace_path(CONVERSATION), count)
    except MissingTrace as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("count", "limits"),
    [
        (0, {"num_blocks": 200, "max_batch_requests": 1}),
        (0, {"num_blocks": 200, "max_batch_requests": 6, "max_batch_tokens": 256}),
        (0, {"num_blocks": 60, "max_batch_requests": 40}),
        (1500, {"num_blocks": 2000, "block_size": 512, "max_batch_tokens": 65536}),
    ],
    ids=["alone", "chunks", "preemption", "conversation"],
)
def test_conversations_miss_alike_request_by_request_and_cause_by_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, limits: dict[str, int]
) -> None:
    talks = conversation(count) if count else [*grown(120), *sampled(10, width=4)]
    theirs, (ours, ledger) = (in_vllm(talks, tmp_path, **limits), in_replay(talks, **limits))
    assert theirs.totals("tokens") == ours.totals("tokens")
    assert theirs.totals("blocks") == ours.totals("blocks")
    assert theirs.preempted_tokens == ours.preempted_tokens
    assert theirs.tokens[:, EVICTED].sum() > 0
    assert count or (limits["num_blocks"] == 60) == (ours.preempted_tokens > 0)
    assert theirs.evictions.tokens.tolist() == ours.evictions.tokens.tolist()
    assert theirs.evictions.evicted_for.tolist() == ours.evictions.evicted_for.tolist()
    assert dict(zip(theirs.requests, theirs.tokens.tolist(), strict=True)) == ledger._rows
    capsys.readouterr()
    assert main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == theirs.totals("tokens")


@pytest.mark.parametrize(
    ("count", "limits"),
    [
        (0, {"num_blocks": 200, "max_batch_requests": 1}),
        (400, {"num_blocks": 1000, "block_size": 512, "max_batch_requests": 16, "max_batch_tokens": 4096}),
        (1500, {"num_blocks": 2000, "block_size": 512, "max_batch_tokens": 65536}),
    ],
    ids=["alone", "chunks", "conversation"],
)
def test_recorded_events_and_a_request_log_give_the_misses_that_vllm_has(
    tmp_path: Path, count: int, limits: dict[str, int]
) -> None:
    talks = conversation(count) if count else grown(120)
    theirs = in_vllm(talks, tmp_path / "run", None, tmp_path / "events", **limits)
    log = [
        WorkloadRequest(prompt=talk.prompt, output=None if count else talk.output, output_tokens=len(talk.output))
        for talk in talks  # later prompts repeat the answers of made-up ones alone
    ]
    seen, _, unseen, _ = explain_stream(tmp_path / "events", log, most_contents=2**24)
    assert unseen == 0
    assert seen.totals("blocks") == theirs.totals("blocks")
    rows = dict(zip(theirs.requests, theirs.tokens.tolist(), strict=True))
    assert dict(zip(seen.requests, seen.tokens.tolist(), strict=True)) == rows
    assert theirs.tokens[:, EVICTED].sum() > 0


def test_what_another_cache_salt_would_have_hit_is_no_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks, limits = grown(60), {"num_blocks": 200, "max_batch_requests": 1}
    talks = [talk for talk in talks for _ in range(2)]
    plain, submit = vllm_side.request_of, Engine.submit

    def salted(name: str, talk: Talk, size: int) -> Any:
        return plain(name, talk, size, cache_salt=SALTS[int(name) % 3])

    def spaced(engine: Engine, *args: Any, **facts: Any) -> Any:
        salt = SALTS[len(numbers) % 3] or ""
        numbers.append(salt)
        return submit(engine, *args, namespace=Namespace(salt=salt), **facts)

    numbers: list[str] = []
    monkeypatch.setattr(vllm_side, "request_of", salted)
    monkeypatch.setattr(Engine, "submit", spaced)
    monkeypatch.setattr(vllm_side, "hash_scheme", lambda: "sha256")  # ours has no salts
    theirs, (ours, ledger) = in_vllm(talks, tmp_path, **limits), in_replay(talks, **limits)
    assert theirs.totals("tokens") == ours.totals("tokens")
    assert theirs.tokens[:, ELSEWHERE].sum() > 0
    assert dict(zip(theirs.requests, theirs.tokens.tolist(), strict=True)) == ledger._rows


def test_a_folder_that_holds_requests_is_refused_as_vllm_starts(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("precious")
    with pytest.raises(ConfigError, match="name a new folder"):
        in_vllm(grown(1), tmp_path, num_blocks=20)
    assert (tmp_path / "requests.jsonl").read_text() == "precious"
