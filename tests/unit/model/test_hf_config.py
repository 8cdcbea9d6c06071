"""A config.json with any value in any place is read, or refused in one sentence and at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ModelError, OutOfMemory
from framework.model.families import read_hf_config
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
    assert len(message) < 400, message  # the longest one lists every family


MINIMAL = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1}
MINIMAL |= {"num_attention_heads": 2, "intermediate_size": 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "64"}, "config.json: 'hidden_size' must be an integer of at least 1"),
        ({"num_hidden_layers": 2.0}, "'num_hidden_layers' must be an integer"),
        ({"num_hidden_layers": 10**9}, "num_layers must be at most 4,096, found 1,000,000,000; is config.json damaged"),
        ({"rope_scaling": [8]}, "'rope_scaling' must be an object"),
        ({"rope_theta": "1e6"}, "'rope_theta' must be a number above 0"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' must be a token id"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' must be true or false"),
        ({"model_type": "mistral", "sliding_window": -1}, "'sliding_window' must be an integer of at least 1"),
        ({"model_type": "gpt2"}, "'gpt2' is not supported; installed: .*llama, .*mistral, .*qwen2, qwen3"),
        ({"model_type": None}, "None is not supported"),
        ({"hidden_size": None}, "config.json has no 'hidden_size'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised weights \('awq'\)"),
        ({"rope_scaling": {"type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
            "no 'original_max_position_embeddings', which 'llama",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8}}, "no 'original_max_position_embeddings', which 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"torch_dtype": "int4"}, "no model dtype 'int4'"),
    ],
)
def test_what_is_no_config_or_not_supported_is_refused_by_name(change, message):
    with pytest.raises(ModelError, match=message):
        read_hf_config(MINIMAL | change)


def test_a_minimal_config_has_its_family_s_defaults():
    assert read_hf_config(MINIMAL).num_kv_heads == 2
    mixed = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    assert read_hf_config(MINIMAL | mixed | {"num_hidden_layers": 2}).sliding_layers == (False, True)


def test_a_config_of_transformers_4_and_one_of_5_mean_the_same():
    base = MINIMAL | {"model_type": "qwen3", "eos_token_id": [3, 4]}
    four = base | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}, "torch_dtype": "bfloat16"}
    five = base | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}, "dtype": "bfloat16"}
    assert read_hf_config(four) == read_hf_config(five)
    assert read_hf_config(four).eos_token_ids == (3, 4)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"num_hidden_layers": 10**9}, ModelError), ({"hidden_size": 2**20, "intermediate_size": 2**24}, OutOfMemory)],
)
@pytest.mark.timeout(20)  # minutes before; generous, since other processes share the machine
def test_a_checkpoint_too_large_to_build_is_refused_at_once(tmp_path, change, error):
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"sliding_window": None} | change))
    with pytest.raises(error):
        load_model(tmp_path)
