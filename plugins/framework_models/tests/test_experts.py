"""Routed experts give the same however their tokens are sorted."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from framework.errors import InvalidArgument
from framework.model.loading import TINY_CONFIG
from framework.model.shard import Shard
from framework_models.experts import ExpertsConfig, RoutedModel
from framework_models.modules.experts import ClampedExperts

ROUTED = ExpertsConfig(count=5, per_token=2, intermediate_size=8)


def test_routed_experts_give_the_same_with_and_without_sorting_by_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator), requires_grad=False)

    experts = ClampedExperts(ROUTED, 16, weight)
    x = torch.randn(7, 16, dtype=torch.float64, generator=generator)
    own = experts(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(experts(x), own)


def test_more_ranks_than_columns_of_an_expert_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"8 columns of an expert are fewer\. Would work: 1, 2, 4, 8$"):
        Shard(0, 16).config(RoutedModel(**{**asdict(TINY_CONFIG), "num_heads": 16}, experts=ROUTED))
