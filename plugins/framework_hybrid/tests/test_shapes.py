"""Groups of models from their published configurations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framework.errors import ConfigError
from framework_hybrid.shapes import SHAPES, flops_of, groups_of, unified_block_tokens

EVERY = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, "num_key_value_heads": 2}


def test_one_page_splits_kinds_into_groups_of_equal_pages() -> None:
    groups = groups_of("gemma-3-27b", layout="one_page")
    assert [group.kind for group in groups] == ["full", *["window"] * 6], "52 layers by 10, the last group padded"
    assert len({group.block_bytes for group in groups}) == 1
    groups = groups_of("qwen3.5-4b", layout="one_page")
    assert [group.kind for group in groups] == ["full", *["state"] * 3]
    assert {group.block_tokens for group in groups} == {528}


def test_flops_are_those_of_the_layers_that_marconi_counts() -> None:
    flops = flops_of("qwen3-next-80b")
    assert (flops.attention, flops.state, flops.mlp, flops.width, flops.state_width) == (12, 36, 48, 2048, 128)
    d, tokens = 2048, 100
    expected = 12 * (8 * tokens * d**2 + 4 * tokens**2 * d) + 48 * 16 * tokens * d**2
    assert flops.saved(0, tokens) == expected + 36 * tokens * (12 * d**2 + 16 * d * 128 + 10)
    with pytest.raises(ConfigError, match="choose another order"):
        flops_of("gemma-3-27b")


def test_a_configuration_may_be_a_file_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["gpt-oss-120b"]))
    for path in (tmp_path, tmp_path / "config.json"):
        assert groups_of(str(path)) == groups_of("gpt-oss-120b")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json holds list, not a JSON object"):
        groups_of(str(tmp_path))


def test_a_key_of_another_type_is_named_with_what_was_found() -> None:
    for name, shape in SHAPES.items():
        unread = {"hidden_size", "num_attention_heads"} if "kv_lora_rank" in shape else {"hidden_size"}
        for key in {*shape} - unread:
            for value in ("x", [1], {"a": 1}, -1, 1.5, True, 10**30):
                with pytest.raises(ConfigError, match=f"'({key}|num_heads|full_attn_layers|layer_types)'"):
                    print(name, value, groups_of({**shape, key: value}))


def test_a_configuration_may_say_its_layers_in_each_known_way() -> None:
    windows = {**EVERY, "sliding_window": 64}
    assert [group.kind for group in groups_of(windows)] == ["window"]
    assert [group.kind for group in groups_of(EVERY)] == ["full"]
    named = {**windows, "layer_types": ["full_attention", "sliding_attention"] * 2}
    assert groups_of({"text_config": named}) == groups_of(named)
    assert groups_of(named)[0].block_bytes == 2 * (2 * 2 * 64 * 2) * 16


@pytest.mark.parametrize(
    "wrong",
    [
        "gpt-7", {**EVERY, "layer_types": ["full_attention"] * 3}, {**EVERY, "layer_types": ["rwkv"] * 4},
        {**EVERY, "layer_types": ["sliding_attention"] * 4}, {**EVERY, "layer_types": ["chunked_attention"] * 4},
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError):
        groups_of(wrong)  # type: ignore[arg-type]


def test_pages_that_hold_a_state_have_the_published_numbers_of_tokens() -> None:
    """Each is in a log of vLLM: "Setting attention block size to N tokens ... >= mamba page size"."""
    delta = 128 * 128 * 4  # of a head's matrix, in float32

    def page(heads: int, drafts: int) -> int:  # gated delta rule: 16 key heads, a convolution over 4 tokens
        return heads * delta + (3 + drafts) * (2 * 16 + heads) * 128 * 2

    assert unified_block_tokens(page(32, 0), 2 * 4 * 256 * 2) == 528, "Qwen3.5-4B, bf16"
    assert unified_block_tokens(page(48, 3), 2 * 4 * 256) == 1_600, "Qwen3.8-27B, fp8, 3 drafts"
    assert unified_block_tokens(page(48, 7), 2 * 4 * 256) == 1_648, "Qwen3.8-27B, fp8, 7 drafts"
    # GLM-5.3-Flash over two ranks: half of 64 heads, vectors of 576 in fp8, 3 drafts, kernels of 64 tokens; the log
    # counts the tokens of both ranks.
    half = 32 * delta + (3 + 3) * 3 * 32 * 128 * 2
    assert 2 * unified_block_tokens(half, 576, 64) == 7_808
