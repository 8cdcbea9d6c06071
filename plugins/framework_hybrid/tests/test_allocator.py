"""A full replay over groups: against the replay of one request at a time, and by the allocator's own account."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fake_engines import make_engine, noted_steps
from groups_plain import LAYOUTS, brute_hit, group
from hybrid_helpers import branching, lru, memories, paths_of

from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.groups.checkpoints import CheckpointRule, Retention
from framework.groups.memory import Memory
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.groups import KVGroup
from framework.interfaces.workload import Sampling
from framework.paged.index import BlockHasher
from framework.registry.components import build_component
from framework.types import BlockHash, Namespace, RequestId, RequestInfo
from framework_cache_only.paths import RequestPaths
from framework_hybrid.allocator import CountedGroups
from framework_hybrid.replay import replay_groups
from framework_hybrid.rules import AtMost, Dense, EveryFew, Junctions, Superseding

WAYS = ("one pool", "pool per group", "two levels")
PAIRS = [(WAYS[number % 3], layout) for number, layout in enumerate(LAYOUTS)]
RULES: tuple[CheckpointRule, ...] = (Dense(), Retention(0), Retention(16), EveryFew(12), Junctions(), AtMost(3, 8),
                                     Superseding())  # fmt: skip
Talk = tuple[list[int], list[int]]


def empty_memory(way: str, groups: Sequence[KVGroup], num_bytes: int, policy: Any = lru) -> Memory:
    return memories(groups, num_bytes, policy=policy)[way]


def over(
    memory: Memory, rule: CheckpointRule, *, step_tokens: int = 24, **options: Any
) -> tuple[Engine, CountedGroups]:
    size = sum(group.block_bytes for group in memory.groups if group.kind != "state")
    num_blocks = max(1, sum(pool.num_blocks for pool in dict.fromkeys(memory.pools)))
    allocator = CountedGroups(memory, rule, build_component("hash", "sha256", {}), num_blocks=num_blocks,
                             num_bytes=num_blocks * size, step_tokens=step_tokens)  # fmt: skip
    given: dict[str, Any] = {"max_batch_requests": 1, **options}
    outputs: dict[tuple[int, int], Any] = {}
    engine = make_engine(allocator, ReplayExecutor(constant_step(1.0), outputs=outputs), max_model_len=200,
                    max_batch_tokens=step_tokens, virtual_clock=True, **given)  # fmt: skip
    engine.outputs = outputs  # type: ignore[attr-defined]
    return engine, allocator


def run(engine: Engine, talks: Sequence[Talk], *, n: int = 1) -> list[Any]:
    """All requests at once, in order; the allocator's account is checked after every step."""
    requests = []
    for number, (prompt, output) in enumerate(talks):
        engine.outputs[number, 0] = np.array(output, dtype=np.int32)  # type: ignore[attr-defined]
        requests.append(engine.submit(prompt, Sampling(max_tokens=len(output), n=n, ignore_eos=True)))
    engine.run(on_step=lambda each: each.check())
    return requests


def talks_of(count: int, seed: int, *, longest_answer: int = 9) -> list[Talk]:
    """Prompts that go on from any place of earlier ones, answers included."""
    draw, made, known = random.Random(seed), list[Talk](), list[list[int]]()
    for number in range(count):
        base = draw.choice(known)[: draw.randrange(60)] if known and draw.random() < 0.8 else [draw.randrange(3)] * 6
        prompt = (base + [100 + number] * draw.randrange(1, 14))[:60]
        output = [1000 + 50 * number + at for at in range(draw.randrange(1, longest_answer + 1))]
        made.append((prompt, output))
        known.append(prompt + output)
    return made


def names_of(paths: RequestPaths, talks: Sequence[Talk]) -> dict[int, BlockHash]:
    """What the allocator calls the prefixes of a trace."""
    hasher, names = BlockHasher(build_component("hash", "sha256", {}), 4), dict[int, BlockHash]()
    for path, (prompt, output) in zip(paths.walk(), talks, strict=True):
        tokens = np.array([*prompt, *output[:-1]], dtype=np.int32)
        names.update(zip(path, hasher.blocks(hasher.root(Namespace())[0], tokens), strict=True))
    return names


