"""`python -m framework layout`: its numbers, and its words."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from groups_plain import LAYOUTS

from framework.interfaces.groups import alignment, find_hit
from framework_hybrid.layout import held_blocks, held_bytes, place_bytes, report, shortest_hit, ways_of
from framework_hybrid.shapes import SHAPES, groups_of

KIMI_K3 = {
    "num_hidden_layers": 93, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "linear_attn_config": {"full_attn_layers": [*range(4, 93, 4), 93], "num_heads": 64, "head_dim": 128,
                           "short_conv_kernel_size": 4},
}  # fmt: skip
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4", "num_hidden_layers": 43, "head_dim": 512, "sliding_window": 128, "index_head_dim": 128,
    "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0],
}  # fmt: skip


def words(*given: Any, **options: Any) -> str:
    return " ".join(" ".join(report(*given, **options)).split())


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("deepseek-v3", "A token takes 70,272 bytes."),
        (KIMI_K3, "A token takes 27,648 bytes."),
        ("deepseek-v3.2", "latent 1,024 + rope 128 + index 256"),
        ("qwen3.5-4b", "With equal pages, as in vLLM, it is 528, and no prompt below 529 can hit."),
        ("qwen3.5-4b", "makes it 272 tokens"),
        ("gemma-3-27b", "A place to resume at takes 416 MiB (436,207,616 bytes) beside full attention"),
        ("deepseek-v3", "no prompt below 17 tokens can hit"),
        ("deepseek-v3", "A draft model's lookahead takes one unit off each hit: no prompt below 33 tokens can hit"),
    ],
)
def test_it_says_what_people_ask(config: Any, says: str) -> None:
    assert says in words(config), words(config)


def test_deepseek_v4_in_blocks_of_32_entries_hits_nothing_below_4096_tokens() -> None:
    """vllm-ascend#16270; 128 entries make 16,384 tokens: vllm-ascend#10710."""
    said = words(DEEPSEEK_V4, block_tokens=32)
    assert "multiple of the common unit, 4,096 tokens" in said
    assert "no prompt below 4,097 tokens can hit" in said
    assert "an entry stands for up to 128 tokens, so blocks of 32 entries have up to 4,096" in said
    assert alignment(groups_of(DEEPSEEK_V4, block_tokens=128)) == 16_384


def test_a_place_costs_what_is_to_be_kept_there_and_an_interval_the_places_of_the_request() -> None:
    _, window = groups_of("gemma-3-27b")
    assert place_bytes(groups_of("gemma-3-27b"), 4096) == 64 * window.block_bytes
    assert "One every 4,096 tokens: 7 places in 32,768 tokens" in words("gemma-3-27b", interval=4090, block_tokens=64)
    assert "Retention" not in words("deepseek-v3")


def test_the_page_shows_what_it_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "layouts.md"
    assert "\n".join(report("qwen3.5-4b", interval=4096)) in page.read_text()


@pytest.mark.parametrize(
    ("config", "ranks", "says"),
    [
        ("deepseek-v3", 8, "A token takes 70,272 bytes."),  # latents
        (KIMI_K3, 8, "memory 524,288 + conv 18,432"),  # 8 of 64 heads of 128 x 128 numbers of 4 bytes; 3 tokens back
        ("qwen3.5-4b", 2, "k 1,024 + v 1,024"),
        ("qwen3.5-4b", 2, "memory 1,048,576 + conv 24,576"),
        ("qwen3.5-4b", 8, "k 512 + v 512"),  # 4 heads of 256, each kept by two ranks
        ("gemma-3-27b", 2, "Counted is one of 2 ranks"),
    ],
)
def test_of_one_rank_it_counts_the_heads_that_the_rank_has(config: Any, ranks: int, says: str) -> None:
    assert says in words(config, ranks=ranks), words(config, ranks=ranks)


def test_a_hub_id_is_read_by_its_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["gpt-oss-120b"]))
    asked: list[Any] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if name == "acme/away":
            raise OSError("no network")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert command("layout")(["acme/gpt"]) == 0
    assert "the last 128 tokens" in capsys.readouterr().out
    assert command("layout")(["acme/away"]) == 2
    assert "cannot be downloaded (no network); check the id" in capsys.readouterr().err
    assert asked == [("acme/gpt", ["config.json"]), ("acme/away", ["config.json"])]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_shortest_hit_is_found_by_trying_every_length(name: str) -> None:
    groups = LAYOUTS[name]
    drops = any(group.lookahead_drop for group in groups)
    length = next(
        n for n in range(1, 200)
        if find_hit(groups, lambda g, block, n=n: (block + 1) * groups[g].block_tokens < n, n - 1).tokens
    )  # fmt: skip
    assert length == shortest_hit(groups, lookahead=drops)


@pytest.mark.parametrize("name", [*SHAPES])
def test_a_request_holds_the_blocks_that_the_next_token_reads(name: str) -> None:
    draw, (equal, own, two) = random.Random(name), ways_of(name, 16, 5000)
    for group in equal.groups:
        for tokens in (draw.randint(1, 20_000) for _ in range(50)):
            read = {at // group.block_tokens for at in range(max(0, tokens - 20_000), tokens)
                    if group.passed_at(at // group.block_tokens) > tokens}  # fmt: skip
            assert held_blocks(group, tokens) == len(read), (group, tokens)
    assert len({group.block_bytes for group in equal.groups}) == 1
    assert own.held_bytes == held_bytes(own.groups, 5000) <= two.held_bytes
    assert two.held_bytes % two.page_bytes == equal.held_bytes % equal.page_bytes == 0


def test_the_command_reads_a_file_or_a_folder_and_refuses_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, path = command("layout"), tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "x", "text_config": SHAPES["gpt-oss-120b"]}))
    for given in (tmp_path, path):
        assert layout([str(given), "--block-tokens", "32", "--tokens", "1000"]) == 0
        assert "window  18      the last 128 tokens" in capsys.readouterr().out
    path.write_text(json.dumps({"num_hidden_layers": 1, "layer_types": ["retention"]}))
    for words, says in (
        ([str(tmp_path)], "found ['retention']"), (["gpt-7"], "no groups are known of 'gpt-7'"),
        (["gpt-oss-120b", "--block-tokens", "0"], "--block-tokens must be above 0"),
        (["qwen3.5-4b", "--tp", "3"], "16 of 'num_attention_heads' do not divide over 3 ranks"),
    ):  # fmt: skip
        assert layout(words) == 2
        assert says in capsys.readouterr().err
