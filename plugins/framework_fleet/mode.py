"""mode=fleet: a replay over several replicas, from a configuration to its result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf, isnan
from typing import Any

import numpy as np

from framework.config.config import Config
from framework.engine.engine import Engine, Trial
from framework.engine.request import Status
from framework.errors import ConfigError
from framework.guard.facts import Reporting, reported
from framework.guard.workload import GuardedWorkload
from framework.interfaces.below import Below
from framework.interfaces.mode import OnBegin
from framework.interfaces.workload import Workload, WorkloadRequest
from framework.modes.replay import clock_of, prefill_time, request_row
from framework.modes.replay_input import workload_of
from framework.modes.session import KINDS, Session, names_of
from framework.registry.components import build_component
from framework.results.layout import REQUESTS
from framework.types import BlockHash
from framework.workload import requests_of
from framework_fleet.bounds import Bounds
from framework_fleet.fleet import Fleet, Sight
from framework_fleet.guard import GuardedRouter
from framework_fleet.handoff import Handoffs
from framework_fleet.loop import ClosedLoop, OpenLoop, chained
from framework_fleet.plugin import FleetOptions
from framework_fleet.replica import Replica, Sent, config_of

_REPLICAS = "replicas.jsonl"


def fleet(config: Config, options: FleetOptions, on_begin: OnBegin) -> dict[str, Any]:
    """Replay `config`'s workload over replicas; returns what `result.json` holds."""
    with Session(config, on_begin=on_begin) as session:
        return _replayed(session, options)


def _replayed(session: Session, options: FleetOptions) -> dict[str, Any]:
    config = session.config
    name, workload = workload_of(config)
    loop = loop_of(workload, name, options)
    trial = session.trial()
    handoffs = Handoffs(options.link_bytes_per_s, options.link_latency_s, options.lease_s) if options.decoders else None
    replicas = [
        Replica(
            index, config_of(config, index, options.unequal), _trial_of(trial, index), lambda sent, at_s: None,
            None if handoffs is None else handoffs.below(index, decodes=index >= options.replicas - options.decoders),
        )
        for index in range(options.replicas)
    ]  # fmt: skip
    router, decode_router = (
        GuardedRouter(build_component("router", one, {"seed": config.seed}))
        for one in (options.router, options.decode_router)
    )
    below: Below = build_component("below", config.below.plain(), {})
    tally = _Tally(session, below, bounds=options.bounds)
    made = Fleet(
        replicas,
        loop,
        router,
        build_component("hash", config.hash.plain(), {"seed": config.seed}),
        block_size=config.cache.block_size,
        sight=Sight(
            report_s=options.report_s, lag_s=options.lag_s, loss=options.event_loss, sent=options.index == "sent",
            ttl_s=options.index_ttl_s, seed=config.seed,
        ),
        outages=outages_of(options),
        log_end=tally.ended,
        decode_router=decode_router,
        handoffs=handoffs,
        patience_s=options.patience_s or inf,
    )  # fmt: skip
    session.facts |= {
        "executor": config.executor or "none",
        **names_of(config, (*KINDS[:3], "scheduling", "compression", "workload")),
        **below.names(),
        "replicas": options.replicas,
        "router": options.router["name"],
    }
    session.begin("none")
    engine = min((replica.engine for replica in replicas), key=lambda one: one.max_model_len)
    session.say_length(config.engine.max_model_len, None, engine.max_model_len, engine.limits.length_advice)
    start = time.perf_counter()
    measured: dict[str, Any] = {}

    def work() -> None:
        for replica in made.run():
            if options.replicas == 1:
                session.log_step(replica.engine)
        for replica in replicas:
            replica.check()
        if sent := tally.admitted():
            bounds = Bounds(sent, [one.engine.allocator.num_blocks for one in replicas], config.cache.block_size)
            measured.update(bounds.results(tally.hit_tokens, tally.ttft_s, prefill_time(config)))

    def outcome(complete: bool) -> dict[str, Any]:
        lives = [[*replica.past, *([replica.engine] if replica.present else [])] for replica in replicas]
        apart = options.replicas - options.decoders
        summary = merged(list(chain(*lives)), complete=complete)
        if handoffs is not None:
            prefill, decode = (merged(list(chain(*part)), complete=complete) for part in (lives[:apart], lives[apart:]))
            summary |= both(prefill, decode, summary["wall_s"]) | handoffs.results()
        slo = config.replay.slo_ttft_s, config.replay.slo_tpot_s
        if len(lives) == 1 and len(lives[0]) == 1:
            summary["goodput_requests_per_s"] = replicas[0].engine.metrics.goodput(*slo)
        facts: dict[str, Any] = {}
        if complete:
            for index, engines in enumerate(lives):
                session.run.log(_REPLICAS, {"replica": index, **merged(engines, complete=True)})
            of: dict[str, Reporting] = {"router": router}
            facts = dict(GuardedWorkload(workload).result())
            if len(replicas) == 1:
                of |= {"allocator": replicas[0].engine.state.guarded, "eviction": replicas[0].guarded_policy()}
            facts |= reported(of)
        return {
            "num_skipped_lines": 0,
            **facts,
            **summary,
            **tally.results(),
            "imbalance": imbalance(lives),
            "resent_requests": made.num_resent,
            **measured,
            "clock": clock_of(config),
            "loop": loop.name,
            "num_blocks": sum(replica.engine.allocator.num_blocks for replica in replicas),
            "block_size": config.cache.block_size,
            "replay_s": time.perf_counter() - start,
        }

    return session.record(work, outcome)


