"""The requests of SharedQuestions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
from framework.errors import ConfigError
from framework.interfaces.workload import Sampling, Workload, WorkloadRequest


class SharedQuestions(Workload):
    """Short questions about one shared text."""

    def __init__(self, *, seed: int = 0, num_requests: int = 32, output_tokens: int = 16) -> None:
        if num_requests < 1 or output_tokens < 1:
            raise ConfigError("num_requests and output_tokens must be at least 1")
        self.seed, self.num_requests, self.output_tokens = seed, num_requests, output_tokens

    def requests(self) -> Iterator[WorkloadRequest]:
        draw = Random(f"shared_questions:{self.seed}")  # a text seed is the same in any process
        shared = [draw.randrange(256) for _ in range(64)]
        for number in range(self.num_requests):
            question = [draw.randrange(256) for _ in range(draw.randint(4, 12))]
            yield WorkloadRequest(
                prompt=np.array(shared + question, dtype=np.int32),
                sampling=Sampling(max_tokens=self.output_tokens),
                category="question",
                key=f"shared_questions-{number}",
            )
