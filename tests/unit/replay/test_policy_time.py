"""The clock that policies see, in each kind of run."""

from __future__ import annotations

import pytest
from fake_engines import make_engine
from paged_helpers import ArrivalWatch

from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator
from framework.sampling import Sampling


@pytest.mark.parametrize("virtual", [True, False])
def test_a_replay_counts_virtual_seconds_and_a_serve_run_steps_in_now_and_arrival_alike(virtual: bool) -> None:
    watch = ArrivalWatch()
    built = build_allocator("prefix_cow", watch, "sha256", num_blocks=8, block_size=4, max_model_len=32)
    engine = make_engine(built, ReplayExecutor(constant_step(0.5)), max_model_len=32, virtual_clock=virtual)
    for at, first in ((0.0, 1), (600.0, 20)):
        engine.submit([*range(first, first + 9)], Sampling(max_tokens=3, ignore_eos=True), arrival_s=at)
    engine.run()
    assert watch.seen == ([(1.0, 0.0), (601.0, 600.0)] if virtual else [(3.0, 0.0), (7.0, 4.0)]), watch.seen
