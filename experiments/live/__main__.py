"""A real vLLM on this CPU as the judge: served by HTTP with our policies leading it, recorded, and replayed.

Needs vLLM's environment: `make live` sets it up and runs this. KVLAB_PYTHON is the Python that replays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from experiments.live.checkpoint import make
from experiments.live.server import (
    BLOCK,
    LIKE_VLLM,
    LIMITS,
    LONGEST,
    Answer,
    Ask,
    Client,
    Server,
    arguments_of,
    both,
    counting_evictions,
    drawn,
    order_arguments,
    policy_config,
    serving,
    trace_config,
)
from experiments.shared import finish, output_of, parse, table, write_rows

BLOCKS = 96
ROOMY = arguments_of(BLOCKS)
CROWDED = (*arguments_of(40, step_tokens=128), "--scheduling-policy", "priority")
REPLAYED = ("mode=replay", "workload=trace", *LIKE_VLLM, *LIMITS, f"cache.num_blocks={BLOCKS - 1}")
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "conversations": ("conversations", {"num_sessions": 80, "rate_per_s": 1.0, "think_s": 20.0, "turns": 4.0}),
    "long conversations": (
        "conversations",
        {"num_sessions": 60, "rate_per_s": 1.0, "think_s": 8.0, "turns": 9.0, "num_prompts": 12},
    ),
    "agents": (
        "agents",
        {"num_sessions": 60, "rate_per_s": 1.0, "tool_s": 5.0, "agent_tokens": 192, "max_context_tokens": 960},
    ),
    "system prompts": ("system_prompts", {"num_prompts": 24, "num_requests": 400, "rate_per_s": 1.0}),
}
RANKED = ("lru", "fifo", "lfu", "s3fifo", "sieve")
PHASES = ((1, tuple(WORKLOADS), 50), (4, tuple(WORKLOADS), 200), (12, ("conversations",), 50))
"""Clients at a time, the workloads that they ask, one after another on one server, and requests of each workload; each
phase has its own draw."""
ORDERS = ("longest_prefix", "shortest_rest", "windowed_lookahead")
ORDERED_CLIENTS = 24  # of whose requests eight run, and the others wait
FAILING = f"{Path(__file__).with_name('failing.py')}:FailsLater"

Rows = list[dict[str, Any]]
Phase = tuple[int, str]
Asks = dict[Phase, list[Ask]]


def main(arguments: Sequence[str] | None = None) -> int:
    """All parts; status 1 where something that must be equal is not."""
    options = parse(__doc__, "live", arguments)
    if importlib.util.find_spec("vllm") is None:
        sys.exit("vLLM is not installed here: make live")
    policies = RANKED[:2] if options.quick else RANKED
    with tempfile.TemporaryDirectory() as folder:
        lab = Laboratory(Path(folder), 15 if options.quick else 200)
        tables: dict[str, Rows] = {}
        for part in (
            lambda: lab.served(policies),
            lambda: {"orders": lab.orders(ORDERS[:1] if options.quick else ORDERS)},
            lambda: {"features": lab.features()},
            lambda: {"policies": lab.every_policy(("hazard",) if options.quick else leading(but=policies))},
        ):
            for name, rows in part().items():
                tables[name] = rows
                write_rows(options.out / f"{name}.csv", rows)
    shown = {name: _table(rows) for name, rows in tables.items()}
    finish(options, tables, shown, vllm=version("vllm"), torch=version("torch"))
    wrong = [row for rows in tables.values() for row in rows if not row.get("as it should be", True)]
    for row in wrong:
        print(f"not equal: {row}", file=sys.stderr)
    return 1 if wrong else 0


def leading(but: Sequence[str]) -> list[str]:
    """The installed policies that need no future, all `but` these."""
    from framework.registry.lookup import load

    names = sorted({point.name for point in entry_points(group="framework.eviction")} - set(but))
    return [name for name in names if not load("eviction", name).needs_future]


class Served:
    """What one server said to the requests of all phases, and what was recorded of it.

    Attributes:
        answers, counted: by phase, the answers in order of asking and what /metrics counted of hit tokens.
        steps: timed and counted by vLLM's scheduler while one client asked. evictions: by its KV events, then.
    """

    def __init__(self, trace: Path) -> None:
        self.trace = trace
        self.answers: dict[Phase, list[Answer]] = {}
        self.counted: dict[Phase, int] = {}
        self.steps: list[tuple[int, ...]] = []
        self.evictions = 0

    def hits(self, phase: Phase) -> list[int]:
        """Cached tokens by request."""
        return [answer.cached_tokens for answer in self.answers[phase]]


class Laboratory:
    """Servers over one checkpoint, and what they said.

    Args:
        folder: for checkpoint, logs and recordings.
        most: requests of a workload in a phase, where PHASES has more.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.model = folder, make(folder / "checkpoint")
        self._logs = 0
        self.asks = _drawn(PHASES, most)
        self.ordered = _drawn([(ORDERED_CLIENTS, tuple(WORKLOADS), 50)], most)

    def serving(self, arguments: Sequence[str], transfer: Any = None) -> Any:
        """A server with a log of its own."""
        self._logs += 1
        print(f"server {self._logs}", file=sys.stderr, flush=True)
        return serving(self.model, self.folder / f"{self._logs}.log", arguments, transfer)

    def served(self, policies: Sequence[str]) -> dict[str, Rows]:
        """All phases by vLLM alone and led by each policy, beside the replay of what was recorded."""
        alone = self.alone = self._phases(None, self.asks)
        runs = {policy: self._phases(policy, self.asks) for policy in policies}
        hits, engine, crowds = [], [], []
        first = self.asks_of(1)
        for policy, run in runs.items():
            one, one_steps, result = self._replayed(run, policy, limit=len(first))
            every, _, _ = self._replayed(run, policy)
            for phase in self.asks:
                if phase[0] == 1:
                    row = _one_by_one(phase, policy, run, alone, one[phase])
                    if policy == "lru":
                        row["as it should be"] &= run.hits(phase) == alone.hits(phase)
                    hits.append(row)
                else:
                    crowds.append(_crowd(phase, policy, run, every[phase]))
            engine.append(
                {"policy": policy, "requests": len(first),
                 "steps": len(run.steps), "steps of the replay": len(one_steps),
                 "steps that differ": sum(a != b for a, b in zip(run.steps, one_steps, strict=False)),
                 "evictions": run.evictions, "evictions of the replay": result["num_evictions"],
                 "as it should be": run.steps == one_steps and run.evictions == result["num_evictions"]}
            )  # fmt: skip
        for phase in self.asks:
            if phase[0] == 1:
                hits.append(_one_by_one(phase, "vLLM alone", alone, alone, None))
        for rows in (hits, crowds):
            rows.sort(key=lambda row: (row.get("clients", 1), list(WORKLOADS).index(row["workload"])))
        return {"hits": hits, "engine": engine, "crowds": crowds, "ranking": self._ranking(runs)}

    def asks_of(self, clients: int) -> list[Ask]:
        """Those of all workloads, in order."""
        return [ask for phase, asks in self.asks.items() if phase[0] == clients for ask in asks]

    def orders(self, orders: Sequence[str]) -> Rows:
        """More clients than rows: the order of those that wait, beside vLLM's own and the replay of the recording."""
        alone = self._phases(None, self.ordered)
        rows: dict[Phase, dict[str, Any]] = {
            phase: {"workload": phase[1], "requests": len(asks), "vLLM alone": alone.counted[phase]}
            for phase, asks in self.ordered.items()
        }
        differing = dict.fromkeys(rows, 0)
        same = dict.fromkeys(rows, True)
        for order in orders:
            run = self._phases("lru", self.ordered, order)
            replayed, _, _ = self._replayed(run, "lru", None, self.ordered, f"scheduling={order}")
            for phase, row in rows.items():
                row[order], row[f"{order}, replay"] = run.counted[phase], sum(replayed[phase])
                differing[phase] += sum(a != b for a, b in zip(run.hits(phase), replayed[phase], strict=True))
                same[phase] &= _same(run.answers[phase], alone.answers[phase])
        for phase, row in rows.items():
            row |= {"requests that differ": differing[phase], "tokens equal": same[phase],
                    "as it should be": same[phase] and not differing[phase]}  # fmt: skip
        return list(rows.values())

    def _phases(self, policy: str | None, phases: Asks, order: str | None = None) -> Served:
        """vLLM alone has no connector at all."""
        run = Served(self.folder / f"{order or policy}.jsonl")
        transfer, arguments = None, ROOMY if order is None else (*ROOMY, *order_arguments(order))
        events = f"ipc://{self.folder}/events"  # vLLM binds to ipc, and connects to tcp
        if policy is not None:
            transfer = both(policy_config(policy, "steps"), trace_config(run.trace))
            arguments += ("--kv-events-config", json.dumps(
                {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events}))  # fmt: skip
        with self.serving(arguments, transfer) as server, counting_evictions(events) as evictions:
            client, before = Client(server), 0
            for phase, asks in phases.items():
                run.answers[phase] = client.one_by_one(asks) if phase[0] == 1 else client.at_once(asks, phase[0])
                run.counted[phase], before = _hits(server) - before, _hits(server)
                if policy is not None and phase == (1, PHASES[0][1][-1]):
                    run.steps = _steps(run.trace.with_suffix(".steps"))
                    run.evictions = evictions()
        return run

    def _replayed(
        self, run: Served, policy: str, limit: int | None = None, phases: Asks | None = None, *more: str
    ) -> tuple[dict[Phase, list[int]], list[tuple[int, ...]], dict[str, Any]]:
        """Hit tokens by phase and request, in order of asking; the steps; the result. Of a recording's replay."""
        rows, out = self.replayed_rows(run, policy, limit, *more)
        hits: dict[Phase, list[int]] = {}
        for phase, asks in (phases or self.asks).items():
            if len(rows) < len(asks):
                break
            hits[phase], rows = _in_order(asks, rows[: len(asks)]), rows[len(asks) :]
        return hits, _steps(out / "metrics.jsonl"), json.loads((out / "result.json").read_text(encoding="utf-8"))

    def replayed_rows(self, run: Served, policy: str, limit: int | None = None, *more: str) -> tuple[Rows, Path]:
        """The rows of a recording's replay, in order of arrival, and its folder."""
        out = self.folder / f"{run.trace.stem}-{policy}-{limit}"
        command = [os.environ.get("KVLAB_PYTHON", sys.executable), "-m", "framework.run", *REPLAYED, *more,
                   f"workload.path={run.trace}", f"eviction={policy}", f"run.dir={out}"]  # fmt: skip
        output_of([*command, *([f"workload.limit={limit}"] if limit else [])])
        rows = [json.loads(line) for line in (out / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
        rows.sort(key=lambda row: row["request"])
        return rows, out

    def _ranking(self, runs: dict[str, Served]) -> Rows:
        """Four clients: what each policy hit beyond lru, live and by the replay of the recording made under lru.

        No interval where `framework_report.statistics` has too few sessions for a p value.
        """
        from framework_report.statistics import sessions

        predicted = {policy: self._replayed(runs["lru"], policy)[0] for policy in runs}
        rows: Rows = []
        for phase in (phase for phase in self.asks if phase[0] == 4):
            asks = self.asks[phase]
            wholes = np.array([float(len(ask.prompt)) for ask in asks])
            units = [ask.session or str(number) for number, ask in enumerate(asks)]
            live = {policy: np.array(run.hits(phase), dtype=float) for policy, run in runs.items()}
            replayed = {policy: np.array(hits[phase], dtype=float) for policy, hits in predicted.items()}
            orders = [sorted(runs, key=lambda name, of=hits: -of[name].sum()) for hits in (live, replayed)]  # type: ignore[misc]
            for policy in orders[0]:
                row = {"workload": phase[1], "policy": policy}
                for side, hits, order in (("live", live, orders[0]), ("replay", replayed, orders[1])):
                    gain = hits[policy] - hits["lru"]
                    found = sessions([(_by(units, gain), _by(units, wholes))], "session")
                    low, high = found.interval or (0.0, 0.0)
                    ends = "" if found.p is None else f" [{low:+.1%}, {high:+.1%}]"
                    row |= {f"place, {side}": order.index(policy) + 1,
                            f"hit rate, {side}": float(hits[policy].sum() / wholes.sum()),
                            f"beyond lru, {side}": f"{found.value:+.1%}{ends}"}  # fmt: skip
                rows.append(row)
            rows[-1]["pairs in the same order"] = _agreeing(live, replayed)
        for row in rows:
            row.setdefault("pairs in the same order", "")
        return rows

    def every_policy(self, policies: Sequence[str]) -> Rows:
        """Each other installed policy leads a server; the tokens are those of vLLM alone."""
        phase = (1, "agents")
        asks, alone = self.asks[phase][:40], self.alone.answers[phase][:40]
        rows: Rows = []
        for policy in policies:
            with self.serving(ROOMY, policy_config(policy)) as server:
                led, counted = Client(server).one_by_one(asks), _hits(server)
                failed = "The eviction policy failed" in server.log.read_text()
            equal = _same(led, alone)
            rows.append(
                {"policy": policy, "requests": len(asks), "hit tokens": counted, "tokens equal": equal,
                 "policy failed": failed,
                 "as it should be": equal and not failed and counted == sum(a.cached_tokens for a in led)}
            )  # fmt: skip
        return rows

    def features(self) -> Rows:
        """What else clients do: vLLM alone, led by lru, and led by a policy that fails."""
        asks, samples = self.asks[1, "conversations"][:40], self.asks[1, "system prompts"]
        lru = policy_config("lru")
        (alone, sampled), (led, led_sampled) = (self._quiet(asks, samples, transfer) for transfer in (None, lru))
        broken, _ = self._quiet(asks, (), policy_config(FAILING))
        rows = [
            {"feature": name, "requests": len(alone[name]), "led like alone": _same(alone[name], led[name]),
             "with a failing policy": _same(alone[name], broken[name])}
            for name in alone
        ]  # fmt: skip
        crowds = [self._crowd(asks, transfer) for transfer in (None, lru, lru)]
        preempted = [crowd.pop("preemptions")[0].cached_tokens for crowd in crowds]
        for name in crowds[0]:
            rows.append(
                {"feature": f"8 clients, {name} (preemptions {preempted[0]}, led {preempted[1]})",
                 "requests": len(crowds[0][name]), "led like alone": _same(crowds[0][name], crowds[1][name]),
                 "with a failing policy": "-"}
            )  # fmt: skip
        rows.append(
            {"feature": "a restart", "requests": len(asks), "with a failing policy": "-",
             "led like alone": _same(crowds[1]["chunks"], crowds[2]["chunks"])}
        )  # fmt: skip
        less = f"{sampled[1]}, led {led_sampled[1]}"
        rows.append(
            {"feature": f"n=2 to their own ends, hits of the last (of the first, fewer: {less})",
             "requests": len(samples), "with a failing policy": "-", "led like alone": sampled[0] and led_sampled[0]}
        )  # fmt: skip
        for row in rows:
            row["as it should be"] = row["led like alone"] and row["with a failing policy"] in (True, "-")
        if not preempted[0]:
            rows[-1]["as it should be"] = False
        return rows

    def _quiet(
        self, asks: Sequence[Ask], samples: Sequence[Ask], transfer: Any
    ) -> tuple[dict[str, list[Answer]], tuple[bool, int]]:
        with self.serving(ROOMY, transfer) as server:
            client = Client(server)
            sampled = _samples(samples, client, server)
            streamed = [client.stream(ask) for ask in asks]
            for ask in asks[:10]:
                client.stream(ask, stop_after=2)
            after = client.one_by_one(asks)
            several = [client.ask(ask, n=2, temperature=1.0) for ask in asks[:10]]
            if transfer is not None and transfer == policy_config(FAILING):
                assert "The eviction policy failed" in server.log.read_text(), "the failing policy never failed"
        lengths = [Answer(tokens=[len(answer.tokens)], cached_tokens=answer.cached_tokens) for answer in several]
        return {"streaming": streamed, "after aborts": after, "n=2, sampled (lengths)": lengths}, sampled

    def _crowd(self, asks: Sequence[Ask], transfer: Any) -> dict[str, list[Answer]]:
        with self.serving(CROWDED, transfer) as server:
            client = Client(server)
            longer = [Ask(ask.prompt, min(64, LONGEST - len(ask.prompt)), ask.session) for ask in asks]
            crowd = client.at_once(longer, 8)
            urgent = client.at_once(longer, 8, extra_body={"priority": -1})
            counted = int(server.metrics()["vllm:num_preemptions_total"])
        return {"chunks": crowd, "priorities": urgent, "preemptions": [Answer(cached_tokens=counted)]}


def _samples(asks: Sequence[Ask], client: Client, server: Server) -> tuple[bool, int]:
    """Two samples a request, each until it draws its end: whether `cached_tokens` are the second's hits, or those
    of the first where that is longer; and how many requests say less than their second sample hit.

    The second sample hits every whole block before the last token: the first has just computed or found them.
    """
    explained, less, before = True, 0, _hits(server)
    for ask in asks:
        answer = client.ask(ask, n=2, temperature=1.0, logit_bias={"1": 7.0}, extra_body={"ignore_eos": False})
        whole = (len(ask.prompt) - 1) // BLOCK * BLOCK
        first, before = _hits(server) - before - whole, _hits(server)
        cached = answer.cached_tokens
        explained &= cached == whole or (cached == first and answer.lengths[0] > answer.lengths[1])
        less += cached < whole
    return explained, less


def _drawn(phases: Sequence[tuple[int, Sequence[str], int]], most: int) -> Asks:
    """The requests of phases such as PHASES, at most `most` a workload."""
    found: Asks = {}
    for number, (clients, names, requests) in enumerate(phases):
        for name in names:
            kind, drawn_with = WORKLOADS[name]
            asks = drawn(kind, LONGEST, seed=number, output_tokens=6, **drawn_with)
            if clients > 1:  # a recording has no names: requests are recognised by the length of their prompts
                by_length: dict[int, Ask] = {}
                for ask in asks:
                    by_length.setdefault(len(ask.prompt), ask)
                asks = list(by_length.values())
            found[clients, name] = asks[: min(most, requests)]
    return found


def _same(these: Sequence[Answer], those: Sequence[Answer]) -> bool:
    return [answer.tokens for answer in these] == [answer.tokens for answer in those]


def _hits(server: Server) -> int:
    return int(server.metrics()["vllm:prefix_cache_hits_total"])


def _steps(path: Path) -> list[tuple[int, ...]]:
    """The work of each step in a file of steps or in a run's metrics."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [tuple(int(line[key]) for key in ("rows", "new_tokens", "context_tokens", "pairs")) for line in lines]


def _in_order(asks: Sequence[Ask], rows: Rows) -> list[int]:
    """Hit tokens in order of asking of recorded requests in order of arrival, where clients overtake each other.

    One client asks in order; of several, no two prompts have the same length.
    """
    left, hits = list(rows), []
    for ask in asks:
        index = next(index for index, row in enumerate(left) if row["prompt_tokens"] == len(ask.prompt))
        hits.append(int(left.pop(index)["cached_tokens"]))
    return hits


def _by(units: Sequence[str], values: Any) -> Any:
    """(U,) sums of each unit's values, in order of its first."""
    number = {unit: index for index, unit in enumerate(dict.fromkeys(units))}
    return np.bincount([number[unit] for unit in units], weights=values)


def _agreeing(live: dict[str, Any], replayed: dict[str, Any]) -> str:
    """Pairs of policies that differ live, and how many of them the replay puts in the same order."""
    signs = [
        (np.sign(live[a].sum() - live[b].sum()), np.sign(replayed[a].sum() - replayed[b].sum()))
        for a, b in combinations(live, 2)
    ]
    differing = [(one, other) for one, other in signs if one]
    return f"{sum(one == other for one, other in differing)} of {len(differing)}"


def _one_by_one(phase: Phase, policy: str, run: Served, alone: Served, replayed: list[int] | None) -> dict[str, Any]:
    live, counted = run.hits(phase), run.counted[phase]
    equal = "-" if replayed is None else sum(a == b for a, b in zip(live, replayed, strict=True))
    same = _same(run.answers[phase], alone.answers[phase])
    return {
        "workload": phase[1],
        "policy": policy,
        "requests": len(live),
        "prompt tokens": sum(answer.prompt_tokens for answer in run.answers[phase]),
        "hit tokens": sum(live),
        "/metrics": counted,
        "replay": "-" if replayed is None else sum(replayed),
        "requests with equal hits": equal,
        "tokens equal": same,
        "as it should be": same and counted == sum(live) and equal in ("-", len(live)),
    }


def _crowd(phase: Phase, policy: str, run: Served, replayed: list[int]) -> dict[str, Any]:
    live = run.hits(phase)
    return {
        "clients": phase[0],
        "workload": phase[1],
        "policy": policy,
        "requests": len(live),
        "hit tokens": sum(live),
        "replay": sum(replayed),
        "requests that differ": sum(a != b for a, b in zip(live, replayed, strict=True)) / len(live),
        "hit tokens that differ": sum(abs(a - b) for a, b in zip(live, replayed, strict=True)) / max(1, sum(live)),
    }


def _table(rows: Rows) -> str:
    header = [key for key in rows[0] if key != "as it should be"]
    return table(header, [[_cell(row[key]) for key in header] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
