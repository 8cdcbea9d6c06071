"""Every cause that an engine's ledger names, against a model that keeps the whole history of every content."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_engines import FakeExecutor, FakeModel, make_engine
from test_tiers_serve import RULES, tiered
from tier_helpers import tier_maker

from framework import registry
from framework.engine.engine import Engine
from framework.engine.request import Request
from framework.interfaces.allocator import Allocator, Hit
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework.types import Namespace
from framework_builtin.eviction.lru import Lru
from framework_explain.account import (
    DECLINED,
    ELSEWHERE,
    END,
    EVICTED,
    HIT,
    IN_FLIGHT,
    NEW,
    OUTCOMES,
    TIER,
    UNREACHABLE,
)
from framework_explain.ledger import Ledger
from framework_explain.observer import Explain
from framework_tiers.engine_tiers import EngineTiers
from framework_tiers.tiering import Tiering

BLOCK = 4
Content = tuple[str, tuple[int, ...]]


class History:
    """Stands in front of an allocator and writes down what becomes of every content, by its tokens and namespace."""

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin
        self.content: dict[Any, Content] = {}
        self.key: dict[Content, Any] = {}
        self.fates: dict[Content, list[tuple[str, int]]] = {}
        self.running: dict[int, list[Content]] = {}
        self.number: dict[int, int] = {}
        self.copies = Counter[Content]()
        self.most_copies = self.num_asked = self.num_references = 0
        self.lost_at: dict[Content, tuple[int, int]] = {}
        self.ages: dict[tuple[int, int], tuple[int, int]] = {}
        self.call, self.caller = "", -1
        self.admitting: dict[int, int] = {}  # who has just got its table, and blocks of its prompt
        self.causes: dict[int, list[tuple[int, int]]] = {}
        self.engine: Engine | None = None
        self.listener: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plugin, name)

    def listen(self, listener: Any) -> None:
        self.listener = listener
        self.plugin.listen(self.heard)

    def heard(self, event: Any) -> None:
        for key in event.hashes:
            content = self.content[key]
            history = self.fates.setdefault(content, [])
            self.copies[content] += 1 if event.kind == "admit" else -1
            self.most_copies = max(self.most_copies, self.copies[content])
            if self.copies[content] > (event.kind == "admit"):
                continue  # one more, or one less, of what is there
            if event.kind == "admit":
                history.append(("there", self.caller))
            else:
                self.lost_at[content] = self.num_asked, self.num_references
                declined = self.call in ("free", "unref_leading")
                history.append(("declined" if declined else "evicted", self.caller))
        if self.listener is not None:
            self.listener(event)

    def there(self, content: Content) -> bool:
        history = self.fates.get(content)
        return bool(history) and history[-1][0] == "there"

    def blocks(self, tokens: Any, namespace: Namespace) -> list[Content]:
        listed = np.asarray(tokens).tolist()
        return [(namespace.salt, tuple(listed[:end])) for end in range(BLOCK, len(listed) + 1, BLOCK)]

    def lookup(self, tokens: Any, namespace: Namespace, previous: Any = None) -> Hit:
        hit: Hit = self.plugin.lookup(tokens, namespace, previous)
        for key, content in zip(hit.hashes, self.blocks(tokens, namespace), strict=False):
            self.content[key], self.key[content] = content, key
        return hit

    def allocate(self, info: Any, tokens: Any, hit: Hit, num_tokens: int | None = None) -> None:
        assert self.engine is not None
        self.about("allocate", -1)
        seq = next(s for r in self.engine.state.requests.values() for s in r.sequences if s.id == info.id)
        number = self.number[info.id] = seq.request.number
        blocks = self.blocks(tokens, seq.request.namespace)
        if not seq.was_admitted:
            self.causes[number] = self.classify(seq.request, hit.num_tokens // BLOCK)
            self.num_asked += 1
            for block, content in enumerate(blocks):
                now, (asked, references) = (self.num_asked, self.num_references), self.lost_at.get(content, (0, 0))
                self.ages[number, block] = now[0] - asked, now[1] - references
        self.call, self.caller = "allocate", number
        self.plugin.allocate(info, tokens, hit, num_tokens)
        if not seq.was_admitted:
            self.admitting = {info.id: -(-len(seq.request.prompt) // BLOCK)}
        self.running[info.id] = blocks[hit.num_tokens // BLOCK :]

    def classify(self, request: Request, found: int) -> list[tuple[int, int]]:
        """(cause, request that it was evicted for) of each block that can be hit, those `found` in the pool included,
        as if none were loaded.
        """
        prompt, space = request.prompt.tolist(), request.namespace
        contents = self.blocks(prompt, space)
        other_hits = 0
        for salt in {content[0] for content in self.fates} - {space.salt}:
            count = 0
            while count < (len(prompt) - 1) // BLOCK and self.there((salt, contents[count][1])):
                count += 1
            other_hits = max(other_hits, count)
        causes, loadable = [(HIT, -1)] * found, True
        for block in range(found, (len(prompt) - 1) // BLOCK):
            loadable = loadable and (self.there(contents[block]) or self.lies_below(contents[block]))
            causes.append(self.cause(contents[block], block < other_hits, loadable))
        return causes

    def cause(self, content: Content, elsewhere: bool, loadable: bool) -> tuple[int, int]:
        history = self.fates.get(content, [])
        if self.there(content):
            return UNREACHABLE, -1
        if self.lies_below(content):
            return (TIER if loadable else UNREACHABLE), -1
        if any(content in blocks for number, blocks in self.running.items() if self.has_row(number)):
            return IN_FLIGHT, -1
        if history:
            kind, by = history[-1]
            return {"declined": DECLINED, "tier": TIER, "evicted": EVICTED}[kind], by
        return (ELSEWHERE if elsewhere else NEW), -1

    def lies_below(self, content: Content) -> bool:
        assert self.engine is not None
        tiers = self.engine.state.tiers
        return content in self.key and isinstance(tiers, EngineTiers) and tiers.lies_below(self.key[content])

    def has_row(self, number: int) -> bool:
        """Whether a sequence runs: one whose blocks are being loaded computes nothing yet."""
        assert self.engine is not None
        return any(s.id == number and s.row >= 0 for r in self.engine.state.requests.values() for s in r.sequences)

    def watch(self, lower: Any) -> None:
        """Note which of what the pool evicts lies in these tiers then."""
        evicted = lower.evicted

        def noted(key: Any, now: float) -> None:
            evicted(key, now)
            fates = self.fates[self.content[key]]
            at = max(at for at, (kind, _) in enumerate(fates) if kind in ("declined", "evicted", "tier"))
            if lower.where(key) > 0:
                fates[at] = ("tier", fates[at][1])

        lower.evicted = noted

    def expected(self, request: Request) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens of each outcome, and the blocks that were evicted with whom for; what was loaded was hit."""
        row, blamed = [0] * len(OUTCOMES), []
        causes = self.causes[request.number]
        for at in range(len(request.prompt)):
            block = at // BLOCK
            if at < request.num_cached_tokens:
                row[HIT] += 1
            elif block >= len(causes):
                row[END] += 1
            else:
                cause, by = causes[block]
                row[cause] += 1
                if cause == EVICTED and (not blamed or blamed[-1] != (block, by)):
                    blamed.append((block, by))
        return row, blamed

    def was_admitted(self, request: int) -> bool:
        assert self.engine is not None
        return any(s.id == request and s.was_admitted for r in self.engine.state.requests.values() for s in r.sequences)

    def about(self, call: str, request: int) -> None:
        if call == "free" and request in self.admitting and not self.was_admitted(request):
            self.num_asked -= 1  # there was no room after all: it asks again
            del self.admitting[request]
        if call != "extend" or request not in self.admitting:
            self.num_references += sum(self.admitting.values())
            self.admitting = {}
        self.call, self.caller = call, self.number.get(request, -1)

    def extend(self, request: int, count: int) -> Any:
        self.about("extend", request)
        return self.plugin.extend(request, count)

    def commit(self, request: int, tokens: Any) -> Any:
        self.about("commit", request)
        self.lookup(tokens, self.space(request))  # for the names of generated blocks
        return self.plugin.commit(request, tokens)

    def space(self, request: int) -> Namespace:
        assert self.engine is not None
        return next(r.namespace for r in self.engine.state.requests.values() for s in r.sequences if s.id == request)

    def fork(self, parent: int, child: Any, count: int) -> Any:
        self.about("fork", parent)
        self.number[child.id] = self.number[parent]
        return self.plugin.fork(parent, child, count)

    def publish(self, request: int, tokens: Any) -> None:
        self.about("publish", request)
        self.lookup(tokens, self.space(request))  # for the names of generated blocks
        self.plugin.publish(request, tokens)

    def unref_leading(self, request: int, num_tokens: int) -> Any:
        self.about("unref_leading", request)
        found = self.plugin.unref_leading(request, num_tokens)
        if request in self.running:  # no fork
            self.running[request] = [content for content in self.running[request] if len(content[1]) > num_tokens]
        return found

    def free(self, request: int, next_use: Sequence[float] = ()) -> None:
        self.about("free", request)
        self.plugin.free(request, next_use)
        self.running.pop(request, None)


