"""Our orders of the requests that wait, in vLLM, as a scheduler class."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from framework.errors import ConfigError, Unsupported, plugin_note
from framework.guard.boundary import OUTSIDE
from framework.guard.scheduling import Found, GuardedScheduling, WaitingHits
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework.registry.components import build_component
from framework.registry.culprit import named
from framework_engines.vllm_connector import CLOCKS, drops_of, importable, require_hooks, tested_note
from framework_engines.vllm_watch import follow, info_of

_LOGGER = logging.getLogger("vllm.framework.export")  # below vLLM's own logger, whose handlers print it


def __getattr__(name: str) -> Any:
    """`OrderedScheduler`, made when vLLM asks for it by name: without vLLM this module can be imported all the same."""
    if name == "OrderedScheduler":
        return _scheduler_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers OrderedScheduler")


def options_of(additional: Any) -> tuple[Scheduling, str]:
    """The order and its clock of vLLM's `additional_config`, whose other keys belong to others.

    Raises:
        ConfigError: no order, or no such clock. UnknownPlugin and others: as `framework.registry.build`.
        Unsupported: an order that also decides what vLLM decides itself.
    """
    options = additional if isinstance(additional, Mapping) else {}
    if "scheduling" not in options:
        raise ConfigError(
            "OrderedScheduler takes its order from vLLM's additional_config, which names none; "
            """--additional-config '{"scheduling": "longest_prefix"}'"""
        )
    clock = options.get("scheduling_clock", "seconds")
    if clock not in CLOCKS:
        raise ConfigError(f"scheduling_clock is one of {', '.join(CLOCKS)}, found {clock!r}")
    plugin = build_component("scheduling", options["scheduling"], {"seed": 0})
    for method, what in (("victim", "whom to preempt"), ("share", "how long a chunk is")):
        if getattr(type(plugin), method) is not getattr(Scheduling, method):
            raise Unsupported(
                f"{type(plugin).__name__} decides {what} ({method}), which vLLM does not ask a queue; "
                "give it a class without that method"
            )
    return plugin, clock


@cache
def _scheduler_class() -> type:
    try:
        module = importlib.import_module("vllm.v1.core.sched.scheduler")
    except ImportError as error:
        raise Unsupported(f"vLLM cannot be imported ({error})") from error

    class OrderedScheduler(module.Scheduler):  # type: ignore[name-defined, misc]
        """vLLM's scheduler with another order of the requests that wait."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plugin, clock = options_of(self.vllm_config.additional_config)
            self.waiting = OrderedQueue(self, plugin, clock)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            """One step."""
            self.waiting.begin()
            output = super().schedule(*args, **kwargs)
            self.waiting.scheduled(output)
            return output

    return importable(OrderedScheduler)["OrderedScheduler"]


