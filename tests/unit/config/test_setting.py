"""A section checks itself when it is made, in Python as on the command line."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from framework.config.sections import CacheOptions, EngineOptions, RunOptions
from framework.engine.engine import ModelLimits
from framework.errors import ConfigError


def test_values_are_converted_to_their_types() -> None:
    limits = ModelLimits(max_model_len=8, eos_token_ids=[1, 8])  # type: ignore[arg-type]
    assert limits.eos_token_ids == (1, 8)
    assert limits.plain()["eos_token_ids"] == [1, 8]
    assert type(RunOptions(dir="x", timeout_s=5).timeout_s) is float


def test_a_bound_holds_in_python_too_and_for_a_changed_copy() -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_batch_requests must be at most 65536, found 10000000"):
        EngineOptions(max_batch_requests=10**7)
    with pytest.raises(ConfigError, match=r"cache\.block_size must be at least 1, found 0"):
        replace(CacheOptions(), block_size=0)
    with pytest.raises(ConfigError, match=r"run\.timeout_s must be a finite number, found inf"):
        RunOptions(dir="x", timeout_s=math.inf)
