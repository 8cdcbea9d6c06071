"""A real model over poisoned blocks: what one row of a step computes, the others of the step read, in every backend."""

from __future__ import annotations

import pytest
from fake_engines import finished, make_llm

from framework import Sampling
from framework.config.sections import EngineOptions
from framework.errors import BackendUnavailable, FrameworkError
from framework.registry import names

COMMON = [3 + at * 7 % 90 for at in range(92)]
PROMPTS = [[*COMMON, 5 + at, 60 - at] for at in range(6)]
GREEDY = Sampling(max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("chunk", [None, 40])
@pytest.mark.parametrize("backend", sorted(names("backend")))
def test_every_backend_reads_what_other_rows_of_the_step_wrote(backend: str, chunk: int | None) -> None:
    engine = EngineOptions(max_model_len=128, chunk_size=chunk, prepack=False)
    try:
        llm = make_llm("tiny", backend=backend, num_blocks=80, poison=True, device="cpu", engine=engine)
        alone = []
        for prompt in PROMPTS:
            alone += finished(llm.generate([prompt], GREEDY))
            llm.reset()
    except (BackendUnavailable, FrameworkError) as error:
        pytest.skip(f"{backend} does not run here: {error}")
    requests = llm.generate(PROMPTS, GREEDY)
    llm.engine.check()
    assert finished(requests) == alone
    assert max(request.num_cached_tokens for request in requests) == 80, "five full blocks of 16 tokens"