class OrderedQueue:
    """Stands for a Scheduler's `waiting`: same methods, another order of the requests that have not run.

    vLLM's own queue is kept and stays the truth about who waits. Those that were preempted come before what the plugin
    orders, and where it says nothing the order is vLLM's.

    NOTE. A plugin that fails is given up for good: from there on vLLM's own order holds, and one error in the log says
    why.

    Args:
        scheduler: vLLM's, before its first request.
        clock: of `CLOCKS`; the plugin's seconds are on it, too.

    Attributes:
        plugin: None once it failed.
        num_overdue: requests that were admitted before their place in its order, for its bound. The log has it as it
            doubles; `PolicyConnector` finds the queue on the manager, for /metrics.

    Raises:
        Unsupported: this vLLM lacks a hook.
    """

    def __init__(self, scheduler: Any, plugin: Scheduling, clock: str) -> None:
        manager = scheduler.kv_cache_manager
        pool, coordinator = manager.block_pool, manager.coordinator
        self.queue, self.scheduler, self.manager = scheduler.waiting, scheduler, manager
        require_hooks(RequestQueue=self.queue, KVCacheCoordinator=coordinator, OrderedPool=pool)
        self.plugin: GuardedScheduling | None = GuardedScheduling(plugin)
        self.failure: BaseException | None = None
        self._clock, self._start, self._computed, self._step = clock, time.monotonic(), 0, 0
        self._known: dict[str, tuple[Any, WaitingRequest]] = {}  # by the names of unfinished requests
        self._waits: dict[str, WaitingRequest] = {}  # of those, the ones that have not run
        self._next: list[Any] | None = None  # the next one last; None: to be asked for
        self._count = self.num_overdue = 0
        manager.ordered = self
        managers = coordinator.single_type_managers
        whole = (
            len(managers) == 1 and type(managers[0]).__name__ == "FullAttentionManager" and not drops_of(coordinator)
        )
        self._view = _View(pool, pool.hash_block_size, self._running)
        self._follow(pool, pool.hash_block_size if whole and managers[0].block_size == pool.hash_block_size else None)
        _LOGGER.info("%s orders the requests that wait, %s%s", type(plugin).__name__, self.plugin.bound, tested_note())

    # What vLLM asks of a queue

    def add_request(self, request: Any) -> None:
        """It has arrived."""
        self.queue.add_request(request)
        info = info_of(request, self._now())
        waiting = WaitingRequest(
            info, self._count, request.num_prompt_tokens, self._now(), lambda: self._found(request.request_id)
        )
        self._known[request.request_id] = request, waiting
        self._waits[request.request_id] = waiting
        self._count += 1
        self._next = None

    def prepend_request(self, request: Any) -> None:
        """It was preempted."""
        self.queue.prepend_request(request)
        self._next = None

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """They were skipped in this step."""
        self.queue.prepend_requests(requests)
        self._next = None

    def peek_request(self) -> Any:
        """The next to admit.

        Raises:
            IndexError: nobody waits, as vLLM's own queue does.
        """
        return self._ordered()[-1]

    def pop_request(self) -> Any:
        """Remove and return what `peek_request` shows."""
        request = self._ordered().pop()
        self.queue.remove_request(request)
        return request

    def remove_request(self, request: Any) -> None:
        """It waits no more, and is not admitted."""
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """They wait no more, and are not admitted."""
        self.queue.remove_requests(requests)
        self._next = None

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.queue)

    # What the scheduler's class tells

    def begin(self) -> None:
        """A step begins; the plugin learns which requests have ended since the last."""
        ended = [self._known.pop(name) for name in self.scheduler.finished_req_ids if name in self._known]
        for request, waiting in sorted(ended, key=lambda one: one[1].number):
            self._forget(request.request_id)
            self._attempt(lambda plugin, one: plugin.plugin.ended(one, self._view), self._seen(request, waiting))
        self._step, self._next = self._computed + 1, None
        self._view.now = self._view.now_s = self._now()

    def scheduled(self, output: Any) -> None:
        """A step was scheduled, as vLLM's SchedulerOutput says; one without a token is none."""
        for new in output.scheduled_new_reqs:
            admitted = self._waits.get(new.req_id)
            self._forget(new.req_id)
            if admitted is not None:
                self._attempt(lambda plugin, one: plugin.admitted(one, self._waits.values(), self._view), admitted)
        self._computed += output.total_num_scheduled_tokens > 0
        self._step = self._computed
        if self.plugin is not None and self.plugin.num_overdue > self.num_overdue:
            before, self.num_overdue = self.num_overdue, self.plugin.num_overdue
            if self.num_overdue.bit_length() > before.bit_length():
                _LOGGER.info(
                    "%d requests so far were admitted before their place in the order (%s)",
                    self.num_overdue, self.plugin.bound,
                )  # fmt: skip

    def _forget(self, name: str) -> None:
        self._waits.pop(name, None)
        self._hits.forget(name)

    # What the plugin is asked, and what it sees

    def _ordered(self) -> list[Any]:
        """Those who wait, the next one last. The plugin is asked once a step, when vLLM first looks."""
        if self._next is None:
            waiting = list(self.queue)
            self._next = (self._attempt(lambda plugin: self._ask(plugin, waiting)) or waiting)[::-1]
        return self._next

    def _ask(self, plugin: GuardedScheduling, waiting: list[Any]) -> list[Any] | None:
        fresh = {self._waits[one.request_id]: one for one in waiting if one.request_id in self._waits}
        arrived = sorted(fresh, key=lambda one: one.number)
        chosen = plugin.order(arrived, self._view)
        if chosen is arrived:  # it says nothing
            return None
        return [*(one for one in waiting if one.request_id not in self._waits), *(fresh[one] for one in chosen)]

    def _attempt(self, act: Callable[..., Any], *given: Any) -> Any:
        """What `act(plugin, *given)` returns; None without a plugin, or when it fails, which is the end of it."""
        if self.plugin is None:
            return None
        try:
            return act(self.plugin, *given)
        except OUTSIDE:
            raise
        except BaseException as raised:  # SystemExit too: the requests are somebody's
            error = named(raised)
            self.plugin, self.failure = None, error
            _LOGGER.error(
                "The scheduling failed and is not asked again; requests are admitted in vLLM's own order from here on. "
                f"{plugin_note(error) or error}", exc_info=error,
            )  # fmt: skip
            return None

    def _now(self) -> float:
        return float(self._step) if self._clock == "steps" else time.monotonic() - self._start

    def _running(self) -> list[RunningRequest]:
        known = (self._known[one.request_id] for one in self.scheduler.running if one.request_id in self._known)
        return [self._seen(*one) for one in known]

    @staticmethod
    def _seen(request: Any, waiting: WaitingRequest) -> RunningRequest:
        return RunningRequest(
            waiting.info, waiting.number, request.num_tokens, request.num_computed_tokens, request.num_output_tokens
        )

    def _found(self, name: str) -> Found:
        """What is cached of a request that waits, looked up past vLLM's statistics."""
        request, waiting = self._known[name]
        if self.plugin is not None:
            self.plugin.reads_hit(waiting.number, waits=name in self._waits)
        return self._hits.of(name, lambda: self._find(request))

    def _find(self, request: Any) -> Found:
        if not self.manager.enable_caching or request.skip_reading_prefix_cache:
            return 0, request.block_hashes
        hit = self.manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        return int(hit[1]), request.block_hashes

    def _follow(self, pool: Any, block_size: int | None) -> None:
        """Hear what is published and evicted."""
        self._hits = WaitingHits(block_size)
        if block_size is None or self.plugin is None or not self.plugin.plugin.needs_hits:
            return
        hash_of = importlib.import_module("vllm.v1.core.kv_cache_utils").get_block_hash

        def forget() -> None:
            self._hits = WaitingHits(block_size)

        follow(
            pool, lambda request, blocks, first, end: self._hits.changed(request.block_hashes[first:end]),
            lambda name: self._hits.changed([hash_of(name)]), forget,
        )  # fmt: skip


class _View(QueueView):
    """The blocks of vLLM's pool; those that are used need no count of the others."""

    def __init__(self, pool: Any, block_size: int, running: Callable[[], list[RunningRequest]]) -> None:
        super().__init__(pool.num_gpu_blocks - 1, block_size, self._counts, running)
        self._pool = pool

    @property
    def used_blocks(self) -> int:
        """Blocks that requests use."""
        return self.num_blocks - int(self._pool.get_num_free_blocks())

    def _counts(self) -> tuple[int, int, int]:
        idle = [block for block in self._pool.blocks if not block.ref_cnt and not block.is_null]
        cached = sum(block.block_hash is not None for block in idle)
        return len(idle) - cached, cached, self.used_blocks
