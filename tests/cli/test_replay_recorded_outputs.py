"""A trace that recorded what was generated is replayed with it: later prompts find the blocks of earlier answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from framework.tracking import read_result

Command = Callable[..., tuple[int, str, str]]
POOL = ("+allocator=prefix_cow", "+eviction=lru", "cache.num_blocks=40", "cache.block_size=4")
ENGINE = ("engine.max_batch_requests=2", "engine.chunk_size=7", "run.progress=false", "run.events=true")


def write_prompts(path: Path, prompts: list[list[int]]) -> None:
    path.write_text("".join(json.dumps({"tokens": tokens, "max_tokens": 13}) + "\n" for tokens in prompts))


def served_outputs(command: Command, folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Serve these prompts into `folder`, recorded; what the model answered."""
    write_prompts(folder.parent / "prompts.jsonl", prompts)
    status, _, errors = command(
        "workload=prompts", "workload.path=prompts.jsonl", *POOL, *ENGINE, "run.check_requests=0",
        "run.record=true", f"run.dir={folder.name}",
    )  # fmt: skip
    assert status == 0, errors
    lines = (folder / "recording.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["outputs"][0] for line in lines]


def replayed(command: Command, elsewhere: Path, path: str, name: str) -> Path:
    status, _, errors = command(
        "mode=replay", "executor=none", "workload=trace", f"workload.path={path}", "replay.step_s=1", *POOL, *ENGINE,
        f"run.dir={name}",
    )  # fmt: skip
    assert status == 0, errors
    return elsewhere / name


def events(folder: Path) -> list[dict[str, object]]:
    """The log with contents numbered in order of appearance: a trace does not know the model that their names hash."""
    numbers: dict[str, int] = {}
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [{**e, "key": numbers.setdefault(e["key"], len(numbers))} if "key" in e else e for e in found]


def test_a_recorded_serve_run_replayed_as_a_trace_logs_the_same_events(command: Command, elsewhere: Path) -> None:
    first = [[(7 * number + 3 * i) % 200 for i in range(11)] for number in range(6)]
    answers = served_outputs(command, elsewhere / "first", first)
    second = [prompt + answer + [250, 251] for prompt, answer in zip(first, answers, strict=True)]
    again = served_outputs(command, elsewhere / "served", first + second)
    assert again[:6] == answers, "greedy answers do not depend on the batch"
    log = events(elsewhere / "served")
    assert {"admit", "evict"} <= {event["event"] for event in log}
    hit = read_result(elsewhere / "served")["hit_tokens"]
    assert hit > sum(len(prompt) for prompt in first), f"blocks of answers were hit too, not only of prompts: {hit}"

    from_recording = replayed(command, elsewhere, "served/recording.jsonl", "from-recording")
    assert events(from_recording) == log

    from framework.trace import main

    assert main(["convert", "served/recording.jsonl", "own.jsonl.gz"]) == 0
    from_own = replayed(command, elsewhere, "own.jsonl.gz", "from-own")
    assert events(from_own) == log
    for name in ("hit_tokens", "hit_blocks", "prompt_tokens", "output_tokens", "num_evictions", "num_steps"):
        assert read_result(from_own)[name] == read_result(elsewhere / "served")[name], name
