"""The user's literal choices, in both spellings, in each way of asking, from another directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from framework import registry
from framework.config.hydra.compose import compose

QUICK = ("backend=gather", "model=tiny", "workload=chat")

EXPERIMENT = """\
# @package _global_
defaults:
  - override /allocator: prefix
  - override /eviction: fifo
cache:
  num_blocks: 77
allocator:
  watermark: 0.5
"""

# words, what the configuration then says
SPELLINGS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("+allocator=prefix",), {"allocator.name": "prefix", "allocator.watermark": 0.01}),
    ((), {"allocator.name": "prefix_cow", "eviction.name": "lru", "hash.name": "sha256"}),
    (("+allocator.watermark=0.02", "+allocator=prefix"), {"allocator.name": "prefix", "allocator.watermark": 0.02}),
    (("experiment=x", "eviction=lru"), {"allocator.watermark": 0.5, "eviction.name": "lru"}),
    (("+experiment=x", "+allocator=cow"), {"allocator.name": "cow", "eviction.name": "fifo", "cache.num_blocks": 77}),
    (("+model=/data/my model",), {"model.name": "checkpoint", "model.path": "/data/my model"}),
    (("+workload=prompts.txt", "+workload.limit=3"), {"workload.path": "prompts.txt", "workload.limit": 3}),
]


@pytest.fixture
def conf(tmp_path: Path) -> str:
    folder = tmp_path / "more"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "x.yaml").write_text(EXPERIMENT)
    return str(folder)


@pytest.mark.parametrize(("words", "expected"), SPELLINGS, ids=[" ".join(words) for words, _ in SPELLINGS])
def test_a_choice_means_the_same_alone_under_multirun_composed_and_shown(
    words: Any, expected: Any, command: Any, runs: list[Any], conf: str
) -> None:
    words = [*words, "backend=gather"]
    for options in ((), ("-m", "run.progress=false"), ("--cfg", "job")):
        status, out, err = command("--config-dir", conf, *options, *words)
        assert (status, err) == (0, ""), err
    assert len(runs) == 2
    for config in (*runs, yaml.safe_load(out), compose(words, config_dir=conf)):
        node = OmegaConf.create(config)
        assert {key: OmegaConf.select(node, key) for key in expected} == expected, OmegaConf.to_yaml(node)


@pytest.mark.parametrize(
    ("words", "key", "expected"),
    [
        (("+allocator=glob(*)",), "allocator.name", list(registry.names("allocator"))),
        (("eviction=lru,fifo", "cache.block_size=8,16"), "cache.block_size", [8, 16, 8, 16]),
        (("model=/a/one,/a/two",), "model.path", ["/a/one", "/a/two"]),
    ],
)
def test_what_a_list_or_a_pattern_names_is_swept(
    words: Any, key: str, expected: list[Any], command: Any, runs: list[Any]
) -> None:
    status, _, err = command("-m", "run.progress=false", "backend=gather", "workload=chat", *words)
    assert (status, err) == (0, ""), err
    assert [OmegaConf.select(OmegaConf.create(run), key) for run in runs] == expected


def test_the_configuration_is_a_plain_resolved_dict(command: Any, runs: list[Any]) -> None:
    command(*QUICK)

    def types(node: Any) -> set[type]:
        if isinstance(node, dict):
            return {dict}.union(*(types(value) for value in node.values()))
        return {type(node)}

    assert types(runs[0]) <= {dict, list, tuple, str, int, float, bool, type(None)}, runs[0]
    assert "hydra" not in runs[0]
