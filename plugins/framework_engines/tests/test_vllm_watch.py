"""A policy in vLLM's pool sees what it sees in ours, call by call; over stand-ins for vLLM's manager and pool."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from command_line import command
from engine_stand_ins import FreeQueue, Manager, pretend_vllm
from paged_helpers import NS, info, tokens
from replay_helpers import workload

from framework.errors import Unsupported
from framework.interfaces.eviction import BlockView
from framework.types import Namespace, RequestId
from framework_builtin.allocator.prefix import PrefixAllocator
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.mru import Mru
from framework_builtin.eviction.priority import Priority
from framework_builtin.eviction.s3fifo import S3Fifo
from framework_builtin.hash.sha256 import Sha256
from framework_cache_only.reference import replay
from framework_engines.vllm_connector import HOOKS, _Methods, lead, manager_of, require_hooks
from framework_engines.vllm_metrics import classes
from framework_engines.vllm_watch import MissWatch, PoolWatch
from framework_explain.account import HIT, OUTCOMES
from framework_explain.table_of_misses import read_account

main = command("explain")


def test_a_hook_that_vllm_lacks_is_named_with_its_parameters() -> None:
    queue = FreeQueue([])
    require_hooks(FreeKVCacheBlockQueue=queue)
    queue.append_n = lambda several: None  # type: ignore[method-assign, assignment]
    with pytest.raises(Unsupported, match=r"FreeKVCacheBlockQueue\.append_n\(blocks\); .*0\.32\.0 and 0\.33\.0"):
        require_hooks(FreeKVCacheBlockQueue=queue)
    with pytest.raises(Unsupported, match=r"BlockPool\.touch\(blocks\), BlockPool\.evict_blocks"):
        require_hooks(BlockPool=object())
    assert len(HOOKS["BlockPool"]) == 4


BLOCKS = 24


def watching(base: type) -> Any:
    """A `base` that notes each call and all that it may read of each block, by content."""

    class Watching(base):  # type: ignore[misc]
        needs_requests = True

        def note(self, call: str, numbers: Sequence[int]) -> None:
            view = self.blocks
            facts = [
                (view.key[n], view.key[view.parent[n]] if view.parent[n] else None, *(
                    getattr(view, name)[n] for name in ("depth", "num_tokens", "admitted", "last_access", "hits",
                                                        "priority", "tenant", "children", "last_request")))
                for n in numbers
            ]  # fmt: skip
            self.__dict__.setdefault("seen", []).append((call, facts))

    for call in ("admit", "hit", "pin", "release"):

        def hook(self: Any, numbers: Any, now: float, call: str = call) -> None:
            self.note(call, numbers)
            getattr(base, call)(self, numbers, now)

        setattr(Watching, call, hook)
    return Watching()


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_vllm(monkeypatch)


def asked(number: int, ids: list[int], **facts: Any) -> Any:
    """A request as vLLM has it; priorities there are the lower the more urgent."""
    prompt = tokens(*ids)
    given = {"priority": 0, "cache_salt": None, "lora_request": None, "session_id": None, "max_tokens": 4}
    return SimpleNamespace(
        request_id=str(number), prompt=prompt, num_tokens=len(ids), num_prompt_tokens=len(ids),
        block_hashes=Sha256().blocks(Sha256().root(NS, 16), prompt[: len(ids) // 16 * 16], 16), done=False,
        **{"num_computed_tokens": 0, **given, **facts},
    )  # fmt: skip


class Engine:
    """A manager led by a policy, as vLLM's scheduler drives it."""

    def __init__(self, policy: Any, num_blocks: int = BLOCKS) -> None:
        self.manager, self.time = Manager(num_blocks), 0.0
        self.watch: PoolWatch = lead(self.manager, policy, clock=lambda: self.time)
        assert self.watch.queue.facts is not None
        self.facts, self.pool = self.watch.queue.facts, self.manager.block_pool
        self.policy: Any = self.facts.policy.plugin

    def admit(self, request: Any) -> int | None:
        request.is_finished = lambda: request.done
        self.manager.new_step_starts()
        found: int | None = self.manager.allocate_slots(request)
        self.watch.scheduled(SimpleNamespace(total_num_scheduled_tokens=0 if found is None else request.num_tokens))
        return found

    def free(self, request: Any, *, done: bool = True) -> None:
        request.done = done
        self.manager.free(request)