def loop_of(workload: Workload, name: str, options: FleetOptions) -> OpenLoop:
    """When the workload's requests are sent.

    Raises:
        ConfigError: a workload without times in seconds, or a closed loop over one that says nothing of order.
        WorkloadError: a source that cannot be read; an order that cannot be.
    """
    if GuardedWorkload(workload).in_steps():
        raise ConfigError(
            "mode=fleet needs arrivals in seconds, and these count an engine's steps; take mode=replay, or "
            "workload.clock=seconds where the file has both"
        )
    if options.loop == "open":
        return OpenLoop(requests_of(workload, name), options.concurrency)
    if options.loop == "auto" and not any(request.after for request in requests_of(workload, name)):
        return OpenLoop(requests_of(workload, name), options.concurrency)
    requests: Iterable[WorkloadRequest] = list(requests_of(workload, name))
    if not any(request.after for request in requests):
        requests = chained(requests, options.answer_s_per_token)
    return ClosedLoop(requests, options.concurrency)


def outages_of(options: FleetOptions) -> list[tuple[float, int, bool]]:
    """(when, replica, whether it comes) in order of time; who goes comes before who comes."""
    outages = []
    for entry in options.outages:
        outages.append((float(entry["leaves_s"]), int(entry["replica"]), False))
        if "returns_s" in entry:
            outages.append((float(entry["returns_s"]), int(entry["replica"]), True))
    return sorted(outages, key=lambda one: (one[0], one[2], one[1]))


class _Tally:
    """What is counted of the requests as they end, whatever replica they were on."""

    def __init__(self, session: Session, below: Below, *, bounds: bool) -> None:
        self._session, self._below = session, below
        self._kept: list[tuple[float, int, Sent]] | None = [] if bounds else None  # (when admitted, number, which)
        self._names: dict[BlockHash, int] = {}
        self._missed: Counter[str] = Counter(elsewhere=0, evicted=0, new=0)
        self._expected = 0
        self.ttft_s: dict[int, float] = {}
        self.hit_tokens = 0

    def ended(self, sent: Sent) -> None:
        request = sent.request
        assert request is not None
        first = sent.prefilled or request  # that computed the prompt
        if first.first_scheduled_s is not None:
            had, total = first.num_cached_tokens, len(request.prompt)
            elsewhere = max(had, sent.elsewhere_tokens)
            known = max(elsewhere, sent.known_tokens)
            self._missed.update(elsewhere=elsewhere - had, evicted=known - elsewhere, new=total - known)
            self._expected += sent.matched_tokens
            self.hit_tokens += had
            if self._kept is not None:
                self._kept.append((first.first_scheduled_s, sent.number, sent))
                numbers = [self._names.setdefault(key, len(self._names)) for key in sent.path]
                sent.blocks = np.array(numbers, dtype=np.int64)
        if request.status is Status.FINISHED and request.first_token_s is not None:
            self.ttft_s[sent.number] = request.first_token_s - request.arrival_s
        if self._session.settings.requests:
            row = {**request_row(request, self._below), **self._session.observed(request.number)}
            self._session.run.log(
                REQUESTS, row | {"request": sent.number, "replica": sent.replica, "matched_tokens": sent.matched_tokens,
                                 "cached_tokens": first.num_cached_tokens}
                | ({} if sent.prefill_replica is None else {"prefill_replica": sent.prefill_replica})
            )  # fmt: skip

    def admitted(self) -> list[Sent]:
        """In order of admission, where bounds are asked for."""
        return [sent for _, _, sent in sorted(self._kept or ())]

    def results(self) -> dict[str, Any]:
        times = list(self.ttft_s.values())
        return {
            **{f"missed_{cause}_tokens": count for cause, count in self._missed.items()},
            "expected_hit_tokens": self._expected,
            "ttft_s_mean": float(np.mean(times)) if times else None,
        }


