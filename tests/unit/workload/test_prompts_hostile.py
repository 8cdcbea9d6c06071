"""Prompt files that try everything: each ends in a request or in one sentence with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framework.errors import WorkloadError
from framework.types import Hint
from framework.workload import build


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


def test_a_file_without_a_request_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"p\.jsonl holds 0 requests"):
        read(tmp_path)
