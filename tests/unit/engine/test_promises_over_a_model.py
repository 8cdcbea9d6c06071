"""A real model over poisoned blocks: what one row of a step computes, the others of the step read, in every backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_engines import finished, make_llm

from framework import LLM, Sampling
from framework.config.sections import EngineOptions
from framework.errors import BackendUnavailable, ConfigError, FrameworkError
from framework.llm import CacheOptions
from framework.registry import names
from framework_builtin.backend.gather import GatherBackend

COMMON = [3 + at * 7 % 90 for at in range(92)]
PROMPTS = [[*COMMON, 5 + at, 60 - at] for at in range(6)]


def serve(
    backend: str, share: bool, chunk: int | None = None, scheduling: Any = "admit_first"
) -> tuple[list[list[int]], list[int]]:
    engine = EngineOptions(
        max_model_len=128, share_within_step=share, chunk_size=chunk, prepack=False, scheduling=scheduling
    )
    llm = make_llm("tiny", backend=backend, num_blocks=80, poison=True, device="cpu", engine=engine)
    requests = llm.generate(PROMPTS, Sampling(max_tokens=4, ignore_eos=True))
    llm.engine.check()
    return [tokens for [tokens] in finished(requests)], [request.num_cached_tokens for request in requests]


class AttendsWhileItWrites(GatherBackend):
    """Says that it stores a row's K and V only as it attends to that row."""

    capabilities = replace(GatherBackend.capabilities, writes_before_attend=False)


def test_a_backend_that_attends_before_all_is_written_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set engine\.share_within_step=false"):
        LLM("tiny", backend=AttendsWhileItWrites, cache=CacheOptions(num_blocks=20), device="cpu")
    options = {"share_within_step": False, "max_model_len": 64, "num_blocks": 20, "device": "cpu"}
    with make_llm("tiny", backend=AttendsWhileItWrites, **options) as llm:
        assert llm.generate([[3, 4, 5]], Sampling(max_tokens=2))[0].status.value == "finished"


@pytest.mark.parametrize("chunk", [None, 40])
@pytest.mark.parametrize("backend", sorted(names("backend")))
def test_every_backend_reads_what_other_rows_of_the_step_wrote(backend: str, chunk: int | None) -> None:
    try:
        alone, none = serve(backend, share=False, chunk=chunk)
    except (BackendUnavailable, FrameworkError) as error:
        pytest.skip(f"{backend} does not run here: {error}")
    together, cached = serve(backend, share=True, chunk=chunk)
    assert together == alone
    assert sum(none) < sum(cached), (none, cached)
    assert max(cached) == 80, "five full blocks of 16 tokens"


@pytest.mark.parametrize("chunk", [None, 20])
def test_the_order_of_the_schedule_changes_no_token(chunk: int | None) -> None:
    alone, _ = serve("gather", share=False)
    together, cached = serve("gather", share=True, chunk=chunk, scheduling="running_first")
    assert together == alone
    assert max(cached) == 80, "five full blocks of 16 tokens"