def stream(seed: int) -> Iterator[tuple[str, Any]]:
    """Requests with common beginnings, admitted and ended in any order; some are longer than what is free."""
    draw = random.Random(seed)
    trunks = [[draw.randrange(9) for _ in range(16 * draw.randint(1, 6))] for _ in range(6)]
    running: list[int] = []
    for number in range(1, 200):
        ids = [
            *draw.choice(trunks)[: 16 * draw.randint(1, 6)],
            *(draw.randrange(9) for _ in range(draw.randint(1, 40))),
        ]
        yield "admit", (number, ids, draw.choice([0, 0, 0, 2]), draw.choice([None, "a", "b"]) if number > 1 else None)
        running.append(number)
        while len(running) > 2 or draw.random() < 0.5:
            if not running:
                break
            yield "free", running.pop(draw.randrange(len(running)))


@pytest.mark.parametrize("base", [Lru, Mru, S3Fifo, Priority])
@pytest.mark.parametrize("seed", range(3))
def test_a_policy_sees_in_vllm_what_it_sees_in_our_allocator(base: type, seed: int, vllm: None) -> None:
    theirs, ours = Engine(watching(base)), watching(base)
    allocator = PrefixAllocator(
        num_blocks=BLOCKS, block_size=16, hash=Sha256(), eviction=ours, watermark=0.0, duplicates="keep"
    )
    gone: list[bytes] = []
    allocator.listen(lambda event: gone.extend(event.hashes) if event.kind == "evict" else None)
    held: dict[int, Any] = {}
    for kind, what in stream(seed):
        theirs.time += 1.0
        allocator.advance(theirs.time)
        if kind == "free":
            if what in held:
                theirs.free(held.pop(what))
                allocator.free(RequestId(what))
            continue
        number, ids, urgency, session = what
        tenant = session or ""
        request = asked(number, ids, priority=-urgency, session_id=session, cache_salt=tenant or None)
        plain = info(
            number, priority=urgency, session=session, tenant=tenant, arrival=theirs.time, prompt_tokens=len(ids)
        )
        hit = allocator.lookup(request.prompt, NS)
        theirs.watch.arrived(request)
        found = theirs.admit(request)
        assert (found is not None) == allocator.fits(plain, request.prompt, hit)
        if found is None:
            theirs.watch.arrivals.pop(str(number))
            continue
        assert found == len(hit.blocks)
        allocator.allocate(plain, request.prompt, hit)
        allocator.commit(RequestId(number), request.prompt)
        held[number] = request
        assert theirs.policy.seen == ours.seen, f"request {number}"
        assert theirs.pool.evicted == gone
        assert theirs.facts.num_candidates == sum(theirs.facts.pool.candidate)
    assert len(gone) > 100
    assert theirs.facts.pool.num_blocks == BLOCKS, "without the null block"
    assert theirs.watch.queue.failure is None
    assert theirs.watch.num_steps > 100
    assert theirs.watch._known.keys() == theirs.watch.arrivals.keys() == {str(number) for number in held}


def chain(seed: int, blocks: int) -> list[int]:
    return [seed] * (16 * blocks + 1)


def served(engine: Engine, number: int, ids: list[int]) -> Any:
    request = asked(number, ids)
    assert engine.admit(request) is not None
    return request


def test_who_is_freed_before_it_is_done_keeps_its_arrival_and_pops_its_blocks(vllm: None) -> None:
    engine = Engine(watching(Lru))
    request = asked(1, chain(1, 2))
    engine.watch.arrived(request)
    engine.admit(request)
    engine.free(request, done=False)
    assert list(engine.watch.arrivals) == ["1"], "preempted: it arrives once"
    engine.time = 5.0
    engine.admit(request)
    request.done = True
    blocks = engine.manager.pop_blocks_for_free(request)
    before = engine.facts.pool.access
    engine.pool.free_blocks(blocks)
    assert (engine.watch.arrivals, engine.watch._known) == ({}, {})
    assert engine.facts.pool.access == before + 1, "blocks that are freed later are an access of their own"
    assert engine.policy.seen[-1][1][0][-1].arrival == 0.0


