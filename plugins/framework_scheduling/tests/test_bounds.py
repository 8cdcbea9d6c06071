"""Bounds of orders: by hand, against every permutation, and above whatever an order of ours reaches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest

from framework import registry
from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, StepCosts
from framework.engine.request import Request
from framework.errors import InvalidArgument
from framework.interfaces.scheduling import QueueView, Scheduling, WaitingRequest
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_allocator
from framework.replay.items import submit
from framework.sampling import Sampling
from framework.types import Namespace
from framework_scheduling.bounds import Make, best_order, most_hits

COSTS = StepCosts(step_s=0.01, row_s=0.001, token_s=0.01, context_s=0.0, pair_s=0.0)


class Fixed(Scheduling):
    """These requests first, in this order."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return sorted(waiting, key=lambda request: self.numbers.index(request.number))


def asked(prompt: Sequence[int], new: int = 1, at_s: float = 0.0, **more: object) -> WorkloadRequest:
    sampling = Sampling(max_tokens=new, ignore_eos=True)
    return WorkloadRequest(prompt=np.array(prompt, dtype=np.int32), arrival_s=at_s, sampling=sampling, **more)  # type: ignore[arg-type]


def made_by(num_blocks: int = 8, rows: int = 2, tokens: int = 64) -> Make:
    def make(order: Scheduling) -> Engine:
        return Engine(
            build_allocator("prefix", "lru", "xxh64", num_blocks=num_blocks, block_size=4, max_model_len=64),
            ReplayExecutor(COSTS),
            limits=ModelLimits(max_model_len=64),
            options=EngineOptions(max_batch_tokens=tokens, max_batch_requests=rows),
            virtual_clock=True,
            scheduling=order,
        )

    return make


def through(make: Make, order: Scheduling, requests: Sequence[WorkloadRequest]) -> list[Request]:
    engine = make(order)
    submitted = [submit(engine, request) for request in requests]
    engine.run()
    return submitted


def drawn(seed: int, count: int) -> list[WorkloadRequest]:
    """Requests that share prefixes of one to three blocks, most of them there at once."""
    draw, requests, at_s = random.Random(seed), list[WorkloadRequest](), 0.0
    for number in range(count):
        at_s += draw.choice((0.0, 0.0, 0.1))
        shared = [10 * draw.randrange(3)] * (4 * draw.randrange(4))
        requests.append(asked([*shared, *[1000 + number] * draw.randrange(1, 9)], draw.randrange(1, 5), at_s))
    return requests


def test_the_most_hits_are_full_blocks_that_another_request_has_too() -> None:
    eight = [*range(8)]
    found = most_hits([asked([*eight, 9]), asked([*eight, 8]), asked(eight), asked([5] * 9)], 4)
    # A hit leaves a token to compute: the third, whose prompt ends there, hits one block.
    assert found.each == (8, 8, 4, 0)
    # The third may come first: then both others hit both blocks, and one of the three computes the first block.
    assert found.together == 4 * (2 + 2)
    assert most_hits([asked([*eight, 9]), asked([*eight, 8])], 4).together == 8
    assert most_hits([asked([1, 2, 3]), asked([1, 2, 4])], 1) == most_hits([asked([1, 2, 3]), asked([1, 2, 9])], 1)
    assert most_hits([asked([1, 2, 3]), asked([1, 2, 4])], 1).each == (2, 2)


def test_a_recorded_output_can_be_hit() -> None:
    output = np.array([5, 6, 7, 8, 9], dtype=np.int32)
    found = most_hits([asked([1, 2, 3, 4], output=output, output_tokens=5), asked([*range(1, 10), 0])], 4)
    assert found.each == (0, 8)
    assert found.together == 8


@pytest.mark.parametrize("seed", range(6))
def test_nothing_hits_more_than_the_bound_and_no_order_beats_the_search(seed: int) -> None:
    requests, make = drawn(seed, 5), made_by(num_blocks=8 + seed % 3, rows=1 + seed % 2)
    bound = most_hits(requests, 4)
    prompts = sum(request.input_tokens for request in requests)
    fewest = best_order(make, requests, "missed_tokens")
    fastest = best_order(make, requests, "ttft_s", np.mean)
    assert prompts - fewest.value <= bound.together <= sum(bound.each)
    assert sorted(fewest.admitted) == sorted(fastest.admitted) == [0, 1, 2, 3, 4]
    orders = [Fixed(numbers) for numbers in permutations(range(5))]
    orders += [registry.build("scheduling", name) for name in registry.names("scheduling")]
    misses, means = [], []
    for order in orders:
        run = through(make, order, requests)
        assert all(one.num_cached_tokens <= most for one, most in zip(run, bound.each, strict=True))
        misses.append(prompts - sum(one.num_cached_tokens for one in run))
        means.append(np.mean([(one.first_token_s or 0.0) - one.arrival_s for one in run]))
    assert fewest.value <= min(misses)
    assert fastest.value <= min(means) + 1e-9
    assert max(misses) > min(misses) or max(means) > min(means), "orders differ here"


def test_the_best_order_is_not_one_that_each_heuristic_finds() -> None:
    """A pool of four blocks: whoever computes the shared prefix must be followed by the other at once."""
    prefix = [7] * 8
    requests = [asked([*prefix, 1]), asked([2] * 12), asked([*prefix, 3]), asked([4] * 12)]
    make = made_by(num_blocks=4, rows=1)
    found = best_order(make, requests, "missed_tokens")
    assert found.value == sum(request.input_tokens for request in requests) - 8
    assert abs(found.admitted.index(0) - found.admitted.index(2)) == 1
    assert sum(one.num_cached_tokens for one in through(make, Scheduling(), requests)) == 4, "in order of arrival"


def test_the_last_of_three_may_be_the_first_of_the_best_order() -> None:
    requests = [asked([number] * length, at_s=0.0) for number, length in enumerate((24, 16, 4))]
    assert best_order(made_by(rows=1), requests, "ttft_s").admitted == (2, 1, 0)


def test_a_branch_that_cannot_be_better_is_left() -> None:
    requests = drawn(3, 6)
    assert best_order(made_by(), requests, "missed_tokens").num_runs < 400  # of 720 permutations
    with pytest.raises(InvalidArgument, match="more than 3 runs"):
        best_order(made_by(num_blocks=9), requests, "ttft_s", np.mean, most_runs=3)


def test_what_a_search_cannot_take_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="found 'hits'"):
        best_order(made_by(), drawn(0, 2), "hits")
    with pytest.raises(InvalidArgument, match="longest sequence"):
        best_order(made_by(), [asked([1] * 70)], "ttft_s")
    with pytest.raises(InvalidArgument, match="token ids"):
        most_hits([WorkloadRequest(input_tokens=8)], 4)


def test_placeholders_of_other_images_bound_no_hit() -> None:
    spaces = [Namespace(contents=((4, 8, name),)) for name in ("cat", "dog", "cat")]
    assert most_hits([asked([7] * 13, namespace=space) for space in spaces], 4).each == (12, 4, 12)
