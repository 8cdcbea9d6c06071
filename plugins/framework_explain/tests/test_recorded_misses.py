"""`python -m framework explain EVENTS LOG`: what a stream of KV events and a request log show of an engine's misses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import command

from framework import api
from framework.interfaces.workload import WorkloadRequest
from framework.types import Namespace
from framework_explain.account import OUTCOMES, Account
from framework_explain.recorded_misses import explain_stream
from framework_explain.table_of_misses import read_account
from framework_traces.writing import write_trace

main = command("explain")

SIZE = 4


def conversations(seed: int, count: int = 80) -> list[WorkloadRequest]:
    """Turns of conversations that grow by what was answered; some prompts end with a block, some are below one."""
    draw, known, found = random.Random(seed), dict[int, list[int]](), list[WorkloadRequest]()
    for number in range(count):
        talk = draw.randrange(8)
        prompt = known.get(talk, [talk] * draw.randint(1, 20)) + [100 + number] * draw.choice((1, 3, 4, 9))
        output = [1000 + 50 * number + at for at in range(draw.randint(1, 12))]
        found.append(
            WorkloadRequest(
                prompt=np.array(prompt, dtype=np.int32), output=np.array(output, dtype=np.int32),
                output_tokens=len(output), arrival_s=4.0 * number, session=str(talk), turn=number,
            )
        )  # fmt: skip
        known[talk] = prompt + output if len(prompt) < 60 else []
    return found


def recorded(folder: Path, requests: list[WorkloadRequest], **more: Any) -> tuple[Path, Path]:
    log = folder / "log.jsonl"
    write_trace(log, requests, block_tokens=SIZE)
    config: dict[str, Any] = {
        "mode": "replay", "workload": {"name": "trace", "path": str(log)},
        "cache": {"num_blocks": 40, "block_size": SIZE}, "run": {"dir": str(folder / "run")},
        "allocator": {"name": "prefix", "duplicates": "keep"}, "eviction": "lru",
        "observers": ["explain", "kv_events"], **more,
    }  # fmt: skip
    api.run(config)
    return folder / "run", log


def by_block(account: Account) -> dict[tuple[int, int], int]:
    """(request, place of a block that was evicted) -> the request that it was evicted for."""
    lost = account.evictions
    rows = zip(lost.request.tolist(), lost.depth.tolist(), lost.blocks.tolist(), lost.evicted_for.tolist(), strict=True)
    return {(request, at): number for request, first, count, number in rows for at in range(first, first + count)}


def rows(account: Account) -> dict[int, list[int]]:
    """Tokens of each outcome, by request."""
    return dict(zip(account.requests, account.tokens.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limits", [{"max_batch_requests": 1}, {"max_batch_requests": 3, "max_batch_tokens": 12}])
def test_each_request_has_the_causes_that_its_engine_found(tmp_path: Path, seed: int, limits: dict[str, int]) -> None:
    requests = conversations(seed)
    run, _ = recorded(tmp_path, requests, engine=limits)
    seen, _, unseen, _ = explain_stream(run / "kv_events.jsonl", requests, most_contents=2**20)
    truth = read_account(run)
    assert unseen == 0
    assert seen.totals("blocks") == truth.totals("blocks")
    assert rows(seen) == rows(truth)
    assert seen.tokens.sum(axis=1).tolist() == [request.input_tokens for request in requests]
    assert truth.totals("tokens")["evicted"] > 0
    if limits["max_batch_requests"] == 1:
        known, right = by_block(seen), by_block(truth)
        assert known.keys() == right.keys()
        said = {at: number for at, number in known.items() if number >= 0}  # -1: for an answer, whose is not said
        assert len(said) > len(known) / 3
        assert said == {at: right[at] for at in said}


@pytest.mark.parametrize(("duplicates", "make"), [("keep", "conversations"), ("merge", "documents")])
@pytest.mark.parametrize("seed", range(2))
def test_holes_in_a_prefix_are_read_as_the_engine_found_them(
    tmp_path: Path, seed: int, duplicates: str, make: str
) -> None:
    """What is resident behind a hole is computed again and stored no second time where a content is published once."""
    requests, allocator = globals()[make](seed), {"name": "prefix", "duplicates": duplicates}
    run, _ = recorded(tmp_path, requests, engine={"max_batch_requests": 1}, eviction="random", allocator=allocator)
    seen, _, unseen, unsure = explain_stream(run / "kv_events.jsonl", requests, most_contents=2**20)
    truth = read_account(run)
    assert truth.totals("tokens")["unreachable"] > 0, "no hole was made"
    assert rows(seen) == rows(truth)
    assert (unseen, unsure) == (0, 0), "nothing is unsure with one request at a time"


def test_requests_that_allow_another_reading_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests, limits = documents(0), {"max_batch_requests": 4, "max_batch_tokens": 12}
    run, log = recorded(tmp_path, requests, engine=limits, eviction="random")
    seen, _, _, unsure = explain_stream(run / "kv_events.jsonl", requests, most_contents=2**20)
    truth = rows(read_account(run))
    wrong = [number for number, row in rows(seen).items() if row != truth[number]]
    assert 0 < len(wrong) <= unsure < len(requests) / 2, (wrong, unsure)
    capsys.readouterr()
    assert main([str(run / "kv_events.jsonl"), str(log)]) == 0
    assert f"{unsure} of 60 requests ran beside others" in capsys.readouterr().err


def documents(seed: int) -> list[WorkloadRequest]:
    """Prompts that begin alike, and some again, all about at once; none repeats an answer."""
    draw, found = random.Random(seed), list[WorkloadRequest]()
    for number in range(60):
        fresh = [draw.randrange(4)] * draw.randint(1, 24) + [100 + number] * draw.choice((1, 3, 4, 9))
        prompt = found[-draw.choice((1, 2, 4))].prompt if number % 5 == 4 else np.array(fresh, dtype=np.int32)
        output = np.arange(draw.randint(1, 16), dtype=np.int32) + 1000 + 50 * number
        found.append(WorkloadRequest(prompt=prompt, output=output, output_tokens=len(output), arrival_s=0.02 * number))
    return found


@pytest.mark.parametrize(("seed", "every"), [(0, 0), (1, 3)])
def test_who_was_preempted_is_no_new_request(tmp_path: Path, seed: int, every: int) -> None:
    requests, pool = documents(seed), {"num_blocks": 16, "block_size": SIZE}
    limits: dict[str, Any] = {"engine": {"max_batch_requests": 3}, "faults": {"preempt_every": every}}
    run, _ = recorded(tmp_path, requests, cache=pool, **limits)
    seen, _, unseen, _ = explain_stream(run / "kv_events.jsonl", requests, most_contents=2**20)
    truth = read_account(run)
    assert unseen == 0
    assert truth.preempted_tokens
    assert seen.preempted_tokens == 0, "events do not show them"
    assert rows(seen) == rows(truth)


def stored(keys: str, tokens: Any, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """An event; a block's key is a letter."""
    plain = {"type": "BlockStored", "block_size": SIZE, "lora_id": None, "medium": "GPU"}
    return {**plain, "block_hashes": [*keys], "parent_block_hash": parent, "token_ids": [*map(int, tokens)], **more}


