"""Orders by the work that a request still is."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from framework.errors import InvalidArgument
from framework.interfaces.scheduling import QueueView, Scheduling, ScoredScheduling, WaitingRequest


class ShortestJob(ScoredScheduling):
    """The shortest prompt is next, whatever of it is cached.

    Source: vllm-project/vllm issue 29406 and pull request 29366, whose score mixes length and wait with weights to
    tune; here length alone decides, and the wait by its bound.

    Args:
        max_wait_s: wait, seconds, from which on nobody passes a request; None: no bound.
    """

    def __init__(self, max_wait_s: float | None = 10.0) -> None:
        self.max_wait_s = max_wait_s

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        return request.num_tokens


class ShortestRest(ScoredScheduling):
    """The request with the fewest whole blocks of its prompt left to compute is next, the oldest among equals.

    Source: vllm-project/vllm pull request 51375 (`residual_sjf`) and xLLM-AI/xllm pull request 2164, whose bound is
    10,000 ms.

    Args:
        max_wait_s: wait, seconds, from which on nobody passes a request; None: no bound.
    """

    needs_hits = True

    def __init__(self, max_wait_s: float | None = 10.0) -> None:
        self.max_wait_s = max_wait_s

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        return -(-request.rest_tokens // view.block_size)


class Ewsjf(Scheduling):
    """Short prompts first, each the more urgent the longer it waits; oldest first within a class of lengths.

    The score of a request is its wait, times 1 + weight ln(length + 1), times step / (class + 1), where its class is
    length // step. The class whose oldest request scores highest is next. Source: vllm-project/vllm pull request 33392,
    ewsjf_scheduler/scoring.py, and arXiv 2601.21758; the paper's learnt partition of lengths and its tuner of the
    weights are not part of that scorer, nor of this.

    Args:
        step: tokens a class of lengths is wide (200).
        weight: of the length (0.5).
        max_passed: most requests that may pass another; None: no bound, though every score grows with the wait.
    """

    def __init__(self, step: int = 200, weight: float = 0.5, max_passed: int | None = None) -> None:
        if step < 1 or weight < 0:
            raise InvalidArgument(f"step must be at least 1 and weight at least 0, found {step} and {weight}")
        self.step, self.weight, self.max_passed = step, weight, max_passed

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        """Highest first."""
        wait, length = view.now_s - request.arrival_s, request.num_tokens
        return wait * (1 + self.weight * math.log(length + 1)) * self.step / (length // self.step + 1)

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        classes: dict[int, deque[WaitingRequest]] = {}
        for request in waiting:
            classes.setdefault(request.num_tokens // self.step, deque()).append(request)
        heads = [(-self.score(queue[0], view), number) for number, queue in classes.items()]
        heapq.heapify(heads)
        chosen = []
        while heads:
            _, number = heapq.heappop(heads)
            chosen.append(classes[number].popleft())
            if classes[number]:
                heapq.heappush(heads, (-self.score(classes[number][0], view), number))
        return chosen
