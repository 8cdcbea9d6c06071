"""A history that breaks a rule is shown as short as it can be."""

from __future__ import annotations

import re

import pytest

from framework_testing.driver import Violation
from framework_testing.histories import Step, fail_shortest


def test_a_failure_is_shown_with_the_fewest_blocks_steps_and_tokens() -> None:
    def run(history: list[Step], num_blocks: int) -> None:
        if num_blocks >= 3 and any(name == "append" and given[0] and 1 in given[1] for name, *given in history):
            raise Violation(f"{num_blocks} blocks, {history}")

    with pytest.raises(Violation, match=re.escape("3 blocks, [('append', 1, [1])]")):
        fail_shortest(run, [("free", 3), ("append", 3, [0, 1, 0]), ("free", 1)], 9)


def test_what_fails_without_a_step_is_shown_without_one() -> None:
    def run(history: list[Step], num_blocks: int) -> None:
        raise Violation(f"{num_blocks} blocks, {history}")

    with pytest.raises(Violation, match=re.escape("1 blocks, []")):
        fail_shortest(run, [("free", 3)], 4)
