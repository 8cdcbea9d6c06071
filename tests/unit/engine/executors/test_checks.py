"""A backend that cannot serve a model says so before a weight of it is read."""

from __future__ import annotations

from typing import Any

import pytest

from framework.api import run
from framework.errors import BackendUnavailable
from framework.interfaces.backend import AttentionSpec, Capabilities
from framework.llm import LLM
from framework_torch.gather import GatherBackend


class Pages256(GatherBackend):
    """Takes pages of 256 in bfloat16, elsewhere."""

    capabilities = Capabilities(
        dtypes=frozenset({"bfloat16"}),
        devices=frozenset({"cuda"}),
        head_dims=frozenset({64}),
        block_size_multiple_of=256,
    )


def test_a_block_size_that_does_not_fit_is_refused_with_the_nearest_that_does() -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=64, dtype="bfloat16", block_size=16)
    (reason,) = Pages256().check(spec, "cuda")
    assert reason == "block size 16 is not a multiple of 256; nearest: 256"
    (reason,) = Pages256().check(
        AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=64, dtype="bfloat16", block_size=700), "cuda"
    )
    assert reason.endswith("nearest: 768"), reason


def test_serve_gives_every_reason_and_what_would_work_before_loading(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr("framework.model.options.Tiny.load", lambda *_, **__: pytest.fail("the model was loaded"))
    monkeypatch.setattr("framework.modes.serve.build_component", lambda *_: Pages256())
    config = {"mode": "serve", "device": "cpu", "backend": "gather", "run": {"dir": str(tmp_path)}}
    with pytest.raises(BackendUnavailable) as caught:
        run(config)
    for part in ("device cpu is not supported", "dtype float32", "nearest: 256", "Would work: gather"):
        assert part in str(caught.value), f"{part!r} not in {caught.value}"


def test_the_python_api_asks_before_loading_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "framework.engine.executors.build.load_model", lambda *_, **__: pytest.fail("the model was loaded")
    )
    with pytest.raises(BackendUnavailable, match="nearest: 256"):
        LLM("tiny", backend=Pages256, device="cpu")
