"""An order of ours in place of vLLM's queue; over stand-ins for vLLM's scheduler, queue and pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from engine_stand_ins import Manager, pretend_vllm

from framework.errors import Unsupported
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework_engines.vllm_connector import _Methods
from framework_engines.vllm_scheduling import OrderedQueue, options_of


class OwnQueue(deque[Any]):
    """vLLM's FCFSRequestQueue."""

    def add_request(self, request: Any) -> None:
        self.append(request)

    def pop_request(self) -> Any:
        return self.popleft()

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        self.extendleft(requests)

    def peek_request(self) -> Any:
        return self[0]

    def prepend_request(self, request: Any) -> None:
        self.appendleft(request)

    def remove_request(self, request: Any) -> None:
        self.remove(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        kept = [one for one in self if one not in requests]
        self.clear()
        self.extend(kept)


class FullAttentionManager:
    """Its name says what vLLM's is."""

    block_size = 16


class Newest(Scheduling):
    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return waiting[::-1]


class MostCached(Scheduling):
    needs_hits = True

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return sorted(waiting, key=lambda request: -request.hit_tokens)


def request_of(name: str, num_tokens: int = 40) -> Any:
    return SimpleNamespace(
        request_id=name, num_prompt_tokens=num_tokens, num_tokens=num_tokens, max_tokens=4, priority=0, cache_salt=None,
        lora_request=None, session_id=None, num_computed_tokens=0, num_output_tokens=0, skip_reading_prefix_cache=False,
        block_hashes=[f"{name}{place}".encode() for place in range(num_tokens // 16)],
    )  # fmt: skip


@pytest.fixture
def queue_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OrderedQueue]:
    """A queue with an order, over a scheduler with nothing in it."""
    pretend_vllm(monkeypatch)

    def made(plugin: Scheduling, clock: str = "steps") -> OrderedQueue:
        manager = Manager(num_blocks=24)
        coordinator = manager.coordinator
        coordinator.single_type_managers = [FullAttentionManager()]
        coordinator.lookups = 0

        def find(block_hashes: Any, max_cache_hit_length: int) -> Any:
            coordinator.lookups += 1
            facts = SimpleNamespace(block_hashes=block_hashes, num_tokens=max_cache_hit_length + 1)
            found = manager.hit(facts)
            return (found,), 16 * len(found), 0

        coordinator.find_longest_cache_hit = find
        scheduler = SimpleNamespace(
            waiting=OwnQueue(), kv_cache_manager=manager, running=[], finished_req_ids=set[str]()
        )
        return OrderedQueue(scheduler, plugin, clock)

    return made


def admit(queue: OrderedQueue, most: int) -> list[str]:
    """The names of those that one step admits, as vLLM's Scheduler does it."""
    queue.begin()
    admitted = []
    while queue and len(admitted) < most:
        assert queue.peek_request() is queue.peek_request()
        admitted.append(queue.pop_request())
    queue.scheduler.running += admitted
    names = [one.request_id for one in admitted]
    queue.scheduled(SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in names], total_num_scheduled_tokens=len(names)
    ))  # fmt: skip
    return names


def test_the_order_is_the_plugins_and_what_was_preempted_comes_first(queue_of: Callable[..., OrderedQueue]) -> None:
    queue = queue_of(Newest())
    for name in "abcd":
        queue.add_request(request_of(name))
    assert admit(queue, 2) == ["d", "c"]
    for one in reversed(queue.scheduler.running):
        queue.prepend_request(one)
    queue.scheduler.running.clear()
    queue.add_request(request_of("e"))
    assert (len(queue), admit(queue, 9)) == (5, ["d", "c", "e", "b", "a"])
    assert not queue


def test_one_that_was_skipped_comes_back_and_has_not_passed_anybody(queue_of: Callable[..., OrderedQueue]) -> None:
    queue = queue_of(Newest())
    for name in "abc":
        queue.add_request(request_of(name))
    queue.begin()
    skipped = queue.pop_request()
    queue.prepend_requests(deque([skipped]))
    queue.scheduled(SimpleNamespace(scheduled_new_reqs=[], total_num_scheduled_tokens=0))
    assert [waiting.passed for waiting in queue._waits.values()] == [0, 0, 0]
    assert admit(queue, 3) == ["c", "b", "a"]