def test_a_state_that_is_computed_a_second_time_is_there_once_the_step_is_over() -> None:
    """As in vLLM, which holds back whoever resumes from content that the step at hand computes, by its name."""
    memory, prompt = empty_memory("one pool", LAYOUTS["state"], 400), np.arange(13, dtype=np.int32)
    _, allocator = over(memory, Dense())

    def step(number: int, end: int) -> None:
        allocator.extend(RequestId(number), end)
        allocator.publish(RequestId(number), prompt[:end])
        allocator.commit(RequestId(number), prompt[:end])

    for number, ends in ((1, (4, 8, 12, 13)), (2, (12,))):
        hit = allocator.lookup(prompt, Namespace())
        assert hit.num_tokens == 8 * (number - 1)
        allocator.allocate(info(number), prompt, hit, ends[0])
        for end in ends:
            allocator.advance(0.0)
            step(number, end)
        if number == 1:
            allocator.free(RequestId(1))
            name = allocator.lookup(prompt, Namespace()).hashes[2]
            memory.pools[0].discard(memory.find(0, name))  # K and V of tokens 8 to 11; the state after them stays
    hit = allocator.lookup(prompt, Namespace())
    assert hit.num_tokens == 12
    assert not allocator.fits(info(3), prompt, hit)
    allocator.advance(1.0)
    assert allocator.fits(info(3), prompt, hit)


def watched(memory: Memory) -> list[tuple[int, int]]:
    """Fills with what the memory gives up."""
    gone = list[tuple[int, int]]()

    def heard(event: CacheEvent) -> None:
        if event.kind == "evict":
            gone.extend((event.group, node) for node in event.hashes)

    memory.listener = heard
    return gone


def info(number: int, tokens: int = 20, **facts: Any) -> RequestInfo:
    return RequestInfo(id=RequestId(number), max_total_tokens=tokens, **facts)


def _crossed() -> Iterator[Any]:
    """Each way meets each layout and each rule; that all three meet is a slow test."""
    for (w, way), (k, layout), (r, rule) in itertools.product(*map(enumerate, (WAYS, LAYOUTS, RULES))):
        name = f"{type(rule).__name__}{getattr(rule, 'interval', '')}-{layout}-{way}"
        yield pytest.param(way, layout, rule, id=name, marks=[pytest.mark.slow] if (w + k + r) % 7 else [])


@pytest.mark.parametrize(("way", "layout", "rule"), [*_crossed()])
def test_one_request_at_a_time_it_is_the_replay_without_an_engine(way: str, layout: str, rule: CheckpointRule) -> None:
    """Hits, what each group could give and lost, junctions, evictions in order and the states kept."""
    groups = LAYOUTS[layout]
    for seed, (budget, step) in enumerate(((90, 24), (2000, 3))):  # of 3 tokens: within a state's block
        talks = talks_of(40, seed)
        paths = paths_of([[*prompt, *output[:-1]] for prompt, output in talks])
        memory = memories(groups, budget * len(groups), paths)[way]
        gone = watched(memory)
        there = replay_groups(
            paths, memory, rule, prompt_tokens=[len(prompt) for prompt, _ in talks], chunk_tokens=step
        )
        assert not there.refused, "a request refused here is rejected there"

        memory = empty_memory(way, groups, budget * len(groups))
        engine, allocator = over(memory, rule, step_tokens=step)
        lost = watched(memory)
        requests = run(engine, talks)
        here = allocator.counts()
        assert [request.num_cached_tokens for request in requests] == there.hits.tolist()
        assert here.hits.tolist() == there.hits.tolist()
        assert (here.could.tolist(), here.lost.tolist()) == (there.could.tolist(), there.lost.tolist())
        assert here.junctions.tolist() == there.junctions.tolist()
        assert here.unseen.tolist() == there.unseen.tolist()
        names = names_of(paths, talks)
        assert (here.checkpoints, lost) == (there.checkpoints, [(g, names[node]) for g, node in gone])
        assert budget == 2000 or lost, "the smaller budgets must evict"


@pytest.mark.parametrize(("way", "layout"), PAIRS)
def test_requests_that_overlap_hit_what_is_there_and_are_preempted_for_room(way: str, layout: str) -> None:
    groups, preempted = LAYOUTS[layout], 0
    for seed, budget in enumerate((110, 3000)):
        parts = len(groups) if way == "pool per group" else min(2, len(groups))
        memory = empty_memory(way, groups, budget * parts)
        hit = memory.hit

        def sound(path: Sequence[int], limit: int, memory: Memory = memory, hit: Any = hit) -> Any:
            found, resident = hit(path, limit), set(memory.resident())
            have = [{at for at, node in enumerate(path) if (g, node) in resident} for g in range(len(groups))]
            assert found.tokens == brute_hit(groups, have, limit)
            return found

        memory.hit = sound  # type: ignore[method-assign]
        engine, allocator = over(memory, EveryFew(8), max_batch_requests=5)
        talks = talks_of(60, seed, longest_answer=30)
        requests = run(engine, talks)
        assert [request.status.value for request in requests] == ["finished"] * 60
        assert [len(request.completions[0].tokens) for request in requests] == [len(output) for _, output in talks]
        assert engine.metrics.peak_rows > 2, "requests must overlap"
        assert not any(pool.used for pool in memory.pools), "requests that ended hold nothing"
        assert allocator.stats().used_blocks == 0 < allocator.stats().cached_blocks
        preempted += engine.metrics.num_preemptions
        if budget == 3000:
            assert (allocator.stats().evictions, engine.metrics.num_preemptions) == (0, 0)
            assert sum(request.num_cached_tokens for request in requests) > 300
    assert preempted > 0