def removed(keys: str, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [*keys], "medium": "GPU", **more}


def streamed(folder: Path, *batches: list[dict[str, Any]]) -> Path:
    lines: list[Any] = [{"format": "kvlab-kv-events", "version": 1, "block_size": SIZE}]
    lines += [{"seq": at, "ts": at, "events": events} for at, events in enumerate(batches)]
    (folder / "kv_events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "kv_events.jsonl"


def causes(stream: Path, requests: list[WorkloadRequest]) -> list[dict[str, int]]:
    """Tokens of each outcome of each request, but for the end of its prompt."""
    seen, _, unseen, _ = explain_stream(stream, requests, most_contents=2**20)
    assert (unseen, sorted(seen.requests)) == (0, [*range(len(requests))])
    named = [dict(zip(OUTCOMES, row, strict=True)) for _, row in sorted(rows(seen).items())]
    return [{name: n for name, n in row.items() if n and name != "end of prompt"} for row in named]


def asked(num_tokens: int, **more: Any) -> WorkloadRequest:
    return WorkloadRequest(prompt=np.arange(num_tokens, dtype=np.int32), **{"output_tokens": 1, **more})


def test_adapters_groups_media_and_a_cleared_cache_are_not_confused(tmp_path: Path) -> None:
    prompt = [*range(3 * SIZE)]
    stream = streamed(
        tmp_path,
        [stored("ab", prompt[: 2 * SIZE])],
        [stored("AB", prompt[: 2 * SIZE], lora_name="one", extra_keys=[["one"], ["one"]])],
        [removed("a", medium="CPU"), removed("b", group_idx=1), stored("x", [7] * SIZE, medium="CPU"),
         stored("y", [8] * SIZE, group_idx=1)],
        [stored("c", prompt[2 * SIZE :], "b")],
        [removed("c"), {"type": "AllBlocksCleared"}],
        [stored("abc", prompt)],
    )  # fmt: skip
    adapted = asked(2 * SIZE + 1, namespace=Namespace(adapter="one"))
    assert causes(stream, [asked(2 * SIZE + 1), adapted, asked(3 * SIZE + 1), asked(3 * SIZE + 1)]) == [
        {"new": 2 * SIZE}, {"other namespace": 2 * SIZE}, {"hit": 2 * SIZE, "new": SIZE}, {"new": 3 * SIZE},
    ]  # fmt: skip


def test_images_of_equal_placeholders_are_kept_apart_by_their_extra_keys(tmp_path: Path) -> None:
    prompt = [*range(3 * SIZE)]
    images = [[None, [[name, 1]], [[name, 1 - SIZE]]] for name in ("cat", "dog")]
    stream = streamed(
        tmp_path, [stored("abc", prompt, extra_keys=images[0])],
        [stored("de", prompt[SIZE:], "a", extra_keys=images[1][1:])],
        [stored("f", prompt[SIZE : 2 * SIZE], "a")],
    )  # fmt: skip
    spaces = [Namespace(contents=((SIZE + 1, 2 * SIZE + 1, name),)) for name in ("cat", "dog", "dog")]
    found = causes(stream, [*(asked(3 * SIZE + 1, namespace=space) for space in spaces), asked(2 * SIZE + 1)])
    assert found == [
        {"new": 3 * SIZE}, {"hit": SIZE, "other namespace": 2 * SIZE}, {"hit": 3 * SIZE},
        {"hit": SIZE, "other namespace": SIZE},
    ]  # fmt: skip


def test_what_was_removed_before_a_request_of_the_same_step_looked_is_no_hit_of_it(tmp_path: Path) -> None:
    prompt = [*range(3 * SIZE)]
    stream = streamed(tmp_path, [stored("abc", prompt)], [removed("c"), stored("c", prompt[2 * SIZE :], "b")])
    assert causes(stream, [asked(3 * SIZE + 1), asked(3 * SIZE + 2)])[1] == {"hit": 2 * SIZE, "evicted": SIZE}


def test_a_prompt_in_chunks_goes_on_though_it_is_answered_with_nothing(tmp_path: Path) -> None:
    prompt = [*range(3 * SIZE)]
    parts = [[stored(key, prompt[at * SIZE : (at + 1) * SIZE], parent)] for at, (key, parent) in enumerate(
        (("a", None), ("b", "a"), ("c", "b")))]  # fmt: skip
    found = causes(streamed(tmp_path, *parts), [asked(2 * SIZE, output_tokens=0), asked(3 * SIZE + 1)])
    assert found == [{"new": SIZE}, {"hit": 2 * SIZE, "new": SIZE}], "its last block is computed in any case"


def test_who_is_admitted_after_the_next_of_the_log_is_admitted_once(tmp_path: Path) -> None:
    prompt = np.arange(5 * SIZE, dtype=np.int32)
    requests = [WorkloadRequest(prompt=part, output_tokens=1) for part in (prompt[: 3 * SIZE], prompt)]
    stream = streamed(tmp_path, [stored("abcde", prompt)], [stored("c", prompt[2 * SIZE : 3 * SIZE], "b")])
    seen, _, unseen, _ = explain_stream(stream, requests, most_contents=2**20)
    assert (seen.requests, unseen) == ([1, 0], 0)
    assert seen.totals("tokens")["hit"] == 2 * SIZE


def test_the_command_says_of_a_recorded_pair_what_it_says_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = recorded(tmp_path, conversations(7), engine={"max_batch_requests": 1})
    capsys.readouterr()
    assert main([str(run), "--json"]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert main([str(log), str(run / "kv_events.jsonl"), "--num-blocks", "40", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert {**seen, "evicted_by": "lru"} == truth
    assert main([str(log), str(run / "kv_events.jsonl"), "--limit", "5", "--json"]) == 0
    few = json.loads(capsys.readouterr().out)
    assert sum(few["tokens"].values()) == sum(request.input_tokens for request in conversations(7)[:5])


def test_requests_that_the_stream_does_not_show_are_left_out_and_counted(tmp_path: Path) -> None:
    requests = conversations(3)
    run, _ = recorded(tmp_path, requests, engine={"max_batch_requests": 1})
    other = WorkloadRequest(prompt=np.full(9, 77, dtype=np.int32), output_tokens=1)
    seen, _, unseen, _ = explain_stream(
        run / "kv_events.jsonl", [*requests[:9], other, *requests[9:]], most_contents=2**20
    )
    assert (unseen, len(seen.requests)) == (1, len(requests))
    assert 9 not in seen.requests


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: lines[:3] + lines[4:], "batches 2 to 2 are missing"),
        (
            lambda lines: [line.replace('"token_ids":[', '"token_ids":[5,') for line in lines],
            "record_events --tokens` keeps",
        ),
        (lambda lines: lines[:1], "no block was stored"),
    ],
    ids=["gap", "tokens", "empty"],
)
def test_a_stream_that_cannot_be_explained_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any, says: str
) -> None:
    run, log = recorded(tmp_path, conversations(1), engine={"max_batch_requests": 1})
    stream = run / "kv_events.jsonl"
    lines = damage(stream.read_text().splitlines())
    lines[0] = lines[0].replace(f'"block_size":{SIZE}', '"block_size":0')
    stream.write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert main([str(stream), str(log)]) == 2
    assert says in capsys.readouterr().err


def test_a_log_of_another_engine_and_one_without_tokens_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = recorded(tmp_path, conversations(3), engine={"max_batch_requests": 1})
    others = [WorkloadRequest(prompt=np.full(9, 77 + n, dtype=np.int32), output_tokens=1) for n in range(3)]
    write_trace(tmp_path / "other.jsonl", others, block_tokens=SIZE)
    assert main([str(run / "kv_events.jsonl"), str(tmp_path / "other.jsonl"), "--json"]) == 2
    assert "none of the 3 requests" in capsys.readouterr().err
    first, rest = log.read_text().split("\n", 1)
    log.write_text(json.dumps(json.loads(first) | {"private": True}) + "\n" + rest)
    assert main([str(run / "kv_events.jsonl"), str(log)]) == 2
    err = capsys.readouterr().err
    assert "was recorded without tokens" in err
    assert '"tokens": true' in err
