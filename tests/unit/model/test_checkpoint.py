"""A checkpoint that is not all there is refused with one sentence that says what is wrong."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from framework.errors import ModelError
from framework.model.checkpoint import load_weights
from framework.model.decoder import Decoder
from framework.model.families import read_config
from framework.model.hf_config import find_checkpoint
from framework.model.loading import load_model


@pytest.fixture
def folder(small_checkpoint, tmp_path):
    return shutil.copytree(small_checkpoint, tmp_path / "copy")


def load(folder):
    decoder = Decoder(read_config(folder))
    load_weights(decoder, folder)
    return decoder


def change(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")


def test_every_tensor_lands_in_its_place(folder):
    weights, decoder = load_file(folder / "model.safetensors"), load(folder)
    layer, prefix = decoder.layers[1], "model.layers.1."
    names = [f"{prefix}self_attn.{part}_proj.weight" for part in "qkv"]
    assert torch.equal(layer.attention.qkv, torch.cat([weights[name] for name in names]))
    assert torch.equal(
        layer.mlp.gate_up, torch.cat([weights[f"{prefix}mlp.{part}_proj.weight"] for part in ("gate", "up")])
    )
    expected = [weights[f"{prefix}self_attn.q_norm.weight"]] * 4 + [weights[f"{prefix}self_attn.k_norm.weight"]] * 2
    assert torch.equal(layer.attention.qk_norm, torch.stack(expected))
    assert decoder.lm_head is decoder.embedding


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "lacks 1 weights: model.layers.1.mlp.up_proj.weight"),
        (lambda w: w.update({"model.layers.7.x": torch.zeros(1)}), "no use for: model.layers.7.x"),
        (
            lambda w: w.update({"model.layers.0.self_attn.k_proj.weight": torch.zeros(32, 17)}),
            r"k_proj.weight has shape \(32, 17\), the config asks for \(32, 16\)",
        ),
        # One row would broadcast silently into the view.
        (lambda w: w.update({"model.layers.0.self_attn.k_proj.weight": torch.zeros(1, 16)}), r"has shape \(1, 16\)"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(16, dtype=torch.int8)}), "is torch.int8; quantised"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(folder, edit, message):
    change(folder, edit)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_tied_head_stored_twice_and_names_without_prefix_are_understood(folder):
    expected = load(folder).state_dict()

    def edit(weights):
        for name in list(weights):
            weights[name.removeprefix("model.")] = weights.pop(name)
        weights["lm_head.weight"] = weights["embed_tokens.weight"].clone()
        weights["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    change(folder, edit)
    for name, weight in load(folder).state_dict().items():
        assert torch.equal(weight, expected[name]), name


def test_an_index_that_lies_is_found_out(folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}))
    with pytest.raises(ModelError, match=r"lacks 1 of 2 weight files: model-1\.safetensors"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ModelError, match="names no files of its own folder"):
        load(folder)
    for wrong in ({}, [], "text", {"a": ["model.safetensors"]}):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(ModelError, match="weight_map must be an object of file names"):
            load(folder)


def test_a_pipe_in_place_of_weights_is_not_waited_for(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors"):
        load(folder)


def test_damaged_files_are_named(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-5])
    with pytest.raises(ModelError, match=r"model\.safetensors' is damaged"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        read_config(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds list, not a JSON object"):
        read_config(folder)


def test_the_generation_config_says_what_ends_a_text(folder):
    assert read_config(folder).eos_token_ids == (1,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read_config(folder).eos_token_ids == (5, 6)
    (folder / "generation_config.json").write_text("{}")
    assert read_config(folder).eos_token_ids == (1,)


def test_other_folders_files_and_names_are_no_models(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \*.safetensors"):
        load(folder)
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ModelError, match="is a file; give the folder"):
        find_checkpoint(folder / "config.json")
    for name in ("no-such-folder", "/no/such/folder", "a/b/c", "../x"):
        with pytest.raises(ModelError, match=r"is no folder here and no hub id \(OWNER/NAME\)"):
            find_checkpoint(name)
    with pytest.raises(ModelError, match="no model dtype 'fp7'; supported: auto, float32"):
        load_model("tiny", dtype="fp7")


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"'acme/none' cannot be downloaded.*`hf download acme/none`"):
        find_checkpoint("acme/none")
