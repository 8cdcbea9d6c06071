"""The embedded model, and the dense decoding that everything else is judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dense_greedy import greedy

from framework.errors import InvalidArgument, ModelError
from framework.model.decoder import Decoder
from framework.model.dense import dense_logits
from framework.model.loading import TINY_CONFIG, load_model, random_model
from framework.model.options import model_of
from framework.model.shapes import SHAPES
from framework.model.tokenizer import BOS, EOS, ByteTokenizer
from framework.replay.roofline import ROOFLINE_SHAPES

TEXTS = ("Hello, world. ", "You are a helpful assistant. " * 12, "def f(x):\n    return x\n" * 9)


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


def test_equal_seeds_give_equal_weights_and_others_do_not(tiny):
    again, other = (load_model("tiny", seed=seed).decoder for seed in (0, 1))
    for name, weight in tiny.decoder.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert not torch.equal(tiny.decoder.layers[0].attention.qkv, other.layers[0].attention.qkv)


def test_the_first_weights_are_pinned_so_that_results_stay_comparable(tiny):
    found = [f"{value:.5f}" for value in tiny.decoder.layers[1].mlp.down.flatten()[:3].tolist()]
    assert found == PINNED_WEIGHTS


def test_asking_for_another_dtype_rounds_the_same_weights(tiny):
    double, half = (load_model("tiny", dtype=dtype).decoder for dtype in ("float64", "bfloat16"))
    assert torch.equal(double.layers[0].attention.qkv.float(), tiny.decoder.layers[0].attention.qkv)
    assert torch.equal(half.layers[0].attention.qkv, tiny.decoder.layers[0].attention.qkv.bfloat16())


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_text_is_printable_varied_and_clear_of_rounding(tiny, text):
    found = greedy(tiny.decoder, tiny.tokenizer.encode(text), 96)
    assert all(32 <= token < 127 or token == EOS for token in found.tokens)
    assert len(set(found.tokens)) >= 12, tiny.tokenizer.decode(found.tokens)
    assert min(found.gaps) > 1e-5 * found.largest_logit


def test_the_first_words_of_a_long_prompt_decide_what_comes_out(tiny):
    """A cache that served a wrong first block must be seen in the tokens."""
    tail = "The rest of a long prompt is the same for both. " * 6
    one, two = (
        greedy(tiny.decoder, tiny.tokenizer.encode(head + tail), 32).tokens
        for head in ("Sixteen bytes AA", "Sixteen bytes BB")
    )
    assert one != two


def test_a_prompt_without_tokens_is_refused(tiny):
    with pytest.raises(InvalidArgument, match="at least one token"):
        dense_logits(tiny.decoder, [])


def test_bytes_come_back_as_text():
    tokenizer = ByteTokenizer()
    for text in ("", "plain", "naïve 数据 🙂"):
        ids = tokenizer.encode(text)
        assert ids[0] == BOS
        assert tokenizer.decode([*ids, EOS]) == text
    assert tokenizer.decode([0xF0, 0x41]) == "\ufffdA"


def test_a_conversation_of_bytes_shares_its_prefix_with_a_longer_one():
    tokenizer = ByteTokenizer()
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    short, long = (
        tokenizer.apply_chat(messages),
        tokenizer.apply_chat([*messages, {"role": "assistant", "content": "A"}]),
    )
    assert long[: len(short)] == short
    with pytest.raises(ModelError, match="no role 'wizard'; known: system, user"):
        tokenizer.apply_chat([{"role": "wizard", "content": ""}])


def test_a_random_model_is_deterministic_and_never_ends_by_itself():
    shape = replace(SHAPES["llama-100m"], num_layers=1, hidden_size=64, vocab_size=300, intermediate_size=64)
    one, two = random_model(shape, seed=3), random_model(shape, seed=3)
    assert torch.equal(one.decoder.layers[0].mlp.down, two.decoder.layers[0].mlp.down)
    assert one.tokenizer.eos_token_ids == ()
    assert dense_logits(one.decoder, [1, 2, 3]).isfinite().all()
    with pytest.raises(ModelError, match="no model shape 'gpt-5'; known: qwen3-100m"):
        random_model("gpt-5")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-100m", 0.100),
        ("qwen3-0.6b", 0.596),
        ("llama-3.2-1b", 1.236),
        ("llama-3.1-8b", 8.030),
        ("qwen3-8b", 8.191),
    ],
)
def test_the_known_shapes_have_their_published_parameter_counts(name, billions):
    assert ROOFLINE_SHAPES[name].num_parameters / 1e9 == pytest.approx(billions, abs=6e-4)
    weights = Decoder(SHAPES[name], device="meta").parameters()
    assert sum(weight.numel() for weight in weights) / 1e9 == pytest.approx(billions, abs=6e-4)


def test_shapes_that_cannot_be_are_refused():
    for change, message in (
        ({"num_kv_heads": 3}, "4 query heads are not a multiple of 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, found 0"),
        ({"dtype": "int8"}, "no model dtype 'int8'"),
    ):
        with pytest.raises(ModelError, match=message):
            replace(TINY_CONFIG, **change)


def first_weights(run_seed: int = 0, **options: object) -> torch.Tensor:
    model = model_of("tiny", options).load(device="cpu", seed=run_seed, tensor_parallel_size=1)
    return next(iter(model.decoder.parameters())).detach()


def test_the_tiny_model_is_the_same_whatever_the_run_s_seed() -> None:
    assert torch.equal(first_weights(), first_weights(run_seed=7))
    assert not torch.equal(first_weights(), first_weights(seed=7))


def test_the_shape_of_a_configured_model_is_known_before_its_weights() -> None:
    assert model_of("random", {}).config() is SHAPES["qwen3-100m"]
    assert model_of("random", {"shape": "nobody"}).config() is None
    assert model_of("tiny", {}).config() == load_model("tiny").config
    with pytest.raises(ModelError):
        model_of("checkpoint", {"path": "/no/such/folder"}).config()


PINNED_WEIGHTS = ["-0.50695", "0.00690", "0.53806"]
