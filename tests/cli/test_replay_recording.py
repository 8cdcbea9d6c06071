"""A recorded serve run, replayed without its model: the same log, line by line, as a recording and as a trace."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from command_line import command as in_process
from processes import Command

from framework.results.reading import read_result
from framework_testing.checkpoints import make_checkpoint

SMALL = ("workload.num_requests=10", "workload.output_tokens=12", "run.check_requests=0", "run.progress=false")
PLAIN = ("workload.parallel_share=0", "workload.num_beam=0")
TIGHT = ("cache.num_blocks=30", "cache.block_size=8", "workload.prefix_tokens=24", "workload.suffix_tokens=20")
SAMPLES = ("workload.parallel_share=1", "workload.parallel_n=3", "workload.num_beam=0")
BEAMS = ("workload.parallel_share=0", "workload.num_beam=4", "workload.beam_width=3")
CASES = {
    "all of it": ("+allocator=prefix_cow", "+eviction=sieve", *TIGHT),
    "preempted": ("faults.preempt_every=3", "engine.chunk_size=5", *TIGHT),
    "samples": ("+allocator=cow", *SAMPLES),
    "beams in a small pool": ("+eviction=random", *BEAMS, *TIGHT),
    "contiguous": ("+allocator=contiguous", "cache.num_blocks=120"),
    "a policy that learns": ("+eviction=hazard", *PLAIN, *TIGHT),
    "arriving in a small pool": ("+eviction=w_tinylfu", "workload.rate_per_s=40", *TIGHT),
}
MUST_HAVE = {
    "all of it": "fork", "preempted": "preempt", "samples": "fork",
    "beams in a small pool": "evict", "a policy that learns": "evict", "arriving in a small pool": "evict",
}  # fmt: skip


def test_a_recording_keeps_the_requests_keys_and_answers_without_one_that_was_refused(
    command: Command, elsewhere: Path
) -> None:
    prompts = (("a", "hi", 3), ("b", "x" * 200, 3), ("c", "ho", 5))
    lines = [{"key": key, "prompt": prompt, "max_tokens": count} for key, prompt, count in prompts]
    (elsewhere / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("cache.num_blocks=8", "run.progress=false")
    status, _, errors = command(
        "workload=prompts", "workload.path=p.jsonl", *words, "run.record=true", "run.dir=served", "run.check_requests=0"
    )
    assert (status, "x" not in errors.split()) == (0, True), errors
    command.ok("mode=replay", "workload=recording", "workload.path=served/recording.jsonl", *words, "run.dir=replayed")
    rows = [json.loads(line) for line in (elsewhere / "replayed/requests.jsonl").read_text().splitlines()]
    assert {row["key"]: row["output_tokens"] for row in rows} == {"a": 3, "c": 5}, "the refused one is left out"


def events(folder: Path) -> list[str]:
    return (folder / "events.jsonl").read_text().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_the_replay_of_a_recorded_run_logs_the_same_events(command: Command, elsewhere: Path, case: str) -> None:
    parts = [word for word in CASES[case] if not word.lstrip("+").startswith("workload.")]
    command.ok(*SMALL, *CASES[case], "run.record=true", "run.events=true", "run.dir=served")
    command.ok(
        "mode=replay", "executor=none", "workload=recording", "workload.path=served/recording.jsonl",
        *parts, "run.events=true", "run.dir=replayed",
    )  # fmt: skip
    served, replayed = events(elsewhere / "served"), events(elsewhere / "replayed")
    for line in map(json.loads, (elsewhere / "served/recording.jsonl").read_text().splitlines()[1:]):
        asked = line["sampling"]
        assert len(line["outputs"]) == (asked["n"] if asked["beam_width"] == 1 else 0), line
    at = next((i for i, pair in enumerate(zip(served, replayed, strict=False)) if pair[0] != pair[1]), None)
    assert at is None, f"line {at}: served {served[at]}, replayed {replayed[at]}"
    assert len(served) == len(replayed) > 20, (len(served), len(replayed))
    kinds = Counter(line.split('"event":')[1].split('"')[1] for line in served)
    assert kinds[MUST_HAVE.get(case, "step")] > 0, f"nothing of interest happened: {kinds}"
    first, second = read_result(elsewhere / "served"), read_result(elsewhere / "replayed")
    for name in ("hit_tokens", "prompt_tokens", "hit_blocks", "num_evictions", "num_preemptions", "num_forks",
                 "num_copied_blocks", "output_tokens", "num_steps", "peak_used_blocks"):  # fmt: skip
        assert first[name] == second[name], (name, first[name], second[name])


def test_a_model_of_sliding_windows_frees_blocks_early_and_its_replay_does_too(
    command: Command, elsewhere: Path
) -> None:
    make_checkpoint(elsewhere / "mistral", "mistral", num_hidden_layers=2, sliding_window=20)
    work = ("workload.num_requests=8", "workload.output_tokens=60", "workload.prefix_tokens=24", "run.progress=false")
    pool = ("cache.num_blocks=72", "cache.block_size=4", "engine.chunk_size=16")
    command.ok(
        "model=mistral", *work, *pool, *PLAIN, "faults.poison=true", "run.record=true", "run.events=true",
        "run.dir=served",
    )  # fmt: skip
    served = read_result(elsewhere / "served")
    assert (served["dense_checked"], served["dense_mismatches"]) == (8, 0), served
    replay = ("mode=replay", "executor=none", "workload=recording", "workload.path=served/recording.jsonl")
    command.ok(*replay, *pool, "run.events=true", "run.dir=replayed")
    assert events(elsewhere / "served") == events(elsewhere / "replayed")
    assert served["num_preemptions"] == 0, "72 blocks of 4 are room for every window, not for every sequence"


POOL = ("+allocator=prefix_cow", "+eviction=lru", "cache.num_blocks=40", "cache.block_size=4")
ENGINE = ("engine.max_batch_requests=2", "engine.chunk_size=7", "run.progress=false", "run.events=true")


def write_prompts(path: Path, prompts: list[list[int]]) -> None:
    rows = ({"tokens": tokens, "max_tokens": 13, "stop": ["[", "0", "a", "e", "q"]} for tokens in prompts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def served_outputs(command: Command, folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Serve these prompts into `folder`, recorded; what the model answered."""
    write_prompts(folder.parent / "prompts.jsonl", prompts)
    command.ok(
        "workload=prompts", "workload.path=prompts.jsonl", *POOL, *ENGINE, "run.check_requests=0",
        "run.record=true", f"run.dir={folder.name}",
    )  # fmt: skip
    lines = (folder / "recording.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["outputs"][0] for line in lines]


def replayed(command: Command, elsewhere: Path, path: str, name: str) -> Path:
    command.ok(
        "mode=replay", "executor=none", "workload=trace", f"workload.path={path}", "replay.step_s=1", *POOL, *ENGINE,
        f"run.dir={name}",
    )  # fmt: skip
    return elsewhere / name


def numbered_events(folder: Path) -> list[dict[str, object]]:
    """The log with contents numbered in order of appearance: a trace does not know the model that their names hash."""
    numbers: dict[str, int] = {}
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [{**e, "key": numbers.setdefault(e["key"], len(numbers))} if "key" in e else e for e in found]


def test_a_recorded_serve_run_replayed_as_a_trace_logs_the_same_events(command: Command, elsewhere: Path) -> None:
    first = [[(7 * number + 3 * i) % 200 for i in range(11)] for number in range(6)]
    answers = served_outputs(command, elsewhere / "first", first)
    second = [prompt + answer + [250, 251] for prompt, answer in zip(first, answers, strict=True)]
    again = served_outputs(command, elsewhere / "served", first + second)
    assert min(map(len, again)) < max(map(len, again)) == 13, "some stop must be met"
    assert again[:6] == answers, "greedy answers do not depend on the batch"
    log = numbered_events(elsewhere / "served")
    assert {"admit", "evict"} <= {event["event"] for event in log}
    hit = read_result(elsewhere / "served")["hit_tokens"]
    assert hit > sum(len(prompt) for prompt in first), f"blocks of answers were hit too, not only of prompts: {hit}"

    from_recording = replayed(command, elsewhere, "served/recording.jsonl", "from-recording")
    assert numbered_events(from_recording) == log

    main = in_process("trace")

    assert main(["convert", "served/recording.jsonl", "--out", "own.jsonl.gz"]) == 0
    from_own = replayed(command, elsewhere, "own.jsonl.gz", "from-own")
    assert numbered_events(from_own) == log
    for name in ("hit_tokens", "hit_blocks", "prompt_tokens", "output_tokens", "num_evictions", "num_steps"):
        assert read_result(from_own)[name] == read_result(elsewhere / "served")[name], name