def test_a_bound_is_kept_and_counted(queue_of: Callable[..., OrderedQueue], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    plugin = Newest()
    plugin.max_passed = 2
    queue = queue_of(plugin)
    for name in "abcdef":
        queue.add_request(request_of(name))
    assert [admit(queue, 1) for _ in range(6)] == [["f"], ["e"], ["a"], ["b"], ["c"], ["d"]]
    assert queue.plugin is not None
    assert queue.num_overdue == queue.plugin.num_overdue == 3, "the last is there at its place in the order"
    logged = [record.getMessage() for record in caplog.records if "before their place" in record.getMessage()]
    assert logged == [
        f"{count} requests so far were admitted before their place in the order (passed over 2 times)"
        for count in (1, 2)
    ], "as it doubles"
    connector = _Methods()
    connector.watch = SimpleNamespace(queue=SimpleNamespace(seconds=0.5, num_victims=0, failure=None))  # type: ignore[assignment]
    connector._manager, connector._reported = queue.manager, {}
    assert connector._counted() == {"seconds": 0.5, "overdue": 3}, "for /metrics, beside a PolicyConnector"
    assert connector._counted() == {}


def test_where_the_plugin_says_nothing_the_order_is_vllms(queue_of: Callable[..., OrderedQueue]) -> None:
    queue = queue_of(Scheduling())
    requests = {name: request_of(name) for name in "abcd"}
    for name in "abc":
        queue.add_request(requests[name])
    queue.begin()
    queue.prepend_requests(
        deque([queue.pop_request(), queue.pop_request()])
    )  # in this order, as vLLM's deque takes them
    queue.add_request(requests["d"])
    assert [one.request_id for one in queue] == ["b", "a", "c", "d"]
    assert admit(queue, 4) == ["b", "a", "c", "d"]


def test_what_is_cached_is_followed_and_looked_up_only_where_it_changed(queue_of: Callable[..., OrderedQueue]) -> None:
    queue = queue_of(MostCached())
    coordinator, manager = queue.manager.coordinator, queue.manager
    for name in "abc":
        queue.add_request(request_of(name))
    queue.begin()
    queue.peek_request()
    assert coordinator.lookups == 3
    queue.begin()
    queue.peek_request()
    assert coordinator.lookups == 3, "nothing has changed"
    first = request_of("b")
    manager.allocate_slots(first)  # publishes two blocks that "b" asks for
    queue.begin()
    assert queue.peek_request().request_id == "b"
    assert coordinator.lookups == 4
    assert queue._waits["b"].hit_tokens == 32
    manager.free(first)
    manager.block_pool.evict_blocks({block.block_id for block in manager.block_pool.blocks if block.block_hash})
    assert queue._waits["b"].hit_tokens == 0
    manager.allocate_slots(request_of("c"))
    assert queue._waits["c"].hit_tokens == 32
    manager.free(request_of("c"))
    assert manager.block_pool.reset_prefix_cache()
    assert queue._waits["c"].hit_tokens == 0, "all is forgotten"


def test_a_plugin_that_fails_is_left_out_and_the_log_says_so(
    queue_of: Callable[..., OrderedQueue], caplog: pytest.LogCaptureFixture
) -> None:
    class Loses(Newest):
        def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
            return waiting[1:]

    queue = queue_of(Loses())
    for name in "abc":
        queue.add_request(request_of(name))
    assert admit(queue, 2) == ["a", "b"]
    assert admit(queue, 2) == ["c"]
    assert queue.plugin is None
    assert caplog.text.count("admitted in vLLM's own order from here on") == 1
    assert "Loses" in caplog.text


def test_who_was_admitted_and_who_ended_is_passed_on(queue_of: Callable[..., OrderedQueue]) -> None:
    heard: list[Any] = []

    class Notes(Newest):
        def admitted(self, request: WaitingRequest, view: QueueView) -> None:
            heard.append(("admitted", request.number, view.now))

        def ended(self, request: RunningRequest, view: QueueView) -> None:
            heard.append(("ended", request.number, request.num_generated))

    queue = queue_of(Notes())
    for name in "abc":
        queue.add_request(request_of(name))
    assert admit(queue, 2) == ["c", "b"]
    queue.scheduler.running[0].num_output_tokens = 4
    queue.scheduler.finished_req_ids = {"c", "a"}  # one ran, the other was given up by its client
    queue.remove_requests(list(queue))
    queue.scheduler.running.pop(0)
    assert admit(queue, 2) == []
    assert heard == [("admitted", 2, 1.0), ("admitted", 1, 1.0), ("ended", 0, 0), ("ended", 2, 4)]
    assert list(queue._known) == ["b"]


def test_counts_of_blocks_are_those_of_the_pool(queue_of: Callable[..., OrderedQueue]) -> None:
    queue = queue_of(Newest())
    pool = queue.manager.block_pool
    pool.get_num_free_blocks = lambda: pool.free_block_queue.num_free_blocks
    queue.manager.allocate_slots(request_of("a"))
    queue.manager.allocate_slots(request_of("b"))
    queue.manager.free(request_of("a"))
    view = queue._view
    assert (view.free_blocks, view.cached_blocks, view.used_blocks, view.num_blocks) == (19, 2, 3, 24)


def test_an_order_that_decides_what_vllm_decides_is_refused() -> None:
    class Chooses(Scheduling):
        def victim(self, running: Sequence[RunningRequest], view: QueueView) -> RunningRequest | None:
            return running[0]

    with pytest.raises(Unsupported, match=r"Chooses decides whom to preempt \(victim\), which vLLM does not ask"):
        options_of({"scheduling": Chooses()})


def test_a_vllm_without_such_a_queue_is_refused_by_what_it_lacks(
    queue_of: Callable[..., OrderedQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(OwnQueue, "prepend_requests")
    with pytest.raises(Unsupported, match=r"RequestQueue\.prepend_requests\(requests\); .*0\.32\.0 and 0\.33\.0"):
        queue_of(Newest())
