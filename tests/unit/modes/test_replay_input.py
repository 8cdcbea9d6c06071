"""What a replay is made of: the size of its pool."""

from __future__ import annotations

import pytest

from framework.errors import ConfigError
from framework.modes.replay_input import capacity_blocks


@pytest.mark.parametrize(
    ("text", "blocks"),
    [("10000", 10_000), ("25%", 50), ("0.1%", 1), ("40MB", 40), ("1 GiB", 1073), ("2500KB", 2), ("1000000B", 1)],
)
def test_a_capacity_is_blocks_bytes_or_a_share(text: str, blocks: int) -> None:
    assert capacity_blocks(text, working_set=200, bytes_per_block=1_000_000) == blocks


@pytest.mark.parametrize(
    ("text", "words"),
    [("0", "less than one"), ("0%", "less than one"), ("0.5", "whole number"), ("ten", "blocks"), ("-5", "blocks"),
     ("5GB", "--shape"), ("", "blocks")],
)  # fmt: skip
def test_a_capacity_that_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        capacity_blocks(text, working_set=200)
