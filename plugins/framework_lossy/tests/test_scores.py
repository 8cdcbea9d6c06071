"""What compressions choose, on tensors whose answer follows from the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from framework.interfaces.compression import LayerCache
from framework.model.functions import rotate
from framework.types import RequestId, RequestInfo
from framework_lossy.blocks import OpenVINOEviction, PagedEviction
from framework_lossy.budget import attention, judge
from framework_lossy.compression import Written
from framework_lossy.tokens import KeyDiff, KNorm, SnapKV, Streaming, unrotated

LENGTH, DIM = 20, 8


def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions[:, None].float() * torch.linspace(1.0, 0.1, DIM // 2)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def layer(**given: Any) -> LayerCache:
    """One head of keys and values, and the last four queries of two heads."""
    draw = torch.Generator().manual_seed(0)
    made = {
        "keys": torch.randn(1, LENGTH, DIM, generator=draw), "values": torch.randn(1, LENGTH, DIM, generator=draw),
        "positions": torch.arange(LENGTH)[None], "queries": torch.randn(4, 2, DIM, generator=draw),
        "query_positions": torch.arange(LENGTH - 4, LENGTH), "scale": DIM**-0.5, "rotary": rotary,
    }  # fmt: skip
    return LayerCache(**{**made, **given})


def written(computed: int = LENGTH, compressed_at: int | None = None) -> Written:
    info = RequestInfo(id=RequestId(0), max_total_tokens=99, prompt_tokens=LENGTH)
    return Written(info=info, computed=computed, stored=computed, block_size=4, compressed_at=compressed_at,
                   layers=list)  # fmt: skip


def test_streaming_keeps_sinks_and_the_last_tokens_of_its_budget() -> None:
    kept = Streaming(ratio=0.5, sinks=4).choose(written(), [])
    assert kept.tokens is not None
    assert kept.tokens.ravel().tolist() == [0, 1, 2, 3, *range(14, 20)]


def test_more_is_dropped_so_many_tokens_after_the_last_time() -> None:
    again = Streaming(every=16)
    assert [again.due(written(computed, 24)) for computed in (24, 39, 40)] == [False, False, True]
    assert not Streaming().due(written(99, 24))


def test_no_query_attends_to_later_tokens() -> None:
    given = layer()
    weights = attention(given, given.queries, given.query_positions)
    later = given.positions[0] > given.query_positions[:, None]
    assert later.any()
    assert float(weights[..., later].abs().max()) == 0.0
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 4))


def test_attention_that_is_kept_is_that_of_the_tokens_that_stay() -> None:
    given, some = layer(), torch.tensor([[0, 3, 7, 16]])
    weights = attention(given, given.queries, given.query_positions)
    mass, error = judge(given, some.numpy())
    assert mass == pytest.approx(float(weights[..., some[0]].sum(-1).mean()))
    assert error > 0
    assert judge(given, torch.arange(LENGTH)[None].numpy()) == pytest.approx((1.0, 0.0), abs=1e-6)


@pytest.mark.parametrize("each_layer", [False, True])
def test_the_blocks_of_the_most_attention_stay_of_all_layers_or_of_each(each_layer: bool) -> None:
    """Two layers attend to one token each, in blocks 1 and 3 of 5: the first to it alone, the second half as much."""
    layers = []
    for place, size in ((5, 40.0), (14, 2.0)):
        keys = torch.zeros(1, LENGTH, DIM)
        keys[0, place, 0] = size
        queries = torch.zeros(4, 2, DIM)
        queries[..., 0] = 1
        layers.append(layer(keys=keys, queries=queries))
    options = {"start_tokens": 0, "recent_tokens": 0, "each_layer": each_layer}
    kept = OpenVINOEviction(ratio=0.6, **options).choose(written(), layers)
    if each_layer:
        assert kept.tokens is not None
        assert kept.tokens[:, 0].tolist() == [[4, 5, 6, 7, 16, 17, 18, 19], [12, 13, 14, 15, 16, 17, 18, 19]]
    else:
        assert kept.blocks == [1, 4]


def test_snapkv_keeps_its_window_before_all_else() -> None:
    scores = SnapKV(window=4, kernel=3).score(layer())
    assert float(scores[0, :-4].max()) < float(scores[0, -4:].min())


def test_of_keys_those_of_small_norm_stay_and_of_blocks_those_of_high_score() -> None:
    keys = torch.ones(1, LENGTH, DIM)
    keys[0, [2, 9, 10, 11, 18]] = 0.5
    tokens = KNorm(ratio=0.75).choose(written(), [layer(keys=keys)]).tokens
    assert tokens is not None
    assert tokens.ravel().tolist() == [2, 9, 10, 11, 18]
    blocks = PagedEviction(ratio=0.5).choose(written(), [layer(keys=keys, values=torch.ones_like(keys))]).blocks
    assert blocks is not None
    assert [*blocks] == [0, 2, 4], "of the first four those with a small key, and the last"


def test_keydiff_compares_directions_whatever_their_length() -> None:
    keys = torch.zeros(1, LENGTH, DIM)
    keys[..., 0] = 1.0
    keys[0, 7] = 100 * torch.eye(DIM)[1]
    assert int(KeyDiff().score(layer(keys=keys)).argmax()) == 7


def test_queries_are_turned_back_to_what_they_were() -> None:
    given = layer()
    turned = layer(queries=rotate(given.queries, rotary(given.query_positions)))
    torch.testing.assert_close(unrotated(turned), given.queries)


def test_paged_eviction_weighs_values_against_keys() -> None:
    given = layer()
    want = given.values.norm(dim=-1)[0] / given.keys.norm(dim=-1)[0]
    torch.testing.assert_close(PagedEviction().score(given), want)


def test_openvino_gives_up_recent_blocks_before_the_first_ones() -> None:
    worth = OpenVINOEviction(start_tokens=5, recent_tokens=4).protected(5, written())
    assert worth.tolist() == [2, 2, 0, 0, 1]