def test_what_is_taken_for_no_request_is_an_access_of_its_own(vllm: None) -> None:
    engine = Engine(Lru())
    request = served(engine, 1, chain(1, 2))
    engine.free(request)
    before = engine.facts.pool.access
    first = engine.pool.get_new_blocks(22)
    assert engine.facts.pool.access == before + 1
    assert not any(block.block_id in (1, 2) for block in first), "what has no content goes first"
    engine.pool.get_new_blocks(2)
    assert engine.facts.pool.access == before + 2
    assert engine.facts.num_candidates == engine.manager.block_pool.free_block_queue.num_free_blocks == 0


def test_evicted_blocks_in_use_stay_out_of_the_queue_and_the_others_go_first(vllm: None) -> None:
    engine = Engine(Mru())
    held, gone = served(engine, 1, chain(1, 2)), served(engine, 2, chain(2, 2))
    engine.free(gone)
    engine.pool.evict_blocks({block.block_id for blocks in engine.pool.cached.values() for block in blocks})
    assert engine.watch.queue.failure is None
    assert not any(engine.facts.pool.block_hash)
    assert {block.block_id for block in engine.pool.get_new_blocks(2)} == {4, 5}, "of request 2, and first"
    engine.free(held)
    assert engine.facts.num_candidates == 0


def test_a_reset_that_vllm_refuses_changes_nothing_and_one_that_it_does_forgets_all(vllm: None) -> None:
    engine = Engine(Lru())
    request = served(engine, 1, chain(1, 2))
    assert not engine.pool.reset_prefix_cache()
    assert sum(key is not None for key in engine.facts.pool.block_hash) == 2
    engine.free(request)
    assert engine.pool.reset_prefix_cache()
    assert not any(engine.facts.pool.block_hash)
    assert engine.facts.num_candidates == 0


def test_a_policy_that_declines_has_the_content_given_up_and_the_blocks_reused_first(vllm: None) -> None:
    class KeepsRoots(Lru):
        def keep(self, block: Any, now: float) -> bool:
            return not self.blocks.depth[block]

    engine = Engine(KeepsRoots())
    engine.free(served(engine, 1, chain(1, 3)))
    assert [key for key, blocks in engine.pool.cached.items() if blocks] == list(asked(1, chain(1, 3)).block_hashes[:1])
    assert {block.block_id for block in engine.pool.get_new_blocks(2)} == {2, 3}
    assert engine.facts.num_candidates == 1


def test_a_block_that_is_used_again_though_no_request_found_it_is_no_victim(vllm: None) -> None:
    engine = Engine(Mru(), 4)
    for number in (1, 2):
        engine.free(served(engine, number, [number] * 32))
    root, leaf = asked(2, [2] * 32).block_hashes
    engine.pool.free_block_queue.remove(engine.pool.cached[leaf][0])
    engine.pool.get_new_blocks(1)
    assert engine.pool.evicted == [root]


def test_a_policy_that_fails_leaves_the_order_of_vllm_one_error_and_nothing_that_could_be_named_again(
    vllm: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Mru):
        def victim(self, now: float) -> Any:
            raise RuntimeError("out of ideas")

    engine = Engine(Fails(), 4)
    for number in (1, 2):
        engine.free(served(engine, number, [number] * 32))
    order = [asked(number, [number] * 32).block_hashes[at] for number in (1, 2) for at in (1, 0)]
    with caplog.at_level("ERROR"):
        engine.pool.get_new_blocks(4)
    assert engine.pool.evicted == order
    assert len(caplog.records) == 1
    assert "out of ideas" in caplog.text
    assert "Fails.victim: raised RuntimeError" in caplog.text
    assert "not asked again" in caplog.text
    assert "out of ideas" in str(engine.watch.queue.failure)
    assert not any(engine.facts.pool.candidate)
    assert engine.watch.queue.facts is None


