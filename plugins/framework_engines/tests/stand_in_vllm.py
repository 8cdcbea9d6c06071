"""`vllm serve` and its client for experiments/live where there is no vLLM: our engine without a model, asked alike."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_engines import make_engine

from experiments.live.server import BLOCK, LONGEST, ROWS, STEP_TOKENS, Answer, Ask
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator, build_component
from framework.sampling import Sampling
from framework.types import Namespace
from framework_builtin.hash.sha256 import Sha256
from framework_engines.vllm_scheduling import options_of
from framework_engines.vllm_trace import TimedSteps, TraceMethods


@dataclass
class StandIn:
    """One server: an engine of the settings that experiments/live gives vLLM, and a recorder where one is asked for."""

    log: Path
    engine: Any
    recorder: Any
    allocator: Callable[[], Any]
    evictions: int = 0
    hits: int = 0
    scheduled: list[Any] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        return {"vllm:prefix_cache_hits_total": self.hits, "vllm:num_preemptions_total": 1}

    def forget(self) -> None:
        self.engine.reset(self.allocator())


class Client:
    """Answers in the order of asking; the tokens that it says follow from the prompt."""

    def __init__(self, server: StandIn) -> None:
        self.server = server

    def ask(self, ask: Ask, **extra: Any) -> Answer:
        return self.served([ask], **extra)[0]

    def served(self, asks: Sequence[Ask], n: int = 1, **extra: Any) -> list[Answer]:
        """All of them at once. vLLM makes a request of each of `n` samples; the later ones hit every whole block."""
        server, engine, recorder = self.server, self.server.engine, self.server.recorder
        running = []
        for ask in asks:
            facts = SimpleNamespace(
                request_id=str(len(running)), num_prompt_tokens=len(ask.prompt), session_id=None, priority=0,
                cache_salt=None, lora_request=None,
            )  # fmt: skip
            if recorder is not None:
                recorder.on_new_request(facts)
            sampling = Sampling(max_tokens=ask.max_tokens, n=n, ignore_eos=True)
            running.append((facts, engine.submit(np.array(ask.prompt, dtype=np.int32), sampling)))
        while engine.num_unfinished:
            engine.step()
            for output in server.scheduled:
                if recorder is not None:
                    recorder.scheduled(output)
            server.scheduled.clear()
        answers = []
        for facts, request in running:
            assert not request.reason, request.reason
            tokens = [int(token) for one in request.completions for token in one.tokens]
            whole = np.append(request.prompt, tokens).astype(np.int32)
            full = whole[: len(whole) // BLOCK * BLOCK]
            facts.num_tokens = len(whole)
            facts.block_hashes = Sha256().blocks(Sha256().root(Namespace(), BLOCK), full, BLOCK)
            if recorder is not None:
                recorder.request_finished_all_groups(facts, ())
            cached = request.num_cached_tokens if n == 1 else (len(request.prompt) - 1) // BLOCK * BLOCK
            server.hits += request.num_cached_tokens + (n - 1) * cached
            lengths = [len(one.tokens) for one in request.completions]
            said = [int(request.prompt.sum()) + place for place in range(len(tokens))]
            answers.append(Answer(said, cached, len(request.prompt), lengths))
        return answers

    def stream(self, ask: Ask, stop_after: int | None = None) -> Answer:
        return self.ask(ask)

    def one_by_one(self, asks: Sequence[Ask]) -> list[Answer]:
        return [self.ask(ask) for ask in asks]

    def at_once(self, asks: Sequence[Ask], clients: int, **extra: Any) -> list[Answer]:
        return self.served(asks)

    def on_time(self, asks: Sequence[Ask], arrivals_s: Sequence[float]) -> tuple[float, list[Answer]]:
        start = time.perf_counter()
        answers = self.served(asks)
        took = time.perf_counter() - start
        for answer, arrival_s in zip(answers, arrivals_s, strict=True):
            answer.first_s, answer.end_s = start + arrival_s + took / 2, start + arrival_s + took
        return start, answers


servers: list[StandIn] = []


@contextmanager
def serving(
    model: Path, log: Path, arguments: Sequence[str], transfer: Mapping[str, Any] | None = None
) -> Iterator[StandIn]:
    """As the real one: `arguments` of vLLM's, `transfer` of our connectors."""
    configs = {}
    if transfer is not None:
        several = transfer["kv_connector_extra_config"].get("connectors", [transfer])
        configs = {config["kv_connector"]: config["kv_connector_extra_config"] for config in several}
    eviction = configs.get("PolicyConnector", {}).get("eviction", "lru")
    log.write_text("The eviction policy failed" if ":" in eviction else "")
    blocks = int(arguments[arguments.index("--num-gpu-blocks-override") + 1]) - 1

    order = None
    if "--additional-config" in arguments:
        order, _ = options_of(json.loads(arguments[arguments.index("--additional-config") + 1]))

    def allocator() -> Any:
        policy = build_component("eviction", "lru" if ":" in eviction else eviction, {"num_blocks": blocks, "seed": 0})
        made = build_allocator(
            {"name": "prefix", "watermark": 0.0, "duplicates": "keep"}, policy, "sha256",
            num_blocks=blocks, block_size=BLOCK, max_model_len=LONGEST, seed=0,
        )  # fmt: skip
        made.listen(heard)
        return made

    def heard(event: Any) -> None:
        server.evictions += len(event.hashes) if event.kind == "evict" else 0

    executor = ReplayExecutor(constant_step(0.0), step_clock=True)
    engine = make_engine(
        allocator(), executor, max_model_len=LONGEST, max_batch_tokens=STEP_TOKENS, max_batch_requests=ROWS,
        virtual_clock=True, scheduling=order,
    )  # fmt: skip
    recorder: Any = None
    if "TraceConnector" in configs:
        recorder, extra = TraceMethods(), configs["TraceConnector"]
        recorder.path, recorder.steps = Path(extra["path"]), TimedSteps(Path(extra["steps"]))
        recorder.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=BLOCK)))
    server = StandIn(log, engine, recorder, allocator)
    forward = executor.forward

    def noted(step: Any, rows: Any) -> None:
        pairs = {
            str(row): (int(new), int(rows.computed[row])) for row, new in zip(step.rows, step.num_new, strict=True)
        }
        server.scheduled.append(SimpleNamespace(
            total_num_scheduled_tokens=int(step.num_new.sum()), scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=list(pairs), num_computed_tokens=[computed for _, computed in pairs.values()]
            ),
            num_scheduled_tokens={name: new for name, (new, _) in pairs.items()},
        ))  # fmt: skip
        forward(step, rows)

    executor.forward = noted  # type: ignore[method-assign]
    servers.append(server)
    yield server
    if recorder is not None:
        recorder.shutdown()


@contextmanager
def counting_evictions(endpoint: str) -> Iterator[Callable[[], int]]:
    """Those of the server that was started last."""
    server = servers[-1]
    yield lambda: server.evictions
