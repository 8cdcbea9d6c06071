"""A request of a workload holds its tokens, and refuses what are none."""

from __future__ import annotations

import numpy as np
import pytest

from framework.errors import InvalidArgument, InvalidTokens
from framework.workload import WorkloadRequest


def test_a_request_keeps_its_own_copy_of_its_tokens() -> None:
    tokens = np.array([1, 2, 3], dtype=np.int32)
    request = WorkloadRequest(prompt=tokens)
    tokens[0] = 9
    assert request.prompt.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="read-only"):
        request.prompt[0] = 5  # type: ignore[index]


@pytest.mark.parametrize("prompt", ["", (), np.empty(0, dtype=np.int32)])
def test_an_empty_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidArgument, match="at least one token"):
        WorkloadRequest(prompt=prompt)  # type: ignore[arg-type]


def test_token_ids_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidTokens):
        WorkloadRequest(prompt=np.array([0.5]))  # type: ignore[arg-type]
