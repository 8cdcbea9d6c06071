"""The workloads without a tree of prompts: conversations of text, lone prompts, and one shared prefix."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from synthetic_workloads import common_prefix

from framework import registry
from framework.errors import ConfigError, UnknownPlugin
from framework.sampling import Sampling
from framework.workload import build


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
    assert common_prefix(texts[0], texts[2]) >= 100
    assert common_prefix(texts[0], texts[1]) < 100


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
        ("chat", {"num_requests": 0}, "must be 1 to 10000000, found 0"),
        ("chat", {"num_requests": "many"}, "must be a valid integer, found 'many'"),
        ("chat", {"num_requests": True}, "must be a number, found True"),
        ("chat", {"num_requests": 2.5}, "must be a valid integer, found 2.5"),
        ("chat", {"parallel_share": 1.5}, "must be 0 to 1, found 1.5"),
        ("chat", {"rate_per_s": -1.0}, "must be 0 to "),
        ("chat", {"rate_per_s": float("nan")}, "must be 0 to 10000000, found nan"),
        ("chat", {"num_beam": 99}, "0 to 48, found 99"),
        ("chat", {"suffix_tokens": 0}, "must be 2 to 10000000, found 0"),
        ("no_sharing", {"min_tokens": 10, "max_tokens": 9}, "must be 10 to 10000000, found 9"),
        ("no_sharing", {"vocab_size": 1}, "2 to 1073741824, found 1"),
        ("shared_prefix", {"unique_tokens": 0}, "must be 1 to"),
        ("prompts", {}, "needs a value for 'path'"),
        ("system_prompts", {"num_requests": 0}, r"num_requests .* 1 to 10000000, found 0"),
        ("rag", {"documents_per_request": 65}, "1 to 64, found 65"),
        ("conversations", {"turns": 0.5}, r"turns .* 1 to"),
        ("agents", {"spread": -1.0}, r"spread .* 0 to 3"),
        ("agents", {"burstiness": -1.0}, r"burstiness .* 0 to"),
        ("forks", {"beam_share": 1.5}, "0 to 1"),
        ("forks", {"temperature": 0.0}, "greedy ones are all equal"),
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


@pytest.mark.parametrize("num_requests", [1, 2, 3])
def test_a_chat_of_few_requests_needs_no_other_option(num_requests: int) -> None:
    requests = list(build("chat", {"num_requests": num_requests}, seed=0))
    beams = [request.sampling.beam_width for request in requests if request.sampling.beam_width > 1]
    assert (len(requests), len(beams)) == (num_requests, min(2, num_requests))
