"""A model in parts computes what the whole model computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from thread_ranks import check_parts, noisy

from framework.errors import InvalidArgument, ModelError
from framework.model.config import ModelConfig
from framework.model.dense import dense_logits
from framework.model.families import read_config
from framework.model.loading import TINY_CONFIG, ModelSource
from framework.model.shard import Shard
from framework_testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 45,
}
CONFIGS = {
    "qwen3": ModelConfig(family="qwen3", qk_norm=True, **SHAPE),
    "qwen2, biases, tied": ModelConfig(family="qwen2", attention_bias=True, tie_word_embeddings=True, **SHAPE),
    "llama, every bias": ModelConfig(family="llama", attention_bias=True, output_bias=True, mlp_bias=True, **SHAPE),
    "as many kv heads": ModelConfig(family="llama", **{**SHAPE, "num_kv_heads": 8}),
    "one kv head": ModelConfig(family="mistral", sliding_window=7, **{**SHAPE, "num_kv_heads": 1}),
}


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_compute_the_logits_of_the_whole(name: str, size: int) -> None:
    assert sum(len(Shard(rank, size).split(101)) for rank in range(size)) == 101
    check_parts(CONFIGS[name], size, [3, 100, 50, 51, 0, 99, 12, 13, 14, 77])


@pytest.mark.parametrize("kind", ["tiny", "random"])
def test_drawn_weights_are_parts_of_one_whole_however_many_ranks(kind: str) -> None:
    source = ModelSource(name=kind, config=TINY_CONFIG, seed=5)
    whole = source.decoder("cpu")
    for rank in range(4):
        shard = Shard(rank, 4)
        for name, part in source.decoder("cpu", shard).named_parameters():
            assert torch.equal(part, shard.cut(whole.get_parameter(name), whole.division(name))), (rank, name)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "mistral"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_reads_its_part_of_a_checkpoint(tmp_path: Path, family: str, tied: bool) -> None:
    folder = make_checkpoint(tmp_path, family, tokenizer=False, tie_word_embeddings=tied, pad_token_id=0)
    config = read_config(folder)
    source = ModelSource(name="x", config=config, folder=folder, dtype=torch.float32)
    whole = source.decoder("cpu")
    for rank in range(2):
        shard = Shard(rank, 2)
        for name, part in source.decoder("cpu", shard).named_parameters():
            assert torch.equal(part, shard.cut(whole.get_parameter(name), whole.division(name))), (rank, name)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (3, "num_heads 8 is not a multiple of it; num_kv_heads 2 is neither a multiple nor a divisor"),
        (16, "num_heads 8 is not a multiple"),
        (0, "at least 1, found 0"),
        (True, "whole number"),
    ],
)
def test_a_model_that_does_not_divide_is_refused_with_what_would_work(size: int, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        Shard(0, size).config(CONFIGS["qwen3"])
    assert size < 2 or str(caught.value).endswith("Would work: 1, 2, 4, 8"), caught.value


def test_ranks_with_fewer_kv_heads_hold_the_head_that_their_queries_read() -> None:
    held = [(list(Shard(r, 4).split(8)), list(Shard(r, 4).kv_heads(CONFIGS["qwen3"]))) for r in range(4)]
    assert held == [([0, 1], [0]), ([2, 3], [0]), ([4, 5], [1]), ([6, 7], [1])]


def test_a_part_alone_is_refused() -> None:
    part = noisy(TINY_CONFIG, Shard(1, 2))
    with pytest.raises(InvalidArgument, match="part 1 of 2 of a model computes nothing alone"):
        dense_logits(part, [1, 2])


def test_a_checkpoint_of_another_shape_is_refused_by_a_part_as_by_the_whole(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] + 2}))
    source = ModelSource(name="x", config=read_config(folder), folder=folder)
    messages = []
    for shard in (Shard(), Shard(1, 2)):
        with pytest.raises(ModelError, match="the config asks for") as caught:
            source.decoder("cpu", shard)
        messages.append(str(caught.value))
    assert messages[0] == messages[1], messages
