"""Steps and arrivals as a policy sees them in vLLM are those that it sees in the replay of the recording made there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_stand_ins import Manager, pretend_vllm
from fake_engines import make_engine
from paged_helpers import NS, tokens

from framework import registry
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator
from framework.replay.items import feed, trace_items
from framework_builtin.eviction.lru import Lru
from framework_builtin.hash.sha256 import Sha256
from framework_engines.host_blocks import build_policy
from framework_engines.vllm_connector import _Methods
from framework_engines.vllm_trace import TraceMethods
from framework_workloads.trace import open_trace

BLOCKS = 40


class Noting(Lru):
    """LRU that notes each call, its time, and when and whose the requests were that last used its blocks."""

    needs_requests = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []


def _noted(call: str) -> Any:
    def hook(self: Noting, blocks: Any, now: float) -> None:
        facts = [self.blocks.last_request[block] for block in blocks]
        self.seen.append((call, now, [(one.arrival, one.turn, one.prompt_tokens) for one in facts],
                          [self.blocks.tenant[block] for block in blocks]))  # fmt: skip
        getattr(Lru, call)(self, blocks, now)

    return hook


for _call in ("admit", "hit", "pin", "release"):
    setattr(Noting, _call, _noted(_call))


@dataclass(eq=False)
class Talk:
    """A request as vLLM has it, its prompt and answer within the same blocks, and before which round it comes."""

    number: int
    ids: list[int]
    answer: int
    comes: int
    tenant: str
    request: Any = field(init=False)

    def __post_init__(self) -> None:
        prompt, size = tokens(*self.ids), len(self.ids)
        names = Sha256().blocks(Sha256().root(NS, 16), prompt[: size // 16 * 16], 16)
        self.request = SimpleNamespace(
            request_id=str(self.number), num_tokens=size, num_prompt_tokens=size, block_hashes=names, priority=0,
            cache_salt=self.tenant or None, lora_request=None, session_id=None, max_tokens=self.answer,
            is_finished=lambda: self.request.num_tokens == size + self.answer,
        )  # fmt: skip


def talks(seed: int, apart: bool) -> list[Talk]:
    """Conversations of four tenants; one at a time, or some in flight together."""
    draw, made, comes = random.Random(seed), list[Talk](), 0
    trunks = [[number] * (16 * draw.randint(1, 9)) for number in range(9)]
    for number in range(90):
        which = draw.randrange(9)
        ids = [*trunks[which][: 16 * draw.randint(1, 9)], *(draw.randrange(9) for _ in range(draw.randint(1, 10)))]
        answer = draw.randint(1, 16 - len(ids) % 16 - 1) if len(ids) % 16 < 15 else 1
        ids = ids if len(ids) % 16 < 15 else ids[:-1]
        made.append(Talk(number, ids, answer, comes, ("", "a", "b", "c")[which % 4]))
        comes += draw.choice([30, 40]) if apart else draw.choice([0, 0, 1, 3, 30])
    return made


def in_vllm(stream: list[Talk], path: Path, policy: Any) -> tuple[Any, list[int]]:
    """The policy that led, and the blocks that each request hit; when a request has ended, an empty step is made."""
    manager: Any = Manager(BLOCKS)
    led: Any = _Methods()
    led.options, led.explain, led.watch, led.misses, led._start = (policy, 0, "steps"), None, None, None, 0.0
    recorder: Any = TraceMethods()
    recorder.path = path
    connectors = (led, recorder)
    for connector in connectors:
        connector.bind_kv_cache_manager(manager)
    waiting, running, hits = list[Talk](), list[Talk](), dict[int, int]()
    round_ = 0
    pending = list(stream)
    trailing = False
    while pending or waiting or running:
        while pending and pending[0].comes <= round_:
            waiting.append(pending.pop(0))
            for connector in connectors:
                connector.on_new_request(waiting[-1].request)
        round_ += 1
        if not (waiting or running or trailing):
            continue  # vLLM sleeps
        manager.new_step_starts()
        computed = len(running)
        while waiting and len(running) < 4:
            found = manager.allocate_slots(waiting[0].request)
            if found is None:
                break
            hits[waiting[0].number] = found
            computed += len(waiting[0].ids) - 16 * found
            running.append(waiting.pop(0))
        for scheduled in (led._scheduled, recorder.scheduled):
            scheduled(SimpleNamespace(total_num_scheduled_tokens=computed))
        for talk in running:
            talk.request.num_tokens += 1
        ended = [talk for talk in running if talk.request.is_finished()]
        running = [talk for talk in running if talk not in ended]
        for talk in ended:
            for connector in connectors:
                connector.request_finished_all_groups(talk.request, ())
            manager.free(talk.request)
        trailing = bool(ended)
    recorder.shutdown()
    assert led.watch.queue.failure is None
    return led.watch.queue.facts.policy.plugin, [hits[talk.number] for talk in stream]


def in_replay(path: Path, policy: Any) -> list[int]:
    outputs: dict[tuple[int, int], Any] = {}
    allocator = build_allocator(
        {"name": "prefix", "watermark": 0.0, "duplicates": "keep"}, policy, "sha256",
        num_blocks=BLOCKS, block_size=16, max_model_len=BLOCKS * 16, seed=0,
    )  # fmt: skip
    engine = make_engine(
        allocator, ReplayExecutor(constant_step(0.0), outputs=outputs, step_clock=True),
        max_model_len=BLOCKS * 16, max_batch_tokens=8192, max_batch_requests=4,
        virtual_clock=True,
    )  # fmt: skip
    hits: dict[int, int] = {}
    engine.state.on_end = lambda request: hits.update({request.number: request.num_cached_tokens // 16})
    for _ in feed(engine, trace_items(open_trace(path), outputs)):
        pass
    return [hits[number] for number in sorted(hits)]


@pytest.mark.parametrize("apart", [True, False], ids=["one client", "several"])
@pytest.mark.parametrize("seed", range(2))
def test_a_policy_sees_the_same_times_and_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, apart: bool
) -> None:
    pretend_vllm(monkeypatch)
    ours, path = Noting(), tmp_path / "trace"
    theirs, hits = in_vllm(talks(seed, apart), path, Noting())
    assert in_replay(path, ours) == hits
    for there, here in zip(theirs.seen, ours.seen, strict=True):
        assert there == here


POLICIES = [
    name
    for name in registry.names("eviction")
    if not registry.load("eviction", name).needs_future and name != "w_tinylfu"  # counts names in a sketch: drawn anew
]


@pytest.mark.parametrize("eviction", POLICIES)
def test_every_policy_hits_what_the_replay_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eviction: str) -> None:
    pretend_vllm(monkeypatch)
    for seed, apart in ((0, True), (1, False)):
        path = tmp_path / str(seed)
        _, hits = in_vllm(talks(seed, apart), path, eviction)
        assert in_replay(path, build_policy(eviction, BLOCKS, block_size=16)) == hits, f"apart: {apart}"