def merged(engines: Sequence[Engine], *, complete: bool) -> dict[str, Any]:
    """The summary of several engines as of one: counts summed, rates and percentiles of all requests.

    What has no meaning over several, such as shares of a pool and peaks, is left out; of one engine nothing is.
    """
    summaries = [engine.state.summary(complete=complete) for engine in engines]
    for summary in summaries:
        summary.pop("engine_overhead", None)  # measured by the wall
    if len(engines) == 1:
        return summaries[0]
    result: dict[str, Any] = {
        key: sum(summary.get(key, 0) for summary in summaries)
        for key, value in summaries[0].items()
        if type(value) is int and not key.startswith("peak_")
    }
    all_metrics = [engine.metrics for engine in engines]
    first = min((one.first_arrival_s for one in all_metrics if one.first_arrival_s is not None), default=0.0)
    wall = max(0.0, max(one.last_end_s for one in all_metrics) - first)
    rates = [rate for one in all_metrics for rate in one.request_hit_rates]
    result |= {
        "wall_s": wall,
        "output_tokens_per_s": _over(result["output_tokens"], wall),
        "requests_per_s": _over(result["num_finished"], wall),
        "hit_rate": _over(result["hit_tokens"], result["prompt_tokens"]),
        "hit_rate_blocks": _over(result["hit_blocks"], result["prompt_blocks"]),
        "hit_rate_request_mean": float(np.mean(rates)) if rates else None,
        "forward_s": sum(one.forward_s for one in all_metrics),
    }
    if failures := [one.first_failure for one in all_metrics if one.first_failure]:
        result["first_failure"] = failures[0]
    times = {
        "ttft": [value for one in all_metrics for value in one.ttft_s],
        "tpot": [value for one in all_metrics for value in one.request_tpot_s if not isnan(value)],
        "latency": [value for one in all_metrics for value in one.latency_s],
    }
    for name, values in times.items():
        for percent in (50, 95, 99):
            result[f"{name}_s_p{percent}"] = float(np.percentile(values, percent)) if values else None
    return result


def both(prefill: Mapping[str, Any], decode: Mapping[str, Any], wall_s: float) -> dict[str, Any]:
    """What a summary says of requests and prompts, each of which two engines had: counted once."""
    result = {key: value for key, value in prefill.items() if key.startswith(("prompt_", "hit_"))}
    result |= {key: decode[key] for key in decode if key.startswith(("ttft_", "tpot_", "latency_"))}
    result |= {"num_requests": prefill["num_requests"], "num_finished": decode["num_finished"]}
    return result | {
        "output_tokens": decode["output_tokens"],
        "output_tokens_per_s": _over(decode["output_tokens"], wall_s),
        "requests_per_s": _over(decode["num_finished"], wall_s),
    }


def imbalance(lives: Sequence[Sequence[Engine]]) -> float | None:
    """Prompt tokens computed by the replica that computed most, over the mean; None where none computed any."""
    computed = [sum(one.metrics.prompt_tokens - one.metrics.hit_tokens for one in engines) for engines in lives]
    mean = sum(computed) / len(computed)
    return max(computed) / mean if mean else None


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _trial_of(trial: Trial, index: int) -> Trial:
    """The run's trial for one replica: its events say whose they are."""
    log = trial.log
    if log is None:
        return trial
    return trial.changed(log=lambda event, **facts: log(event, replica=index, **facts))