Allocator.register(History)  # it has what it does not define from the one behind it


def explained(
    seed: int, allocator: Any, eviction: Any, rule: Tiering | None, window: int | None
) -> tuple[Ledger, History, list[Request]]:
    draw = random.Random(seed)
    num_blocks = draw.randint(10, 24)
    built = build_allocator(
        allocator, eviction, "sha256", num_blocks=num_blocks, block_size=BLOCK, max_model_len=40, seed=0
    )
    explain = Explain(most_contents=10_000)
    history = History(built)
    executor = FakeExecutor(num_blocks, BLOCK, FakeModel(window=window))
    engine = make_engine(
        history,  # type: ignore[arg-type]
        executor,
        window=window,
        max_model_len=40,
        max_batch_requests=4,
        max_batch_tokens=draw.choice((8, 24, 64)),
        chunk_size=draw.choice((None, 5, 8)),
        preempt_every=draw.choice((0, 0, 3)),
        observers=(explain,),
        tiers=None if rule is None else tier_maker(lambda: tiered(executor, draw, rule, 0.0, False)),
    )
    history.engine = engine
    if isinstance(engine.state.tiers, EngineTiers):
        history.watch(engine.state.tiers.placement.lower)
    requests = []
    heads = [[draw.randrange(32) for _ in range(20)] for _ in range(3)]
    for _ in range(40):
        head = draw.choice(heads)[: draw.randint(1, 20)]
        prompt = head + [draw.randrange(32) for _ in range(draw.choice((0, 0, 1, 6)))]
        space = Namespace(salt=draw.choice(("", "", "", "other")))
        sampling = Sampling(max_tokens=draw.randint(1, 8), ignore_eos=True, n=draw.choice((1, 1, 1, 2)), seed=1)
        requests.append(engine.submit(prompt, sampling, namespace=space))
        for _ in range(draw.randint(0, 4)):
            if engine.num_unfinished:
                engine.step()
    engine.run()
    engine.check()
    return explain.ledger, history, requests


