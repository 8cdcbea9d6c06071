"""Our routers as Ray Serve's request router: which replica of a deployment, such as Ray Serve LLM's, gets a request.

RequestRouterConfig(
    request_router_class="framework_engines.ray_serve:ServedRouter",
    request_router_kwargs={"router": {"name": "dynamo_kv", "temperature": 0.1}, "block_size": 64},
)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from framework.config.config import component
from framework.registry.components import build_component
from framework.registry.culprit import named
from framework.types import Namespace, TokenArray
from framework_fleet.guard import GuardedRouter
from framework_fleet.index import SentBlocks
from framework_fleet.router import Load, ReplicaView, RoutedRequest

CHARACTERS_A_TOKEN = 4
"""That a text, whose tokens only the replicas know, is taken to have: as in the Gateway API Inference Extension."""


class ServedRouter(RequestRouter):  # type: ignore[misc]
    """Asks a router of ours; where the replica that it names is full, or answers Ray too late, another takes it.

    Ray makes one for each handle. A prompt is what `prompt` or `messages` of the request's argument hold, as with Ray
    Serve LLM's, or the argument itself, text or token ids; its session is Ray's `session_id`.
    NOTE 1. Replicas tell no KV events: matches are guessed from what was sent, as with `mode.index=sent`.
    NOTE 2. The first token of an answer is not seen, so `active_prefill_tokens` counts prompts until their answers end.
    NOTE 3. `load` is what the deployment's `record_routing_stats` returns (`running`, `waiting`, `used_blocks`), where
    it has one; else its requests, as Ray last knew, are `running`.
    """

    def initialize_state(
        self, router: Any = "lmetric", block_size: int = 16, num_blocks: int = 2**20, ttl_s: float = 120.0,
        hash: str = "xxh64", seed: int = 0,
    ) -> None:  # fmt: skip
        """`request_router_kwargs`.

        Args:
            router: a name, {name: ..., options}, or FILE.py:CLASS. block_size: tokens. num_blocks: of a replica's pool.
            ttl_s: seconds after which a guess of what a replica holds is forgotten.

        Raises:
            ConfigError, UnknownPlugin: no such router, or an option that it does not have.
        """
        self._guarded = GuardedRouter(build_component("router", component("router", router).plain(), {"seed": seed}))
        self._scheme = build_component("hash", component("hash", hash).plain(), {"seed": seed})
        self._size, self._num_blocks = block_size, num_blocks
        self._index = SentBlocks(num_blocks, ttl_s)
        self._numbers: dict[ReplicaID, int] = {}  # never used again
        self._views: dict[ReplicaID, ReplicaView] = {}
        self._under_way: dict[int, Counter[Any]] = {}
        self._asked: WeakKeyDictionary[asyncio.Future[Any], RoutedRequest] = WeakKeyDictionary()
        self._at_hand: Sequence[Any] = ()
        self._now_s, self._count = 0.0, 0

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The one that the router names, and then the others. What it raises ends the request, not Ray's loop."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas] if candidate_replicas else []
        pending_request.routing_context.should_backoff = True  # where all are full, before they are asked again
        try:
            return self._ranked(candidate_replicas, self._request(pending_request))
        except Exception as error:
            pending_request.future.set_exception(named(error))
            return [candidate_replicas]

    def _ranked(self, candidate_replicas: list[RunningReplica], asked: RoutedRequest) -> list[list[RunningReplica]]:
        self._now_s = asked.now_s
        self._at_hand = asked.hashes[: (asked.num_tokens - 1) // self._size]
        of = {self._view(one).index: one for one in candidate_replicas}
        views = {self._view(one).index: self._view(one) for one in candidate_replicas}
        chosen = self._guarded.route(asked, [views[index] for index in sorted(views)])
        others = [one for index, one in of.items() if index != chosen.index]
        return [[of[chosen.index]], others] if others else [[of[chosen.index]]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A replica has taken it."""
        asked, view = self._request(pending_request), self._views.get(replica_id)
        if view is None:
            return
        self._now_s, self._at_hand = asked.now_s, asked.hashes
        tokens = asked.num_tokens - min(asked.num_tokens, self._match(view.index)[0])
        view.active += 1
        view.active_prefill_tokens += tokens
        self._under_way[view.index].update(asked.hashes)
        self._index.sent(view.index, asked.hashes, asked.now_s)
        ended, loop = partial(self._ended, view, tokens, asked.hashes), asyncio.get_running_loop()
        result.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(ended))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """See RequestRouter; the router learns which have left."""
        super().update_replicas(replicas)
        there = {one.replica_id for one in replicas}
        for replica_id in [one for one in self._views if one not in there]:
            index = self._views.pop(replica_id).index
            self._under_way.pop(index)
            self._index.drop(index)
            self._guarded.plugin.left(index)

    def _ended(self, view: ReplicaView, tokens: int, hashes: Sequence[Any]) -> None:
        view.active -= 1
        view.active_prefill_tokens -= tokens
        under_way = self._under_way.get(view.index)
        if under_way is not None:
            under_way.subtract(hashes)
            for key in {key for key in hashes if under_way[key] <= 0}:
                del under_way[key]

    def _view(self, replica: RunningReplica) -> ReplicaView:
        index = self._numbers.setdefault(replica.replica_id, len(self._numbers))
        view = self._views.get(replica.replica_id)
        if view is None:
            self._under_way[index] = Counter()
            view = ReplicaView(index, self._num_blocks, self._size, self._match, self._potential_blocks)
            self._views[replica.replica_id] = view
        stats = replica.routing_stats or {}
        running = stats.get("running", self.replica_queue_len_cache.get(replica.replica_id) or 0)
        view.load = Load(self._now_s, running, stats.get("waiting", 0), stats.get("used_blocks", 0))
        return view

    def _match(self, index: int) -> tuple[int, ...]:
        return (self._size * self._index.matched(index, self._at_hand, self._now_s),)

    def _potential_blocks(self, index: int) -> int:
        under_way = self._under_way[index]
        return len(under_way) + sum(key not in under_way for key in self._at_hand)

    def _request(self, pending: PendingRequest) -> RoutedRequest:
        """What a router may know of a request; found once."""
        request = self._asked.get(pending.future)
        if request is None:
            units, a_token = _prompt(pending)
            root = self._scheme.root(Namespace(), self._size)
            request = RoutedRequest(
                number=self._count, num_tokens=max(1, -(-len(units) // a_token)),
                hashes=self._scheme.blocks(root, units, self._size * a_token), block_size=self._size,
                now_s=self._get_curr_time_s(), session=pending.metadata.session_id or None,
            )  # fmt: skip
            self._count += 1
            self._asked[pending.future] = request
        return request


def _prompt(pending: PendingRequest) -> tuple[TokenArray, int]:
    """(n,) int32 of a request's prompt, and how many of them are a token: token ids, or the bytes of its text."""
    for argument in (*pending.args, *pending.kwargs.values()):
        for name in ("prompt", "messages"):
            held = argument.get(name) if isinstance(argument, dict) else getattr(argument, name, None)
            if held:
                return _units(held)
        if isinstance(argument, str) or _are_tokens(argument):
            return _units(argument)
    return _units("")


def _units(prompt: Any) -> tuple[TokenArray, int]:
    if _are_tokens(prompt):
        return np.array(prompt, dtype=np.int32), 1
    text = prompt if isinstance(prompt, str) else "\n".join(map(_text, prompt))
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32), CHARACTERS_A_TOKEN


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _text(message: Any) -> str:
    if isinstance(message, dict):
        return f"{message.get('role')}: {message.get('content')}"
    return f"{getattr(message, 'role', '')}: {getattr(message, 'content', message)}"
