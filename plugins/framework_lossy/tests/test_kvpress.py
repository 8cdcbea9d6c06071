"""The tokens that stay, beside kvpress: the same scores of the same keys, values and queries, ties apart."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from framework.interfaces.compression import LayerCache
from framework.registry.components import build_component
from framework.types import RequestId, RequestInfo

from .reference import recall_model

LENGTH, HEADS, KV_HEADS, DIM, HIDDEN = 150, 4, 2, 32, 128


def press(module: str, name: str) -> Any:
    """A class of kvpress, of which only what scores is loaded: its pipelines need data sets.

    Skips where it is not installed.
    """
    try:
        folder = Path(str(metadata.distribution("kvpress").locate_file("kvpress")))
    except metadata.PackageNotFoundError:
        pytest.skip("kvpress is not installed")
    for package, path in (("kvpress", folder), ("kvpress.presses", folder / "presses")):
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(path)]
    try:
        return getattr(importlib.import_module(f"kvpress.presses.{module}"), name)
    except ImportError as error:
        pytest.skip(f"kvpress cannot be imported here: {error}")
    finally:
        for loaded in [one for one in sys.modules if one.partition(".")[0] == "kvpress"]:
            del sys.modules[loaded]


@pytest.fixture
def layer() -> tuple[LayerCache, Any]:
    """One layer's tensors, and a module of transformers' form that makes the same queries of hidden states."""
    decoder = recall_model().decoder
    draw = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    hidden, weight = normal(1, LENGTH, HIDDEN), normal(HEADS * DIM, HIDDEN) / 8
    positions = torch.arange(LENGTH)
    cos, signed = decoder.rope(positions)
    queries = (hidden[0] @ weight.T).view(LENGTH, HEADS, DIM)
    half = DIM // 2

    def rotated(x: torch.Tensor) -> torch.Tensor:
        return x * cos + x.roll(half, -1) * signed

    layer = LayerCache(
        keys=rotated(normal(LENGTH, KV_HEADS, DIM)).transpose(0, 1), values=normal(KV_HEADS, LENGTH, DIM),
        positions=positions.expand(KV_HEADS, -1), queries=rotated(queries), query_positions=positions,
        scale=DIM**-0.5, rotary=decoder.rope,
    )  # fmt: skip

    def rotary(_: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cosine, sine = decoder.rope(at[0])
        return cosine.squeeze(1)[None], (sine * torch.where(torch.arange(DIM) < half, -1, 1)).squeeze(1)[None]

    linear = torch.nn.Linear(HIDDEN, HEADS * DIM, bias=False)
    linear.weight.data = weight
    config = SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
    module = SimpleNamespace(q_proj=linear, head_dim=DIM, config=config, rotary_emb=rotary)
    return layer, (module, hidden, rotary(hidden, positions[None]))


@pytest.mark.parametrize(("name", "module", "press_name", "options"), [
    ("knorm", "knorm_press", "KnormPress", {}),
    ("keydiff", "keydiff_press", "KeyDiffPress", {}),
    ("snapkv", "snapkv_press", "SnapKVPress", {}),
    ("expected_attention", "expected_attention_press", "ExpectedAttentionPress", {}),
])  # fmt: skip
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.9])
@torch.no_grad()
def test_the_same_tokens_stay_as_in_kvpress(
    name: str, module: str, press_name: str, options: dict[str, Any], ratio: float, layer: Any
) -> None:
    cache, (attention, hidden, angles) = layer
    theirs = press(module, press_name)(compression_ratio=ratio)
    scores = theirs.score(
        attention, hidden, cache.keys[None], cache.values[None], None, {"position_embeddings": angles}
    )[0]  # fmt: skip
    ours: Any = build_component("compression", {"name": name, "ratio": ratio, **options}, {})
    count = max(1, int(LENGTH * (1 - ratio)))
    if name == "snapkv":  # the window's tokens are all worth the most: which of them go is left to ties
        count = max(count, ours.window)
    mine = ours.score(cache).topk(count).indices.sort(-1).values
    other = scores.topk(count).indices.sort(-1).values
    assert mine.tolist() == other.tolist()


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.9])
@pytest.mark.parametrize(("name", "module", "press_name"), [
    ("knorm", "knorm_press", "KnormPress"),
    ("expected_attention", "expected_attention_press", "ExpectedAttentionPress"),
])  # fmt: skip
@torch.no_grad()
def test_heads_have_the_budgets_of_kvpress(
    name: str, module: str, press_name: str, ratio: float, size: int, layer: Any
) -> None:
    """In blocks of one token the same tokens; in larger ones each head's best, about as many, and as many together."""
    cache, (attention, hidden, angles) = layer
    inner = press(module, press_name)(compression_ratio=ratio)
    adakv = press("adakv_press", "AdaKVPress")
    inner.__class__ = type("Inner", (inner.__class__, adakv.__init__.__globals__["ScorerPress"]), {})
    attention.config._attn_implementation = "sdpa"
    adakv(press=inner).compress(
        attention, hidden, cache.keys[None], cache.values[None], None, {"position_embeddings": angles}
    )
    gone = torch.zeros(KV_HEADS, LENGTH, dtype=torch.bool)
    gone[attention.masked_key_indices[1], attention.masked_key_indices[2]] = True
    ours: Any = build_component("compression", {"name": "adakv", "over": name, "ratio": ratio}, {})
    mine = ours._layer(ours._over.score(cache), max(1, int(LENGTH * (1 - ratio))), size)
    theirs = [(~one).nonzero().flatten().tolist() for one in gone]
    assert len({len(one) for one in theirs}) > 1, "the heads' budgets do not differ: nothing is compared"
    if size == 1:
        assert [one.tolist() for one in mine] == theirs
    assert sum(map(len, mine)) == sum(map(len, theirs))
    assert all(abs(len(one) - len(other)) < size + 1 for one, other in zip(mine, theirs, strict=True))
    assert all({*one} <= {*other} or {*other} <= {*one} for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.9])
def test_streaming_keeps_the_same_tokens_as_in_kvpress(ratio: float, layer: Any) -> None:
    cache, (attention, hidden, _) = layer
    theirs = press("streaming_llm_press", "StreamingLLMPress")(compression_ratio=ratio)
    scores = theirs.score(attention, hidden, cache.keys[None], cache.values[None], None, {})[0]
    ours: Any = build_component("compression", {"name": "streaming", "ratio": ratio}, {})
    info = RequestInfo(id=RequestId(1), max_total_tokens=LENGTH, prompt_tokens=LENGTH)
    written = SimpleNamespace(info=info, computed=LENGTH, stored=LENGTH, block_size=16, compressed_at=None)
    assert ours.choose(written, ()).tokens[0, 0].tolist() == scores[0].nonzero().flatten().tolist()