def test_a_content_that_a_connector_loaded_is_known_when_it_is_freed(vllm: None) -> None:
    engine = Engine(watching(Lru))
    taken = engine.pool.get_new_blocks(2)
    for place, block in enumerate(taken):
        block.block_hash, block.block_hash_num_tokens = b"%d" % place, 16 * (place + 1)
    engine.pool.free_blocks(taken[::-1])
    call, facts = engine.policy.seen[-1]
    assert call == "release"
    assert [(key, depth, tokens) for key, _, depth, tokens, *_ in facts] == [(b"1", 1, 32), (b"0", 0, 16)]


def test_what_cannot_be_led_is_refused(vllm: None) -> None:
    manager = Manager(4)
    manager.enable_caching = False
    with pytest.raises(Unsupported, match="prefix caching is off"):
        lead(manager)
    manager = Manager(4)
    manager.block_pool.touch = lambda others: None  # type: ignore[method-assign]
    with pytest.raises(Unsupported, match="touch"):
        lead(manager)


class Grouped(Lru):
    """Reads the columns of groups and who used a block last."""

    needs_groups = needs_requests = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self.view: Any = blocks


@pytest.mark.parametrize("groups", [[(1, None), (1, 3)], [(2, None), (1, 4), (1, 2)]], ids=["equal", "wide"])
def test_a_policy_over_groups_knows_the_hit_the_group_and_the_end_of_each_block(groups: Any, vllm: None) -> None:
    manager = Manager(60, groups)
    watch = lead(manager, Grouped(), clock=lambda: 0.0)
    facts, pool = watch.queue.facts, manager.block_pool
    assert facts is not None
    policy: Any = facts.policy.plugin
    held, hits = dict[int, Any](), 0
    for kind, what in stream(1):
        if kind == "free":
            if what in held:
                held[what].done = True
                manager.free(held.pop(what))
            continue
        number, ids, *_ = what
        request = asked(number, ids)
        request.is_finished = lambda request=request: request.done
        manager.new_step_starts()
        units = manager.allocate_slots(request)
        if units is None:
            continue
        held[number], hits = request, hits + (units > 0)
        for table, (wide, back) in zip(manager.tables[str(number)], groups, strict=True):
            for place, block in enumerate(table[: len(ids) // (16 * wide)]):
                known = policy.view.last_request[block.block_id]
                if not block.is_null and (wide * place >= units or back is not None):
                    assert known.prompt_tokens == len(ids)
                    assert known.new_blocks == -(-len(ids) // 16) - units, (number, units, known)
        named = [block for block in pool.blocks[1:] if block.block_hash is not None]
        assert [name is not None for name in facts.names[1:]] == [b.block_hash is not None for b in pool.blocks[1:]]
        for block in named:
            group = int.from_bytes(block.block_hash[-4:], "big")
            assert (policy.view.group[block.block_id], policy.view.end[block.block_id]) == (
                group, block.block_hash_num_tokens,
            )  # fmt: skip
        idle = [block.block_id for block in named if not block.ref_cnt]
        assert [block for block, candidate in enumerate(facts.candidate) if candidate] == idle
    assert watch.queue.failure is None
    assert hits > 30
    assert len(pool.evicted) > 100


def test_a_hit_is_what_the_group_that_reaches_furthest_found(vllm: None) -> None:
    """The last block of another group may have come by a way that nobody watches."""
    manager = Manager(60, [(1, None), (1, 3)])
    watch = lead(manager, Grouped(), clock=lambda: 0.0)
    facts, tables = watch.queue.facts, manager.tables
    assert facts is not None
    manager.allocate_slots(asked(1, [1] * 65))
    facts.drop(tables["1"][1][3].block_id)
    assert manager.allocate_slots(asked(2, [1] * 64 + [2] * 40)) == 4
    policy: Any = facts.policy.plugin
    assert [policy.view.last_request[table[4].block_id].new_blocks for table in tables["2"]] == [3, 3]
    assert watch.queue.failure is None


class Salted(SimpleNamespace):
    """A request of vLLM's that names its blocks itself."""

    def update_block_hashes(self) -> None:
        root = Sha256().root(Namespace(salt=self.cache_salt or ""), 16)
        self.block_hashes = Sha256().blocks(root, self.prompt[: len(self.prompt) // 16 * 16], 16)


class Causes:
    """What became of every content of a manager's pool, looked up in the pool before and after each call."""

    def __init__(self, manager: Manager) -> None:
        self.manager, self.pool = manager, manager.block_pool
        self.fates: dict[bytes, tuple[str, int, int]] = {}
        self.running: dict[int, Sequence[bytes]] = {}
        self.rows: dict[int, Counter[str]] = {}
        self.blamed: dict[int, dict[int, tuple[int, int]]] = {}
        self.prompts: list[Sequence[bytes]] = []
        self.preempted = 0

    def there(self, name: bytes) -> bool:
        return bool(self.pool.cached.get(name))

    def lost(self, before: int, fate: str, by: int = -1) -> None:
        """Everything that was given up since `before`."""
        found = fate, by, len(self.prompts)
        self.fates.update({name: found for name in self.pool.evicted[before:] if not self.there(name)})

    def hit_elsewhere(self, request: Any) -> int:
        lengths = [0]
        for salt in {None, "a"} - {request.cache_salt}:
            other = copy(request)
            other.cache_salt = salt
            other.update_block_hashes()
            there = [self.there(name) for name in other.block_hashes]
            lengths.append([*there, False].index(False))
        return max(lengths)

    def asked(self, request: Any, cached: int) -> tuple[Counter[str], dict[int, tuple[int, int]]]:
        row, blamed, limit = Counter({"hit": cached}), dict[int, tuple[int, int]](), (request.num_tokens - 1) // 16
        for place, name in enumerate(request.block_hashes[:limit]):
            if 16 * place < cached:
                continue
            cause, by, since = self.fates.get(name, ("new", -1, 0))
            if self.there(name):
                cause = "unreachable"
            elif any(name in names for names in self.running.values()):
                cause = "in flight"
            elif cause == "new" and place < self.hit_elsewhere(request):
                cause = "other namespace"
            row[cause] += 16
            if cause == "evicted":
                blamed[place] = by, len(self.prompts) + 1 - since
        row["end of prompt"] = request.num_prompt_tokens - row.total()
        return row, blamed

    def allocate(self, number: int, request: Any, count: int, external: int) -> bool:
        first, table = number not in self.rows, self.manager.tables.get(request.request_id)
        found = self.manager.hit(request) if table is None else []
        cached, computed, before = 16 * len(found) + external, request.num_computed_tokens, len(self.pool.evicted)
        asked = self.asked(request, cached)
        if self.manager.allocate_slots(request, count, 16 * len(found), num_external_computed_tokens=external) is None:
            return False
        if first:
            self.prompts.append(request.block_hashes[: (request.num_tokens - 1) // 16])
        self.lost(before, "evicted", number)
        if table is None:
            self.running[number] = request.block_hashes[cached // 16 :]
        if first:
            self.rows[number], self.blamed[number] = asked
        elif table is None:
            self.preempted += max(0, computed - cached)
        return True


def test_what_a_manager_misses_has_the_causes_that_its_pool_shows(tmp_path: Path, vllm: None) -> None:
    seen = Counter[str]()
    for seed in range(8):
        draw, manager, folder = random.Random(seed), Manager(BLOCKS), tmp_path / str(seed)
        watch, causes = MissWatch(manager, bytes, policy="vllm", folder=folder), Causes(manager)
        pool, waiting, running = manager.block_pool, dict[int, Any](), dict[int, Any]()
        trunks = [[draw.randrange(9) for _ in range(96)] for _ in range(3)]
        numbers, aborted = dict[int, int](), 0
        for number in range(1, 300):
            if len(waiting) < 2:
                ids = [*draw.choice(trunks)[: 16 * draw.randint(1, 6)], *[number] * draw.choice((0, 5, 20))]
                request = Salted(**vars(asked(number, ids, cache_salt=draw.choice((None, None, "a")))))
                request.prompt_token_ids, request.is_finished = ids, lambda request=request: request.done
                request.update_block_hashes()
                waiting[number] = request
            for name in [*waiting, *running]:
                request = waiting.get(name) or running[name]
                loads = name in waiting and len(request.prompt) > 64 and len(manager.hit(request)) <= 2
                external = draw.choice((0, 0, 16)) if loads else 0
                if name in waiting or (request.num_computed_tokens < request.num_tokens and draw.random() < 0.8):
                    order = numbers.setdefault(name, len(numbers))
                    if causes.allocate(order, request, draw.choice((16, 40, 200)), external):
                        running[name] = waiting.pop(name, request)
                        continue
                if draw.random() < 0.4:
                    request.done = request.num_computed_tokens == request.num_tokens or name in waiting
                    causes.running.pop(numbers[name], None)
                    if name in waiting:
                        manager.tables.setdefault(request.request_id, [])
                        aborted += numbers[name] not in causes.rows
                    manager.free(request)
                    waiting.pop(name, None)
                    if running.pop(name, None) is not None and not request.done:
                        waiting[name] = request  # preempted
            if draw.random() < 0.1:
                before = len(pool.evicted)
                idle = [block.block_id for block in pool.free_block_queue.free if block.block_hash is not None]
                pool.evict_blocks({*draw.sample(idle, min(3, len(idle)))})
                causes.lost(before, "declined")
            if draw.random() < 0.3 and pool.reset_prefix_cache():
                causes.fates.clear()
        for name, request in [*running.items(), *waiting.items()]:
            request.done = True
            if name in numbers:
                manager.tables.setdefault(request.request_id, [])
                manager.free(request)
        watch.close()
        account = read_account(folder)
        found = {
            number: {outcome: count for outcome, count in zip(OUTCOMES, row, strict=True) if count}
            for number, row in zip(account.requests, account.tokens.tolist(), strict=True)
        }
        assert found == {number: dict(+row) for number, row in causes.rows.items()}, seed
        assert account.preempted_tokens == causes.preempted
        blamed, lost = dict[int, dict[int, tuple[int, int]]](), account.evictions
        for row in account.evictions.rows("vllm"):
            places = range(row["depth"], row["depth"] + row["blocks"])
            who = row["evicted_for"], row["requests_ago"]
            blamed.setdefault(row["request"], {}).update(dict.fromkeys(places, who))
        assert blamed == {number: by for number, by in causes.blamed.items() if by}, seed
        ids = dict[bytes, int]()
        paths = workload([[ids.setdefault(name, len(ids)) for name in names] for names in causes.prompts], 16)
        hits = replay(paths, Lru(), BLOCKS).request_hits
        kept = 16 * np.clip(hits[lost.admission] - lost.depth, 0, lost.blocks)
        assert lost.lru_tokens is not None
        assert lost.lru_tokens.tolist() == np.minimum(kept, lost.tokens).tolist(), seed
        assert lost.optimum_tokens is not None
        result = json.loads((folder / "result.json").read_text())
        assert result["hit_tokens"] == account.tokens[:, HIT].sum()
        assert result["prompt_tokens"] == account.tokens.sum()
        seen.update({outcome: int(count) for outcome, count in account.totals("tokens").items()})
        seen["preempted"] += causes.preempted
        seen["aborted"] += aborted
    wanted = ("hit", "new", "evicted", "declined", "unreachable", "in flight", "other namespace", "end of prompt",
              "preempted", "aborted")  # fmt: skip
    assert all(seen[name] for name in wanted), seen


class Counting(Manager):
    """A Manager that is asked as vLLM's is."""

    def allocate_slots(self, request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0) -> Any:
        return super().allocate_slots(request)


def test_an_explanation_is_whole_after_each_request_whatever_ends_vllm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = Counting(12)
    misses = MissWatch(manager, lambda name: name, policy="lru", folder=tmp_path / "why")
    read: list[Any] = []
    for number in range(60):
        ids = chain(number % 4, 1 + number % 5)
        request = asked(number, ids, prompt_token_ids=ids, num_computed_tokens=len(ids))
        request.update_block_hashes = request.block_hashes.clear
        request.is_finished = lambda: True
        manager.new_step_starts()
        hit = 16 * len(manager.hit(request))
        assert manager.allocate_slots(request, len(ids) - hit, hit) is not None
        manager.free(request)
        if number in (0, 1, 40, 59):
            assert main([str(tmp_path / "why"), "--json"]) == 0
            read.append(json.loads(capsys.readouterr().out))
            assert len((tmp_path / "why" / "requests.jsonl").read_text().splitlines()) == number + 1
    assert read[-1]["blocks"]["evicted"] > 10
    assert sum(row["tokens"] for row in read[-1]["regret"]["age"].values()) == read[-1]["tokens"]["evicted"]
    misses.close()
    misses.close()
    assert main([str(tmp_path / "why"), "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["blocks"], last["tokens"]) == (read[-1]["blocks"], read[-1]["tokens"])
    assert json.loads((tmp_path / "why" / "result.json").read_text())["status"] == "ok"


def test_an_explanation_that_cannot_be_written_ends_with_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Counting(12)
    misses = MissWatch(manager, lambda name: name, policy="lru", folder=tmp_path)
    monkeypatch.setattr(misses, "_write_result", lambda *_: (tmp_path / "no" / "such").write_bytes(b""))
    for number in range(3):
        request = asked(number, chain(number, 1), prompt_token_ids=chain(number, 1), num_computed_tokens=17)
        request.is_finished = lambda: True
        manager.allocate_slots(request, 17)
        manager.free(request)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "vLLM goes on" in caplog.text


def test_what_a_policy_costs_and_does_is_counted_once_and_shown_in_vllms_metrics(
    monkeypatch: pytest.MonkeyPatch, vllm: None
) -> None:
    class Slow(Lru):
        def victim(self, now: float) -> Any:
            clock[0] += 5.0
            if len(engine.pool.evicted) > 3:
                raise RuntimeError("out of ideas")
            return super().victim(now)

    clock = [0.0]
    monkeypatch.setattr("framework_engines.vllm_watch.perf_counter", lambda: clock[0])
    engine = Engine(Slow(), 4)
    connector: Any = _Methods()
    connector.watch, connector._reported = None, {}
    assert connector._counted() == {}, "in a worker"
    connector.watch = engine.watch
    for number in (1, 2):
        engine.free(served(engine, number, [number] * 32))
    assert connector._counted() == {}
    counts = []
    for _ in range(2):
        engine.free(served(engine, 3 + len(counts), [5 + len(counts)] * 32))
        counts.append(connector._counted())
    assert counts == [{"seconds": 10.0, "victims": 2}, {"seconds": 10.0, "victims": 2}]
    engine.free(served(engine, 9, [9] * 32))
    assert connector._counted() == {"seconds": 5.0, "failures": 1}
    engine.free(served(engine, 10, [10] * 32))
    assert connector._counted() == {}


def test_intervals_add_up_in_vllms_log_and_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[str] = []

    class Stats:
        def __init__(self, data: dict[str, Any]) -> None:
            self.data = data

    class Metrics:
        def __init__(self, config: Any, types: Any, names: Any, values: Any) -> None:
            self._counter_cls = Counter

    class Counter:
        made: ClassVar[dict[str, Any]] = {}

        def __init__(self, name: str, documentation: str, labelnames: list[str]) -> None:
            self.found, self.labelnames = dict[tuple[Any, ...], float](), labelnames
            Counter.made[name] = self

        def labels(self, *values: Any) -> Any:
            assert len(values) == len(self.labelnames)
            self.found[values] = 0
            return SimpleNamespace(inc=lambda count: self.found.update({values: self.found[values] + count}))

    factory = SimpleNamespace(_registry={}, register_connector=lambda name, *_: registered.append(name))
    place = "vllm.distributed.kv_transfer.kv_connector"
    base = SimpleNamespace(KVConnectorStats=Stats, KVConnectorPromMetrics=Metrics)
    for name, module in (
        (f"{place}.v1.metrics", base),
        (f"{place}.factory", SimpleNamespace(KVConnectorFactory=factory)),
    ):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    stats, metrics = classes("PolicyConnector", "framework_engines.vllm_connector")
    assert registered == ["PolicyConnector"], "vLLM's MultiConnector looks for it by name"
    both = stats({"seconds": 0.5, "victims": 2}).aggregate(stats({"seconds": 0.25, "failures": 1}))
    assert both.reduce() == {
        "eviction_policy_seconds": 0.75, "eviction_policy_victims": 2, "eviction_policy_failures": 1,
        "scheduling_overdue": 0,
    }  # fmt: skip
    assert not both.is_empty()
    both.reset()
    assert both.is_empty()
    extra = {"eviction": {"name": "lru_k", "k": 3}}
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))
    shown = metrics(config, {}, ["model", "engine"], {0: ["small", "0"], 1: ["small", "1"]})
    shown.observe({"seconds": 0.5, "victims": 2}, 1)
    shown.observe({"seconds": 0.5}, 1)
    found = {name: counter.found["small", "1", "lru_k"] for name, counter in Counter.made.items()}
    assert found == {
        "vllm:eviction_policy_seconds": 1.0, "vllm:eviction_policy_victims": 2, "vllm:eviction_policy_failures": 0
    }  # fmt: skip
    assert Counter.made["vllm:eviction_policy_failures"].found["small", "0", "lru_k"] == 0, "shown before any failure"
    config.additional_config = {"scheduling": {"name": "longest_prefix", "max_passed": 9}}
    metrics(config, {}, ["model", "engine"], {0: ["small", "0"]}).observe({"overdue": 2})
    assert Counter.made["vllm:scheduling_overdue"].found == {("small", "0", "longest_prefix"): 2}


@pytest.mark.parametrize("needs_requests", [False, True])
def test_a_step_of_running_requests_costs_one_call_a_request(vllm: None, needs_requests: bool) -> None:
    engine = Engine(watching(Lru) if needs_requests else Lru())
    running = [served(engine, number, chain(number, 2)) for number in range(1, 5)]
    calls: list[str] = []

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and re.search("/framework(_engines)?/(?!tests/)", frame.f_code.co_filename):
            calls.append(frame.f_code.co_name)

    pool: Any = engine.pool
    pool.touch = pool.cache_full_blocks = lambda *_, **__: None  # they need no further block
    pool.get_new_blocks = lambda count: []
    sys.setprofile(count)
    try:
        engine.manager.new_step_starts()
        for request in running:
            engine.manager.allocate_slots(request)
    finally:
        sys.setprofile(None)
    assert [name for name in calls if name != "num_free_blocks"] == ["_begin_step", *["_allocate"] * 4]


def test_a_vllm_that_hands_over_its_pool_alone_is_led_as_one_that_hands_over_its_manager(vllm: None) -> None:
    class Old:
        def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None: ...

        def on_new_request(self, request: Any) -> None: ...

    class New(Old):
        def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None: ...

    for base, kv_cache_manager in ((Old, type("KVCacheManager", (Manager,), {})), (New, Manager)):
        require_hooks(KVConnectorBase_V1=base)
        connector: Any = type("Connector", (_Methods, base), {})()
        connector.options, connector.explain, connector.watch = ("lru", 0, "steps"), None, None
        manager, other = kv_cache_manager(4), kv_cache_manager(4)
        connector.bind_gpu_block_pool(manager.block_pool)
        assert (connector.watch is not None) == (base is Old), "else it would be led twice"
        assert type(other.block_pool.free_block_queue) is FreeQueue
    with pytest.raises(Unsupported, match="with 0 KVCacheManagers"):
        manager_of(object())
    with pytest.raises(Unsupported, match=r"bind_kv_cache_manager\(kv_cache_manager\) or .*bind_gpu_block_pool"):
        require_hooks(KVConnectorBase_V1=object())
