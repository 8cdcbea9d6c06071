"""A config.json with any value in any place is read, or refused in one sentence and at once."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ModelError, OutOfMemory
from framework.model.hf_config import read_hf_config, token_ids
from framework.model.loading import load_model

BASE = {
    "model_type": "qwen3", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "max_position_embeddings": 64,
    "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0, "layer_types": None, "bos_token_id": 0,
    "eos_token_id": [1, 2], "torch_dtype": "float32", "hidden_act": "silu", "quantization_config": None,
    "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([10**9, 2**63, 10**400, -1, 0]), st.floats(),
    st.text(max_size=5), st.lists(st.integers(), max_size=2), st.just({}), st.just({"a": None}),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(key=st.sampled_from([key for key in BASE if key != "rope_scaling"]), value=WRONG)
def test_any_value_of_any_key_is_read_or_refused(key, value):
    assert_read_or_refused(BASE | {key: value})


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from(sorted(BASE["rope_scaling"])), value=WRONG)
def test_any_value_of_rope_scaling_is_read_or_refused(key, value):
    assert_read_or_refused(BASE | {"rope_scaling": BASE["rope_scaling"] | {key: value}})


def assert_read_or_refused(config):
    """Any other error goes through and fails the test."""
    try:
        read_hf_config(config)
    except ModelError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message, message
    assert len(message) < 300, message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "64"}, "config.json: 'hidden_size' must be an integer of at least 1"),
        ({"num_hidden_layers": 2.0}, "'num_hidden_layers' must be an integer"),
        ({"num_hidden_layers": 10**9}, "num_layers must be at most 4,096, found 1,000,000,000; is config.json damaged"),
        ({"rope_scaling": [8]}, "'rope_scaling' must be an object"),
        ({"rope_theta": "1e6", "rope_scaling": None}, "'rope_theta' must be a number above 0"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' must be a token id"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' must be true or false"),
        ({"sliding_window": -1}, "'sliding_window' must be an integer of at least 1"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(change, message):
    with pytest.raises(ModelError, match=message):
        read_hf_config(BASE | change)


def test_a_checkpoint_too_large_to_build_is_refused_within_a_second(tmp_path):
    started = time.perf_counter()
    for change, error in (
        ({"num_hidden_layers": 10**9}, ModelError),
        ({"hidden_size": 2**20, "intermediate_size": 2**24}, OutOfMemory),
    ):
        (tmp_path / "config.json").write_text(json.dumps(BASE | {"sliding_window": None} | change))
        with pytest.raises(error):
            load_model(tmp_path)
    assert time.perf_counter() - started < 20, "minutes before"  # generous: other processes share the machine


def test_token_ids_are_a_tuple_whatever_holds_them():
    assert token_ids({"a": None, "b": 3, "c": [3, 4]}, "a") == ()
    assert token_ids({"b": 3}, "b") == (3,)
    assert token_ids({"c": [3, 4]}, "c") == (3, 4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3_text"])
def test_a_number_of_layers_that_no_model_has_is_refused_before_they_are_listed(family: str) -> None:
    config = {"model_type": family, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 10**9}
    config |= {"vocab_size": 100, "intermediate_size": 128, "sliding_window": 16, "use_sliding_window": True}
    with pytest.raises(ModelError, match="num_layers must be at most 4,096"):
        read_hf_config(config)
