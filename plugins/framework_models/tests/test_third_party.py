"""A family that is installed from outside: an entry point, and a class of a few lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_greedy import greedy
from fake_engines import make_llm
from safetensors.torch import load_file, save_file

from framework.errors import ModelError
from framework.model.families import read_hf_config
from framework.model.loading import load_model
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

FAMILY = '''
from framework.model.families import Llama
from framework.model.hf_config import value_of
from framework.model.layers import GatedMlp


class SquaredMlp(GatedMlp):
    def activate(self, gate):
        return gate.relu().square()


class Acme(Llama):
    """A Llama whose gate is a squared ReLU, of weights of other names."""

    ACTIVATION = ("hidden_act", ("relu2",))

    def mlp(self, layer, weight):
        return SquaredMlp(self, weight, room="feed_forward")
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution on the path with the family `acme`, and two that cannot be used."""
    site = tmp_path / "site"
    (site / "acme_models-1.0.dist-info").mkdir(parents=True)
    (site / "acme_models.py").write_text(FAMILY)
    (site / "acme_models-1.0.dist-info" / "METADATA").write_text("Name: acme-models\nVersion: 1.0\n")
    points = "acme = acme_models:Acme\nbroken = acme_models:Absent\nodd = acme_models:SquaredMlp\n"
    (site / "acme_models-1.0.dist-info" / "entry_points.txt").write_text(f"[framework.family]\n{points}")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.delitem(sys.modules, "acme_models", raising=False)
    return site


@torch.no_grad()
def test_a_family_from_outside_is_served(installed: Path, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama", tokenizer=False)
    weights = load_file(folder / "model.safetensors")
    save_file({k.replace(".mlp.", ".feed_forward."): v for k, v in weights.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "acme", "hidden_act": "relu2"}))
    model, prompt = load_model(folder), list(range(4, 40))
    wanted = greedy(model.decoder, prompt, 20).tokens
    assert (model.config.family, len(set(wanted)) > 3) == ("acme", True)
    llama = make_checkpoint(tmp_path / "llama", "llama", tokenizer=False)
    assert greedy(load_model(llama).decoder, prompt, 20).tokens != wanted, "the activation is its own"
    llm = make_llm(model, block_size=4, num_blocks=40, poison=True)
    for cached in (0, 32):
        (request,) = llm.generate([prompt], Sampling(max_tokens=20, ignore_eos=True))
        assert (request.completions[0].tokens, request.num_cached_tokens) == (wanted, cached)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("acmee", "model family 'acmee' is not supported; installed: acme, broken, deepseek_v3, "),
        ("broken", "model family 'broken' of acme-models 1.0 cannot be used: AttributeError: .*Absent"),
        ("odd", "model family 'odd' of acme-models 1.0 cannot be used: it is no ModelConfig"),
        (["llama"], r"model family \['llama'\] is not supported"),
    ],
)
def test_a_family_that_cannot_be_used_is_refused_by_name(installed: Path, name: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_hf_config({"model_type": name})
