"""Workloads: seeded and the same anywhere, files read strictly, every fault named by file, line and field."""

import gzip
import itertools
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from framework import registry
from framework.errors import ConfigError, InvalidArgument, InvalidTokens, UnknownPlugin, WorkloadError
from framework.sampling import Sampling
from framework.types import Namespace
from framework.workload import WorkloadRequest, build

FINGERPRINT = """
import hashlib
from framework.workload import build
for name in ("chat", "no_sharing", "shared_prefix"):
    requests = build(name, {"rate_per_s": 3.0}, seed=7)
    prompts = [r.prompt if isinstance(r.prompt, str) else r.prompt.tolist() for r in requests]
    text = repr((prompts, [(r.sampling, r.arrival_s) for r in requests]))
    print(hashlib.sha256(text.encode()).hexdigest())
"""


def _common_prefix(a: str, b: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize("name", ["chat", "no_sharing", "shared_prefix"])
def test_the_seed_alone_decides(name: str) -> None:
    assert build(name, seed=3) == build(name, seed=3)
    assert build(name, seed=3) != build(name, seed=4)


def test_the_same_seed_is_the_same_workload_under_any_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1, outputs


def test_the_default_chat_forks_beams_and_shares() -> None:
    requests = build("chat", seed=0)
    assert len(requests) == 48
    prefixes = Counter(str(request.prompt)[:192] for request in requests)
    assert len(prefixes) == 4, prefixes
    kinds = Counter((request.sampling.n, request.sampling.beam_width) for request in requests)
    assert kinds[(1, 4)] == 2, kinds
    assert sum(count for (n, _), count in kinds.items() if n > 1) >= 4, kinds
    assert all(request.sampling.temperature > 0 for request in requests if request.sampling.n > 1)
    assert all(request.arrival_s == 0 for request in requests)
    assert len({request.key for request in requests}) == 48


def test_a_later_turn_repeats_its_conversation() -> None:
    requests = build("chat", {"turns": 3, "num_requests": 12}, seed=0)
    sessions: dict[str, list[str]] = {}
    for request in requests:
        sessions.setdefault(request.session, []).append(str(request.prompt))
    assert len(sessions) == 4, list(sessions)
    for prompts in sessions.values():
        for earlier, later in itertools.pairwise(prompts):
            assert later.startswith(earlier), (earlier, later)


def test_system_prompts_have_the_length_asked_for() -> None:
    requests = build("chat", {"prefix_tokens": 100, "num_prefixes": 2, "turns": 1, "num_requests": 8}, seed=1)
    texts = [str(request.prompt) for request in requests]
    assert all(text.isascii() for text in texts)
    assert _common_prefix(texts[0], texts[2]) >= 100
    assert _common_prefix(texts[0], texts[1]) < 100


def test_lengths_and_shares_of_the_token_workloads_are_exact() -> None:
    ragged = build("no_sharing", {"num_requests": 200, "min_tokens": 5, "max_tokens": 9, "vocab_size": 50}, seed=0)
    assert {len(request.prompt) for request in ragged} == {5, 6, 7, 8, 9}
    assert max(int(np.max(request.prompt)) for request in ragged) < 50  # type: ignore[arg-type]
    shared = build(
        "shared_prefix", {"num_requests": 5, "prefix_tokens": 32, "unique_tokens": 8, "new_tokens": 3}, seed=0
    )
    heads = {request.prompt[:32].tobytes() for request in shared}  # type: ignore[union-attr]
    tails = {request.prompt[32:].tobytes() for request in shared}  # type: ignore[union-attr]
    assert (len(heads), len(tails), {len(request.prompt) for request in shared}) == (1, 5, {40})
    assert all(request.sampling == Sampling(max_tokens=3, ignore_eos=True) for request in shared)


def test_a_rate_changes_when_requests_come_but_not_what_they_are() -> None:
    at_once, poisson = build("chat", seed=5), build("chat", {"rate_per_s": 10.0}, seed=5)
    assert [request.prompt for request in at_once] == [request.prompt for request in poisson]
    times = [request.arrival_s for request in poisson]
    assert times == sorted(times)
    assert 0.5 < times[-1] / (47 / 10.0) < 2, times[-1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chatt", {}, "no workload named 'chatt'; installed: agent_text, agents, chat"),
        ("chat", {"num_request": 3}, "did you mean 'num_requests'"),
        ("chat", {"num_requests": 0}, "must be at least 1, found 0"),
        ("chat", {"num_requests": "many"}, "must be int, found 'many'"),
        ("chat", {"num_requests": True}, "must be int, found True"),
        ("chat", {"num_requests": 2.5}, "must be int, found 2.5"),
        ("chat", {"parallel_share": 1.5}, "must be 0 to 1, found 1.5"),
        ("chat", {"rate_per_s": -1.0}, "at least 0"),
        ("chat", {"rate_per_s": float("nan")}, "must be finite and at least 0, found nan"),
        ("chat", {"num_beam": 99}, "0 to 48, found 99"),
        ("chat", {"suffix_tokens": 0}, "at least 2, found 0"),
        ("no_sharing", {"min_tokens": 10, "max_tokens": 9}, "at least 10, found 9"),
        ("no_sharing", {"vocab_size": 1}, "2 to 1073741824, found 1"),
        ("shared_prefix", {"unique_tokens": 0}, "at least 1"),
        ("prompts", {}, "needs a value for 'path'"),
    ],
)
def test_a_setting_out_of_range_is_named_with_what_is_allowed(name: str, options: dict, message: str) -> None:
    with pytest.raises(UnknownPlugin if name == "chatt" else ConfigError, match=message):
        build(name, options)