def test_blocks_are_shared_within_a_step_and_states_from_the_next_one_on() -> None:
    for layout, steps in (("window", [{0: 20, 1: 4}, {0: 1, 1: 1}]), ("state", [{0: 16}, {0: 4, 1: 4}])):
        engine, _ = over(empty_memory("one pool", LAYOUTS[layout], 4000), Dense(), step_tokens=40, max_batch_requests=2)
        seen = noted_steps(engine)
        run(engine, [([1] * 20, [5, 6]), ([1] * 20, [7, 8])])
        assert seen[:2] == steps, layout


@pytest.mark.parametrize(("way", "layout"), PAIRS)
def test_samples_of_one_request_share_its_blocks_until_they_write(way: str, layout: str) -> None:
    groups = LAYOUTS[layout]
    memory = empty_memory(way, groups, 3000)
    engine, allocator = over(memory, Dense(), max_batch_requests=8)
    requests = run(engine, [([1] * 18, [5] * 9), ([2] * 16, [6] * 9), ([1] * 18, [7] * 9)], n=3)
    assert all(len(request.completions) == 3 for request in requests)
    assert allocator.stats().copied_blocks == 2 * 2 * len(groups), "of 18 tokens the last block of each group, twice"
    assert requests[2].num_cached_tokens == 16 - 4 * groups[0].lookahead_drop
    assert not any(pool.used for pool in memory.pools)


def test_what_can_never_fit_is_rejected_and_what_just_fits_is_served() -> None:
    groups = LAYOUTS["window"]
    for way, most in (("one pool", 26), ("pool per group", 13), ("two levels", 26)):
        engine, allocator = over(empty_memory(way, groups, 4 * 26), Dense(), step_tokens=8)
        window = (9 + 8 + 3) // 4 + 1
        longest = 4 * (most - window if most == 26 else most)
        assert allocator.max_request_tokens == longest
        served, refused = run(engine, [([1] * (longest - 3), [5] * 3), ([2] * longest, [5] * 3)])
        assert served.status.value == "finished", way
        assert (refused.status.value, "can never fit" in refused.reason) == ("rejected", True)


class Remembers(type(lru())):  # type: ignore[misc]
    """Notes what is known of the request that used what goes."""

    needs_requests = True
    seen: list[tuple[Any, ...]] = []  # noqa: RUF012 -- of the run under way

    def evicted(self, block: Any, now: float) -> None:
        facts = self.blocks.last_request[block]
        self.seen.append((facts.prompt_tokens, facts.turn, self.blocks.priority[block], self.blocks.tenant[block]))
        super().evicted(block, now)


def test_policies_read_the_last_request_of_every_block_and_whose_it_is() -> None:
    Remembers.seen = []
    engine, _ = over(empty_memory("one pool", LAYOUTS["window"], 4 * 40, Remembers), Dense(), max_batch_requests=3)
    for number, (prompt, output) in enumerate(talks_of(40, 2)):
        sampling = Sampling(max_tokens=len(output), ignore_eos=True)
        engine.submit(prompt, sampling, priority=number % 2, tenant="ab"[number % 2])
    engine.run()
    assert len(Remembers.seen) > 50
    assert all(prompt and turn is not None for prompt, turn, *_ in Remembers.seen)
    assert {turn for _, turn, *_ in Remembers.seen} > {0, 1}
    assert {facts[2:] for facts in Remembers.seen} >= {(0, 2), (1, 1)}


def test_where_a_block_is_passed_is_where_it_is_no_longer_read() -> None:
    for each in (*LAYOUTS["all"], group("window", 2), group("chunk", 16), group("window", 5, block=2)):
        for block in range(9):
            passed = [tokens for tokens in range(120) if each.first(tokens) > block]
            assert passed == [tokens for tokens in range(120) if tokens >= each.passed_at(block)], each


@pytest.mark.parametrize("way", WAYS)
def test_a_memory_that_says_it_fits_gives_the_blocks(way: str) -> None:
    draw, groups = random.Random(3), (group("full"), group("window", 10, size=8), group("state", size=8))
    paths = paths_of(branching(60, 2))
    memory = memories(groups, 900, paths)[way]
    replay_groups(paths, memory, Dense())
    held = list[tuple[int, int]]()
    yes = no = 0
    for _ in range(400):
        counts = [draw.randrange(9) for _ in groups]
        if memory.fits(counts):
            yes += 1
            held += [(g, block) for g, count in enumerate(counts) for block in memory.take(g, count)]
        else:
            no += 1
            draw.shuffle(held)
            for _ in range(len(held) // 2):
                g, block = held.pop()
                memory.pools[g].release((block,))
    assert min(yes, no) > 20