def check(
    seed: int, allocator: Any, eviction: Any, rule: Tiering | None = None, window: int | None = None
) -> tuple[list[int], History]:
    ledger, history, requests = explained(seed, allocator, eviction, rule, window)
    account = ledger.account()
    admitted = [request for request in requests if request.number in history.causes]
    blamed = {}
    for request in admitted:
        row = ledger._rows[request.number]
        expected, blamed[request.number] = history.expected(request)
        assert row == expected, (seed, request.number, row, expected)
        assert row[HIT] == request.num_cached_tokens
        assert sum(row) == len(request.prompt)
    assert account.tokens.sum() == sum(len(request.prompt) for request in admitted)
    assert account.preempted_tokens == sum(request.num_recomputed_tokens for request in requests)
    found: dict[int, list[tuple[int, int]]] = {}
    lost = account.evictions
    for number, depth, count, by in zip(lost.request, lost.depth, lost.blocks, lost.evicted_for, strict=True):
        found.setdefault(int(number), []).extend((int(depth) + step, int(by)) for step in range(int(count)))
    assert found == {number: rows for number, rows in blamed.items() if rows}, seed
    # With tiers a request asks before it is admitted, and others between.
    ages = zip(lost.request, lost.depth, lost.requests_ago, lost.references_ago, strict=True) if rule is None else ()
    for number, depth, *ago in ages:
        assert history.ages[int(number), int(depth)] == tuple(map(int, ago)), (seed, number, depth)
    assert lost.tokens.sum() == account.tokens[0, EVICTED]
    if rule is None and ledger.paths is not None:
        prompts = [next(r.prompt for r in requests if r.number == number) for number in history.causes]
        assert [len(path) for path in ledger.paths] == [(len(prompt) - 1) // BLOCK for prompt in prompts]
    return account.tokens[0].tolist(), history


@pytest.mark.parametrize("allocator", sorted(registry.names("allocator")))
def test_every_allocators_misses_have_the_causes_of_the_slow_model(allocator: str) -> None:
    totals = np.zeros(len(OUTCOMES), dtype=np.int64)
    for seed in range(4):
        totals += check(seed, allocator, "lru" if seed else "random")[0]
    wanted = [HIT, EVICTED, IN_FLIGHT, ELSEWHERE, NEW, END] if allocator in ("prefix", "prefix_cow", "radix") else [NEW]
    assert totals[wanted].all(), totals.tolist()


@pytest.mark.parametrize("rule", RULES, ids=["exclusive", "inclusive", "write_through", "second_hit", "erratic"])
def test_what_tiers_hold_or_dropped_has_the_causes_of_the_slow_model(rule: Callable[[], Tiering]) -> None:
    totals = np.zeros(len(OUTCOMES), dtype=np.int64)
    for seed in range(12):
        totals += check(seed, ("prefix", "radix", "prefix_cow")[seed % 3], "lru", rule())[0]
    assert totals[TIER], totals.tolist()


class EvenKept(Lru):
    """Declines blocks of odd depth."""

    def keep(self, block: Any, now: float) -> bool:
        return not self.blocks.depth[block] % 2


@pytest.mark.parametrize("eviction", [Lru, EvenKept])
def test_what_a_window_has_passed_has_the_causes_of_the_slow_model(eviction: type) -> None:
    totals = np.zeros(len(OUTCOMES), dtype=np.int64)
    for seed in range(12):
        totals += check(seed, "prefix", eviction(), window=5)[0]
    assert totals[[IN_FLIGHT, DECLINED if eviction is EvenKept else EVICTED]].all(), totals.tolist()


def test_a_content_in_several_blocks_is_lost_with_the_last_of_them() -> None:
    found = [check(seed, {"name": "prefix", "duplicates": "keep"}, "lru") for seed in range(6)]
    assert max(history.most_copies for _, history in found) > 2
    assert sum(tokens[EVICTED] for tokens, _ in found)


def why(ledger: Ledger, number: int, key: Any) -> str:
    """The cause that a request of this one block has, which is given up before it runs."""
    before = ledger.account().blocks
    ledger.ask(number, number, [key], BLOCK + 1, 0, lambda: 0)
    ledger.admit(number, number, 0)
    ledger.leave(number)
    found = ledger.account().blocks - before
    assert found[0, END] == 1
    return OUTCOMES[int(found[0, :END].argmax())]


def test_the_latest_losses_are_known_and_a_content_is_forgotten_with_its_last() -> None:
    causes = Counter[str]()
    for seed in range(8):
        draw, ledger, most = random.Random(seed), Ledger(BLOCK, policy="lru", most_contents=6), 6
        losses, copies, forgotten = list[int](), Counter[int](), 0
        for number in range(150):
            key = draw.randrange(9)
            if copies[key] and draw.random() < 0.6:
                ledger.serve(number)
                ledger.given_up([key])
                copies[key] -= 1
                if not copies[key]:
                    losses.append(key)
                    old = losses[-most - 1] if len(losses) > most else None
                    forgotten += old is not None and old not in losses[-most:] and not copies[old]
            else:
                ledger.published([key])
                copies[key] += 1
            asked = draw.randrange(9)
            known = "evicted" if asked in losses[-most:] else "new"
            expected = "unreachable" if copies[asked] else known
            assert why(ledger, number, asked) == expected, (seed, number, asked, losses[-most:])
            assert ledger.num_forgotten == forgotten, (seed, number)
            causes[expected] += 1
    assert min(causes.values()) > 50, causes


def test_what_is_declined_between_two_evictions_for_one_request_is_declined() -> None:
    ledger = Ledger(BLOCK, policy="lru", most_contents=10)
    ledger.published(["a", "b", "c"])
    ledger.serve(1)
    ledger.given_up(["a"])
    ledger.decline(True)  # as when a window has passed it
    ledger.given_up(["b"])
    ledger.decline(False)
    ledger.given_up(["c"])
    assert [why(ledger, 9, key) for key in "abc"] == ["evicted", "declined", "evicted"]


def test_a_cache_that_begins_anew_never_held_lost_or_computed_anything() -> None:
    ledger = Ledger(BLOCK, policy="lru", most_contents=10)
    ledger.published(["a", "b"])
    ledger.published(["a"])
    ledger.given_up(["b"])
    ledger.ask(1, 0, ["c"], BLOCK + 1, 0, lambda: 0)
    ledger.admit(1, 0, 0)
    assert [why(ledger, 9, key) for key in "abc"] == ["unreachable", "evicted", "in flight"]
    ledger.reset()
    assert [why(ledger, 9, key) for key in "abc"] == ["new"] * 3
    ledger.published(["a"])
    ledger.given_up(["a"])
    assert why(ledger, 9, "a") == "evicted", "of two blocks before"


def watched() -> tuple[Engine, Explain]:
    """An engine with room for all, and what explains it."""
    built = build_allocator("prefix", "lru", "sha256", num_blocks=60, block_size=BLOCK, max_model_len=40, seed=0)
    explain = Explain(most_contents=100)
    return make_engine(built, FakeExecutor(60, BLOCK, FakeModel()), max_model_len=40, observers=(explain,)), explain


def test_an_engine_asks_the_latest_eight_namespaces_what_they_hold() -> None:
    for others, held in ((7, 2), (8, 1)):
        engine, explain = watched()
        first, second, third, end = ([at] * BLOCK for at in range(4))
        for number, prompt in enumerate([first + second, *[first] * others, first + second + third]):
            engine.submit(prompt + end[:1], Sampling(max_tokens=1), namespace=Namespace(salt=str(number)))
            engine.run()
        row = explain.ledger.row(others + 1)
        assert row["missed_other_namespace_tokens"] == held * BLOCK, row
        assert row["missed_new_tokens"] == (3 - held) * BLOCK, row


def test_placeholders_that_are_there_for_another_image_are_another_namespaces() -> None:
    engine, explain = watched()
    for name in ("cat", "dog"):
        engine.submit([1] * (3 * BLOCK + 1), Sampling(max_tokens=1),
                      namespace=Namespace(contents=((BLOCK, 2 * BLOCK, name),)))  # fmt: skip
        engine.run()
    assert engine.metrics.hit_tokens == BLOCK, "what stands before the image"
    assert explain.ledger.row(1)["missed_other_namespace_tokens"] == 2 * BLOCK
