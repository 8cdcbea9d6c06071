"""Requests over several groups of KV, served and replayed, and hits beside those of the plain rule."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from fake_engines import noted_steps
from groups_plain import Rule

from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.engine.request import Request
from framework.llm import LLM, EngineOptions
from framework.sampling import Sampling

Asked = list[tuple[list[int], Sampling]]


def workload(seed: int, count: int) -> Asked:
    """Prompts that part from a few stems anywhere, and answers of any length."""
    draw, asked = random.Random(seed), []
    stems = [[draw.randrange(4, 250) for _ in range(56)] for _ in range(3)]
    for _ in range(count):
        prompt = draw.choice(stems)[: draw.choice((9, 30, 41, 56))]
        prompt = prompt + [draw.randrange(4, 250) for _ in range(draw.randint(1, 9))]
        asked.append((prompt, Sampling(max_tokens=draw.randint(1, 11), ignore_eos=True)))
    return asked


def replayed(llm: LLM, served: list[Request], asked: Asked, options: EngineOptions) -> tuple[list[Request], Any, int]:
    """The same requests through the same allocator without a model, its steps, and how many were preempted."""
    outputs = {(number, 0): np.array(request.completions[0].tokens, dtype=np.int32)
               for number, request in enumerate(served)}  # fmt: skip
    executor = ReplayExecutor(constant_step(1.0), outputs=outputs)
    limits = ModelLimits(max_model_len=llm.max_model_len)
    engine = Engine(llm._build_allocator(), executor, limits=limits, options=options)
    steps = noted_steps(engine)
    requests = [engine.submit(prompt, sampling, namespace=llm.namespace) for prompt, sampling in asked]
    engine.run(on_step=lambda engine: engine.check())
    return requests, steps, engine.metrics.num_preemptions


def hits_and_those_of_the_rule(llm: LLM, asked: Asked) -> tuple[list[int], list[int]]:
    """Tokens hit by each request, one at a time, and what vLLM's rule and the ends of requests say."""
    rule, hits, wanted = Rule(llm.groups, ends=True), list[int](), list[int]()
    for prompt, sampling in asked:
        request = llm.generate(prompt, sampling)[0]
        hits.append(request.num_cached_tokens)
        wanted.append(rule.hit(prompt, [*prompt, *request.completions[0].tokens[:-1]]))
    return hits, wanted
