"""Prompt files: a line a prompt, or JSON lines that say all a request can; faults named by file, line, field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from framework.errors import WorkloadError
from framework.sampling import Sampling
from framework.types import Hint, Namespace
from framework.workload import WorkloadRequest, build


def test_a_text_file_is_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffHello\r\n\r\n  \r\nGrüß Gott".encode())
    requests = build("prompts", {"path": str(path), "max_tokens": 7})
    assert [(request.prompt, request.key) for request in requests] == [("Hello", "line-1"), ("Grüß Gott", "line-4")]
    assert requests[0].sampling.max_tokens == 7


def test_a_json_line_may_say_everything_a_request_can(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    record = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 5, "temperature": 1, "top_k": 3, "top_p": 0.5, "seed": 9, "n": 2,
        "stop_token_ids": [1, 2], "stop": "\n",
        "ignore_eos": True, "logprobs": 2, "arrival_s": 1.5, "priority": 2, "tenant": "t", "session": "s", "key": "k",
        "salt": "x", "adapter": "a",
    }  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(record).encode() + b'\n{"tokens": [1, 2, 3]}\n'))
    full, plain = build("prompts", {"path": str(path)})
    assert full == WorkloadRequest(
        prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}),
        sampling=Sampling(
            max_tokens=5, temperature=1.0, top_k=3, top_p=0.5, seed=9, n=2, stop_token_ids=(1, 2), stop=("\n",),
            ignore_eos=True, logprobs=2,
        ),
        arrival_s=1.5, priority=2, tenant="t", session="s", key="k", namespace=Namespace(salt="x", adapter="a"),
    )  # fmt: skip
    assert plain.prompt.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert plain.prompt.dtype == np.int32  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "x"', "not a JSON object"),
        ('{"promt": "x"}', "promt: no such field; did you mean 'prompt'"),
        ('{"max_tokens": 3}', "want exactly one of prompt, messages, tokens, found none"),
        ('{"prompt": "x", "tokens": [1]}', "found prompt and tokens"),
        ('{"prompt": ""}', "prompt: want text that is not empty"),
        ('{"prompt": 3}', "prompt: want text"),
        ('{"prompt": "x", "max_tokens": "3"}', "max_tokens: want int, found str '3'"),
        ('{"prompt": "x", "max_tokens": true}', "max_tokens: want int, found bool"),
        ('{"prompt": "x", "max_tokens": 0}', "sampling.max_tokens must be an integer, at least 1 .* found 0"),
        ('{"prompt": "x", "temperature": -1}', "sampling.temperature must be"),
        ('{"prompt": "x", "arrival_s": -1}', "arrival_s must be finite and at least 0"),
        ('{"prompt": "x", "arrival_s": NaN}', "NaN"),
        ('{"tokens": []}', "at least one token"),
        ('{"tokens": [1.5]}', "tokens: token ids must be integers"),
        ('{"tokens": [-1]}', "tokens: token ids must be 0 to"),
        ('{"tokens": [true]}', "tokens: .*bool"),
        ('{"tokens": [99999999999999999999]}', "tokens: "),
        ('{"tokens": [[1], [2, 3]]}', "tokens: "),
        ('{"tokens": "12"}', "tokens: want a list"),
        ('{"messages": []}', "messages: want a list that is not empty"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\]: want an object of role and content"),
        ('{"messages": [{"role": "user", "content": 3}]}', r"messages\[0\].content: want text"),
        ('{"prompt": "x", "stop_token_ids": 3}', "stop_token_ids: want a list"),
        ('{"prompt": "x", "stop": [""]}', "sampling.stop must be at most 64 texts"),
    ],
)
def test_a_bad_json_line_names_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(WorkloadError, match=rf"p\.jsonl:2: .*{message}"):
        build("prompts", {"path": str(path)})


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "holds 0 requests"), (b"a\n\xff\n", r":2: not UTF-8"), (b"a\nb\0c\n", r":2: .*NUL")]
)
def test_a_bad_text_file_names_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=rf"p\.txt.*{message}"):
        build("prompts", {"path": str(path)})


def test_a_limit_reads_no_further_than_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [request.prompt for request in build("prompts", {"path": str(path), "limit": 1})] == ["a"]


def read(tmp_path: Path, *lines: object) -> list[object]:
    path = tmp_path / "p.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return list(build("prompts", {"path": str(path)}))


HUGE = 10**400


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (f'{{"prompt": "x", "temperature": {HUGE}}}', "temperature: want a number of 64 bits, found"),
        (f'{{"prompt": "x", "arrival_s": {HUGE}}}', "arrival_s: want a number of 64 bits, found"),
        (f'{{"prompt": "x", "top_k": {2**63}}}', "top_k: want a number of 64 bits, found"),
        (f'{{"prompt": "x", "priority": {10**30}}}', "priority: want a number of 64 bits, found"),
        (f'{{"tokens": [{HUGE}]}}', "tokens: "),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', r"messages\[0\].content: holds a lone surrogate"),
        ('{"messages": [{"role": "\\udfff", "content": "x"}]}', r"messages\[0\].role: holds a lone surrogate"),
        ('{"prompt": "a\\ud800b"}', "prompt: holds a lone surrogate at character 1"),
        ('{"prompt": "x", "session": "\\ud800"}', "session: holds a lone surrogate"),
        ('{"prompt": "x", "\\ud800": 1}', "no such field"),
        ('{"prompt": "x", "turn": -1.5}', "turn: want int"),
        ('{"prompt": "x", "hint": 2}', "hint.continues must be"),
        ('{"prompt": "x", "hint": {"when": 2}}', "a hint has continues and returns_s"),
        ('{"prompt": "x", "arrival_s": -1}', "arrival_s must be finite and at least 0"),
    ],
)
def test_a_hostile_line_is_one_sentence(tmp_path: Path, record: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=rf"p\.jsonl:2: .*{message}") as caught:
        read(tmp_path, {"prompt": "fine"}, record)
    str(caught.value).encode()  # can be printed anywhere


def test_two_requests_of_one_key_are_named_by_both_lines(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"p\.jsonl:3: key: 'a' names the request of line 1 too"):
        read(tmp_path, {"prompt": "x", "key": "a"}, {"prompt": "y"}, {"prompt": "z", "key": "a"})
    with pytest.raises(WorkloadError, match=r"p\.jsonl:2: key: 'line-1'"):
        read(tmp_path, {"prompt": "x"}, {"prompt": "y", "key": "line-1"})


def test_what_is_known_of_a_request_is_kept_and_unknown_is_none(tmp_path: Path) -> None:
    known, unknown = read(
        tmp_path,
        {"prompt": "x", "session": "s", "turn": 3, "category": "code", "hint": {"continues": 0.5}, "tenant": "t"},
        {"prompt": "y", "session": None},
    )
    assert (known.session, known.turn, known.category, known.hint) == ("s", 3, "code", Hint(continues=0.5))  # type: ignore[attr-defined]
    assert (unknown.session, unknown.turn, unknown.category, unknown.hint) == (None, None, None, None)  # type: ignore[attr-defined]
