"""Contents of prompts that are not text: which blocks they name, and whatever carries them from a file to a hit."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from paged_helpers import IMAGE, admit, prompt_with_contents, serve, shared

from framework.api import run
from framework.errors import InvalidArgument
from framework.paged.index import BlockHasher
from framework.registry.components import build_allocator, build_component
from framework.types import Contents, Namespace, as_contents, as_tokens
from framework_workloads.trace import open_trace
from framework_workloads.trace.own_format import as_trace

SIZE = 4


def names_of_vllm(tokens: list[int], space: Namespace) -> list[Any]:
    """Names of full blocks by vLLM 0.33's rule: the parent's, the tokens, the adapter, the salt in the first block, and
    of each content that overlaps the block its name and its start seen from the block's.

    Source: vllm/v1/core/kv_cache_utils.py, generate_block_hash_extra_keys.
    """
    names: list[Any] = []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        keys: list[Any] = [space.adapter]
        keys += [(name, first - start) for first, end, name in space.contents if first < start + SIZE and end > start]
        keys += [space.salt] * (start == 0)
        names.append((names[-1] if names else None, tuple(tokens[start : start + SIZE]), tuple(keys)))
    return names


@pytest.mark.parametrize("scheme", ["sha256", "polynomial"])
def test_prompts_share_the_blocks_that_they_share_in_vllm(scheme: str) -> None:
    draw, hasher = random.Random(5), BlockHasher(build_component("hash", scheme, {}), SIZE)
    prompts = [prompt_with_contents(draw) for _ in range(60)]
    ours = [[*hasher.of(as_tokens(tokens), space, None)[1]] for tokens, space in prompts]
    theirs = [names_of_vllm(tokens, space) for tokens, space in prompts]
    found = [(shared(ours[a], ours[b]), shared(theirs[a], theirs[b])) for a, b in combinations(range(60), 2)]
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert {count for count, _ in found} >= {0, 1, 2}, "some share something"


@pytest.mark.parametrize("name", ["prefix", "radix"])
def test_text_before_a_content_is_shared_and_the_content_with_its_own_kind(name: str) -> None:
    allocator = build_allocator(name, "lru", "constant", num_blocks=40, block_size=SIZE, max_model_len=64)
    prompt = as_tokens([*range(10, 15), *[IMAGE] * 6, *range(20, 23)])  # the image lies in tokens 5 to 10
    spaces = {image: Namespace(contents=((5, 11, image),)) for image in ("cat", "dog")}
    serve(allocator, 1, prompt, spaces["cat"])
    within = 0 if name == "prefix" else 1  # a tree shares single tokens, and those before the image are text
    assert serve(allocator, 2, prompt, spaces["dog"]) == 4 + within
    assert serve(allocator, 3, prompt) == 4 + within
    assert admit(allocator, 4, prompt, spaces["cat"]) == 12
    assert admit(allocator, 5, prompt, Namespace(contents=((5, 10, "cat"),))) == 8, "whose last placeholder is text"
    allocator.check()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("cat", "contents are a list"), ([[1, 2]], r"a content is \[start, end, name\]"),
        ([[1, 2, ""]], "a content is"), ([[1, 2, "\ud800"]], "a content is"), ([[True, 2, "a"]], "a content is"),
        ([[2, 2, "a"]], "content 'a' covers tokens 2 to before 2"), ([[-1, 2, "a"]], "covers tokens -1"),
        ([[3, 9, "a"]], "not within a prompt of 8 tokens"),
    ],
)  # fmt: skip
def test_contents_that_are_none_are_refused(value: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        as_contents(value, 8)
    assert as_contents([[3, 8, "b"], [0, 9 - 1, "a"]], 8) == ((0, 8, "a"), (3, 8, "b"))


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return sorted(found, key=lambda row: row.get("request", -1))


def test_a_run_of_prompts_with_contents_is_recorded_replayed_and_read_as_a_trace(tmp_path: Path) -> None:
    contents: list[Contents] = [(), ((5, 11, "cat"),), ((5, 11, "dog"),), ((5, 11, "cat"),), ((6, 11, "cat"),), ()]
    prompt = [*range(10, 15), *[IMAGE] * 6, *range(20, 29)]
    lines = [{"tokens": [*prompt, 30 + number], "max_tokens": 3, "contents": one}
             for number, one in enumerate(contents)]  # fmt: skip
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    parts: dict[str, Any] = {"allocator": {"name": "prefix"}, "cache": {"num_blocks": 60, "block_size": SIZE},
                             "engine": {"max_batch_requests": 1}}  # fmt: skip
    folders = {name: {"dir": str(tmp_path / name), "progress": False} for name in ("served", "replayed", "alone")}
    run({"mode": "serve", "workload": {"name": "prompts", "path": str(tmp_path / "p.jsonl")}, **parts,
         "run": {**folders["served"], "record": True}})  # fmt: skip
    hits = [row["cached_tokens"] for row in rows(tmp_path / "served", "requests.jsonl")]
    assert hits == [0, 4, 4, 20, 4, 20], "what stands before an image, and all where the image is the same"
    recording = tmp_path / "served/recording.jsonl"
    run({"mode": "replay", "workload": {"name": "recording", "path": str(recording)}, **parts,
         "run": folders["replayed"]})  # fmt: skip
    assert [row["cached_tokens"] for row in rows(tmp_path / "replayed", "requests.jsonl")] == hits
    assert [
        record.get("namespace", {}).get("contents") for record in rows(tmp_path / "served", "recording.jsonl")[1:]
    ] == [[[*one] for one in each] or None for each in contents]
    trace = list(open_trace(recording, block_tokens=SIZE))
    assert [request.namespace.contents for request in trace] == contents
    named = list(as_trace(trace, SIZE))
    assert not any(request.namespace.contents for request in named), "they are in the names of blocks"
    ids = [request.block_ids.tolist() for request in named]  # type: ignore[union-attr]
    assert [shared(ids[0], one) for one in ids] == [6, 1, 1, 1, 1, 5]
    assert shared(ids[1], ids[3]) == 5
