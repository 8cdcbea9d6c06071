"""Attention that reads the top blocks only."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from framework.errors import ConfigError

from .reference import GREEDY, llm_of, prompts_of


def served(cache: Any = None, **options: Any) -> tuple[list[list[int]], dict[str, Any]]:
    llm = llm_of("none", backend={"name": "quest", **options}, cache=cache or {})
    requests = llm.generate(prompts_of(3), GREEDY)
    llm.engine.check()
    return [request.completions[0].tokens for request in requests], llm.backend.facts()


def test_with_all_blocks_it_is_exact() -> None:
    dense = [request.completions[0].tokens for request in llm_of("none").generate(prompts_of(3), GREEDY)]
    tokens, facts = served(share=1.0)
    assert tokens == dense
    assert facts == {}  # nothing was selected


@pytest.mark.parametrize(("kv_dtype", "layout"), [("int8", "NHD"), ("int8", "HND"), ("float8_e4m3fn", "NHD")])
def test_blocks_of_a_narrower_pool_are_found_by_their_values(kv_dtype: str, layout: str) -> None:
    """With all blocks the tokens are those of a backend that reads such a pool; with fewer nearly the same are best."""
    cache = {"kv_dtype": kv_dtype, "layout": layout}
    plain = [one.completions[0].tokens for one in llm_of("none", cache=cache).generate(prompts_of(3), GREEDY)]
    assert served(cache=cache)[0] == plain
    exact, rounded = (served(cache=one, blocks=3)[1]["top_block_recall"] for one in ({}, cache))
    assert abs(exact - rounded) < 0.1, (exact, rounded)


def test_fewer_blocks_are_read_and_most_attention_is_kept() -> None:
    _, facts = served(blocks=3)
    assert 0.2 < facts["read_share"] < 0.4
    assert 0.4 < facts["kept_attention_mass"] < 1.0
    assert 0.5 < facts["top_block_recall"] <= 1.0


def test_a_bound_is_never_below_a_score_of_its_block_and_the_highest_are_read() -> None:
    backend: Any = llm_of("none", backend={"name": "quest", "blocks": 2}).backend
    draw = torch.Generator().manual_seed(3)
    q, keys = torch.randn(2, 2, 1, 8, generator=draw), torch.randn(2, 37, 8, generator=draw)
    chosen = backend._choose(q, keys, 4, 3)
    padded = torch.cat((keys, keys[:, -1:].expand(-1, 3, -1)), 1).view(2, 10, 4, 8)
    low, high = padded.amin(2), padded.amax(2)
    each = q[:, :, :, None]
    bounds = torch.maximum(each * low[:, None, None], each * high[:, None, None]).sum(-1).amax(1)
    scores = (q @ keys[:, None].transpose(-1, -2)).amax(1)
    assert (bounds[..., :9].repeat_interleave(4, -1) >= scores[..., :36] - 1e-5).all()
    bounds[..., -1] = torch.inf
    assert chosen.nonzero().tolist() == sorted([
        [head, 0, block] for head in range(2) for block in bounds[head, 0].topk(3).indices.tolist()
    ])  # fmt: skip


@pytest.mark.parametrize("options", [{"max_queries": 0}, {"blocks": 0}, {"share": 0.0}, {"share": 1.5}])
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="backend"):
        llm_of("none", backend={"name": "quest", **options})
