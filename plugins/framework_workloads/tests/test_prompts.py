"""Prompt files and recorded agents: what each line asks for, and faults named by file, line and field."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from synthetic_workloads import common_prefix

from framework.errors import WorkloadError
from framework.model.tokenizer import ByteTokenizer, CheckpointTokenizer, encode
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
        "salt": "x", "adapter": "a", "turn": 3, "category": "code", "hint": {"continues": 0.5},
        "contents": [[4, 9, "b"], [1, 5, "a"]],
    }  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(record).encode() + b'\n{"tokens": [1, 2, 3], "session": null}\n'))
    full, plain = build("prompts", {"path": str(path)})
    assert full == WorkloadRequest(
        prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}),
        sampling=Sampling(
            max_tokens=5, temperature=1.0, top_k=3, top_p=0.5, seed=9, n=2, stop_token_ids=(1, 2), stop=("\n",),
            ignore_eos=True, logprobs=2,
        ),
        arrival_s=1.5, priority=2, tenant="t", session="s", key="k", turn=3,
        namespace=Namespace(salt="x", adapter="a", contents=((1, 5, "a"), (4, 9, "b"))),
        category="code", hint=Hint(continues=0.5),
    )  # fmt: skip
    assert plain.prompt.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert plain.prompt.dtype == np.int32  # type: ignore[union-attr]
    assert (plain.session, plain.turn, plain.category, plain.hint) == (None, None, None, None)


def read(tmp_path: Path, *lines: object) -> list[WorkloadRequest]:
    path = tmp_path / "p.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return list(build("prompts", {"path": str(path)}))


HUGE = 10**400


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "x"', "not a JSON object"),
        ('{"promt": "x"}', "promt: no such field; did you mean 'prompt'"),
        ('{"prompt": "x", "\\ud800": 1}', "no such field"),
        ('{"max_tokens": 3}', "prompt: want exactly one of prompt, messages, tokens, found none"),
        ('{"prompt": "x", "tokens": [1]}', "found prompt and tokens"),
        ('{"prompt": ""}', "prompt: want text that is not empty"),
        ('{"prompt": 3}', "prompt: want text"),
        ('{"prompt": "a\\ud800b"}', "prompt: holds a lone surrogate at character 1"),
        ('{"prompt": "x", "max_tokens": true}', "sampling.max_tokens must be an integer, at least 1 .* found True"),
        (f'{{"prompt": "x", "temperature": {HUGE}}}', "sampling.temperature must be"),
        ('{"prompt": "x", "stop": [""]}', "sampling.stop must be at most 64 texts"),
        ('{"prompt": "x", "arrival_s": -1}', "arrival_s: expected a finite number, at least 0"),
        (f'{{"prompt": "x", "arrival_s": {HUGE}}}', "arrival_s: expected a finite number"),
        ('{"prompt": "x", "arrival_s": NaN}', "NaN"),
        (f'{{"prompt": "x", "priority": {10**30}}}', "priority: expected"),
        ('{"prompt": "x", "session": "\\ud800"}', "session: holds a lone surrogate"),
        ('{"prompt": "x", "turn": -1.5}', "turn: expected a whole number"),
        ('{"prompt": "x", "hint": 2}', "hint: hint.continues must be"),
        ('{"prompt": "x", "hint": {"when": 2}}', "hint: a hint has continues, returns_s and deadline_s"),
        ('{"tokens": [1, 2], "contents": [[1, 3, "a"]]}', "contents: content 'a' covers .* a prompt of 2 tokens"),
        ('{"tokens": []}', "at least one token"),
        ('{"tokens": [1.5]}', "tokens: expected a flat list of whole numbers"),
        ('{"tokens": [-1]}', "tokens: expected a flat list of whole numbers, 0 to"),
        ('{"tokens": [true]}', "tokens: expected a flat list"),
        (f'{{"tokens": [{HUGE}]}}', "tokens: expected a flat list"),
        ('{"tokens": [[1], [2, 3]]}', "tokens: expected a flat list"),
        ('{"tokens": "12"}', "tokens: expected a list"),
        ('{"messages": []}', "messages: want a list that is not empty"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\]: want an object of role and content"),
        ('{"messages": [{"role": "user", "content": 3}]}', r"messages\[0\].content: want text"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', r"messages\[0\].content: holds a lone surrogate"),
        ('{"messages": [{"role": "assistant", "content": null}]}', r"messages\[0\].content: want text"),
        ('{"messages": [{"role": "user", "content": "a", "tool_calls": [3]}]}', r"tool_calls: want a list of objects"),
        ('{"messages": [{"role": "user", "content": "a", "audio": 1}]}', r"messages\[0\].audio: want role, content"),
        ('{"custom_id": "a", "body": []}', "body: a line of OpenAI's batch format has an object there"),
        ('{"custom_id": "a", "body": {"prompt": "x", "tools": [{}]}}', "body.tools: OpenAI's, and not served here"),
        ('{"conversations": [{"from": "bing", "value": "x"}]}', r"conversations\[0\].from: want one of human, user"),
        ('{"conversations": 3}', "conversations: want a list of objects of from and value"),
    ],
)
def test_a_bad_json_line_is_one_sentence_of_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=rf"p\.jsonl:2: .*{message}") as caught:
        read(tmp_path, {"prompt": "fine"}, line)
    str(caught.value).encode()  # can be printed anywhere


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


def test_two_requests_of_one_key_are_named_by_both_lines(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"p\.jsonl:3: key: 'a' names the request of line 1 too"):
        read(tmp_path, {"prompt": "x", "key": "a"}, {"prompt": "y"}, {"prompt": "z", "key": "a"})
    with pytest.raises(WorkloadError, match=r"p\.jsonl:2: key: 'line-1'"):
        read(tmp_path, {"prompt": "x"}, {"prompt": "y", "key": "line-1"})


def _agent_lines(session: str, start_us: int, inputs: list[str]) -> bytes:
    rows = [
        {"timestamp": start_us + index * 500_000, "input": text, "output": "o", "session_id": session}
        for index, text in enumerate(inputs)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_agent_sessions_of_a_folder_and_of_an_archive_are_the_same_requests(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    for family, session, start in (("swe", "s1", 10**6), ("chat", "s2", 1_200_000)):
        (folder / family).mkdir(parents=True)
        (folder / family / f"{session}.jsonl").write_bytes(_agent_lines(session, start, ["abc", "abcd"]))
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as archive:
        archive.add(folder, ".")
    options = {"use_times": True, "max_prompt_chars": 3}
    unpacked = build("agent_text", {**options, "path": str(folder)})
    packed = build("agent_text", {**options, "path": str(tmp_path / "a.tar.xz")})
    assert packed == unpacked
    assert [(request.session, request.prompt) for request in packed] == [
        ("s1", "abc"), ("s2", "abc"), ("s1", "abc"), ("s2", "abc"),
    ]  # fmt: skip
    assert [request.arrival_s for request in packed] == pytest.approx([0.0, 0.2, 0.5, 0.7])
    only = build("agent_text", {"path": str(folder), "family": "swe", "limit": 1})
    assert [(request.session, request.arrival_s) for request in only] == [("s1", 0.0)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"timestamp": "x", "input": "a", "output": "", "session_id": "s"}', "timestamp: expected a whole number"),
        (b'{"timestamp": 1, "output": "", "session_id": "s"}', "input: want text that is not empty, found NoneType"),
        (
            b'{"timestamp": 1, "input": "", "output": "", "session_id": "s"}',
            "input: want .*skip_empty=true",
        ),
        (b'{"timestamp": 1, "inp', "not a JSON object"),
    ],
)
def test_a_bad_agent_line_names_file_line_and_field(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(_agent_lines("s", 1, ["a"]) + line)
    with pytest.raises(WorkloadError, match=rf"s\.jsonl:2: .*{message}"):
        build("agent_text", {"path": str(path)})


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    path.write_bytes(b"no archive")
    with pytest.raises(WorkloadError, match=r"a\.tar\.xz: cannot be read"):
        build("agent_text", {"path": str(path)})


def test_the_recorded_agents_are_read_whole_and_share_their_prefixes(traces: Path) -> None:
    path = traces / "lmcache-agent-trace_text.tar.xz"
    if not path.exists():
        pytest.skip(f"no {path.name} among the traces")
    with pytest.raises(WorkloadError, match="skip_empty"):
        build("agent_text", {"path": str(path)})
    requests = build("agent_text", {"path": str(path), "skip_empty": True})
    assert len(requests) == 1566, "1,619 recorded calls, 53 of them with an empty prompt"
    last: dict[str, str] = {}
    shared = total = 0
    for request in requests:
        text = str(request.prompt)
        shared += common_prefix(last.get(request.session, ""), text)
        total += len(text)
        last[request.session] = text
    assert shared / total > 0.5, f"{shared} of {total} characters repeat their session's call before"


def test_a_batch_file_of_openai_is_read(tmp_path: Path) -> None:
    """It was: custom_id: no such field; did you mean 'stop_token_ids'?"""
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 9,
            "temperature": 0.5, "logprobs": True, "top_logprobs": 2, "stream": True}  # fmt: skip
    chat, text = read(
        tmp_path,
        {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": body},
        {"custom_id": "a-2", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 3}},
    )
    assert (chat.key, chat.prompt) == ("a-1", ({"role": "user", "content": "Hi"},))
    assert chat.sampling == Sampling(max_tokens=9, temperature=0.5, logprobs=2)
    assert (text.key, text.prompt, text.sampling.max_tokens) == ("a-2", "x", 3)


def test_a_custom_row_of_vllm_is_read(tmp_path: Path) -> None:
    (request,) = read(tmp_path, {"prompt": "x", "output_tokens": 5})
    assert (request.prompt, request.sampling.max_tokens) == ("x", 5)


SHARE_GPT = [
    {"id": "c1", "conversations": [{"from": "gpt", "value": "lost"}, {"from": "human", "value": "one"},
                                   {"from": "gpt", "value": "1"}, {"from": "human", "value": "two"}]},
    {"id": "c2", "conversations": [{"from": "human", "value": "three"}, {"from": "gpt", "value": "3"}]},
]  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_the_array_of_sharegpt_is_a_request_a_question(indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    path.write_text(json.dumps(SHARE_GPT, indent=indent))
    found = build("prompts", {"path": str(path)})
    assert [(one.session, one.turn, len(one.prompt or ())) for one in found] == [
        ("c1", 0, 1),
        ("c1", 1, 3),
        ("c2", 0, 1),
    ]
    assert found[1].prompt == (
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"},
    )  # fmt: skip
    assert len({one.key for one in found}) == 3
    for damaged, says in (
        ('[{"prompt": "x"}, 3]', "entry 2 of its array is no JSON object"),
        ('[{"prompt": "x"}', "cut short"),
        ('[{"prompt": "x"} 3]', "cut short"),
        ("[{", "entry 1 of its array is no JSON"),
    ):
        path.write_text(damaged)
        with pytest.raises(WorkloadError, match=says):
            build("prompts", {"path": str(path)})


def test_a_chat_with_tool_calls_goes_through_the_chat_template(tmp_path: Path) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
    ]
    (request,) = read(tmp_path, {"messages": messages})
    assert request.prompt == (messages[0], {**messages[1], "content": ""}, messages[2])
    tiny = ByteTokenizer()
    assert b'"name": "add"' in bytes(token for token in encode(tiny, request.prompt) if token < 256)
    called = "{% for c in m.tool_calls or [] %}[{{ c.function.name }}({{ c.function.arguments }})]{% endfor %}"
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}" + called + "{{ m.tool_call_id or '' }}{% endfor %}"
    )
    whole = object.__new__(CheckpointTokenizer)
    whole._template, whole._special = template, {}
    assert whole.render_chat(request.prompt) == '<user>1 + 1?<assistant>[add({"a": 1})]<tool>2t1'