def test_no_yaml_repeats_what_a_constructor_says(repository: Path) -> None:
    import yaml

    for file in (repository / "conf" / "workload").glob("*.yaml"):
        options = yaml.safe_load(file.read_text())
        parameters = registry.own_options(registry.load("workload", options.pop("name"))).parameters
        assert options == {p.name: "???" if p.required else p.default for p in parameters}, file


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
    ("content", "message"),
    [(b"", "holds 0 requests"), (b"a\n\xff\n", r":2: not UTF-8"), (b"a\nb\0c\n", r":2: .*NUL")],
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
        (b'{"timestamp": "1", "input": "a", "output": "", "session_id": "s"}', "timestamp: want int, found str"),
        (b'{"timestamp": 1, "output": "", "session_id": "s"}', "input: want str, found NoneType"),
        (b'{"timestamp": 1, "input": "", "output": "", "session_id": "s"}', "input: an empty prompt.*skip_empty=true"),
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
    with pytest.raises(WorkloadError, match="an empty prompt"):
        build("agent_text", {"path": str(path)})
    requests = build("agent_text", {"path": str(path), "skip_empty": True})
    assert len(requests) == 1566, "1,619 recorded calls, 53 of them with an empty prompt"
    last: dict[str, str] = {}
    shared = total = 0
    for request in requests:
        text = str(request.prompt)
        shared += _common_prefix(last.get(request.session, ""), text)
        total += len(text)
        last[request.session] = text
    assert shared / total > 0.5, f"{shared} of {total} characters repeat their session's call before"


def test_a_request_keeps_its_own_copy_of_its_tokens() -> None:
    tokens = np.array([1, 2, 3], dtype=np.int32)
    request = WorkloadRequest(prompt=tokens)
    tokens[0] = 9
    assert request.prompt.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="read-only"):
        request.prompt[0] = 5  # type: ignore[index]


@pytest.mark.parametrize("prompt", ["", (), np.empty(0, dtype=np.int32)])
def test_an_empty_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidArgument, match="at least one token"):
        WorkloadRequest(prompt=prompt)  # type: ignore[arg-type]


def test_token_ids_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidTokens):
        WorkloadRequest(prompt=np.array([0.5]))  # type: ignore[arg-type]
