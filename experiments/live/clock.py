"""A clock fitted to an engine: vLLM on this CPU and our own, and how well it tells held-out workloads at three
loads, and which of several policies is the faster.

Needs vLLM's environment: `make live-clock` sets it up and runs this. KVLAB_PYTHON is the Python of our engine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.live.checkpoint import VOCABULARY, make
from experiments.live.server import (
    LIKE_VLLM,
    LIMITS,
    LONGEST,
    Ask,
    Client,
    Server,
    arguments_of,
    drawn,
    policy_config,
    serving,
    trace_config,
)
from experiments.shared import begun, finish, output_of, parser_of, table
from framework.interfaces.workload import WorkloadRequest
from framework_report.statistics import paired
from framework_traces.writing import write_trace

BLOCKS = 256
SHAPE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LOADS = (0.3, 0.6, 0.9)
"""Arrivals a second as a share of what the engine does when all requests are there at once."""
HELD_OUT: dict[str, tuple[str, dict[str, Any]]] = {
    "conversations": ("conversations", {"num_sessions": 40, "rate_per_s": 1.0, "think_s": 5.0, "turns": 4.0}),
    "system prompts": ("system_prompts", {"num_prompts": 8, "num_requests": 200, "rate_per_s": 1.0}),
}
POLICIES = ("lru", "lfu", "sieve", "random")
COMPARED = "policies"
"""The workload under which policies are compared: long prompts of applications, in a pool that holds half of them."""
COMPARED_OPTIONS = {"num_prompts": 16, "num_requests": 200, "rate_per_s": 1.0, "system_tokens": 600, "zipf_alpha": 0.7}
COMPARED_BLOCKS, COMPARED_LOAD = 160, 0.6
MEASURES = ("time to first token", "time per token", "duration")
PERCENTILES = (50, 90)

Times = npt.NDArray[np.float64]
Measure = Callable[[str, float], Times]
"""(workload, speed) -> (requests, 3) seconds, as MEASURES."""
Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Both engines; the tables."""
    parser = parser_of(
        __doc__,
        "live.clock",
        quick="a model of one layer, one workload and load, few requests, one repeat, two policies",
    )
    options = begun(parser, arguments, "results/clock")
    plan = Plan(40, 3, tuple(HELD_OUT), LOADS, POLICIES, SHAPE)
    if options.quick:
        plan = Plan(12, 1, plan.workloads[:1], LOADS[1:2], POLICIES[:2], SMALL)
    rows: Rows = []
    fits: Rows = []
    order: Rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), plan)
        for name, measured in (("vLLM", bench.vllm), ("ours", bench.ours)):
            found, fit, policies = measured()
            rows += [{"engine": name, **row} for row in found]
            fits.append({"engine": name, **fit})
            order += [{"engine": name, **row} for row in policies]
    tables = {"costs": _costs(fits), "clock": _clock(rows), "order": _order(order)}
    found = {"clock": rows, "costs": fits, "order": order}
    finish(options, found, tables, vllm=version("vllm"), torch=version("torch"))
    return 0


@dataclass(frozen=True)
class Plan:
    """How much is measured: requests of a held-out workload, repeats of each run, workloads, loads; and the model."""

    requests: int
    repeats: int
    workloads: tuple[str, ...]
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    shape: Mapping[str, int]


class Bench:
    """One checkpoint, the traces of calibration and held-out workloads, and two engines, in a folder for all files."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.model = make(folder / "checkpoint", **plan.shape)
        self.asks = {"calibration": _mixed(40), "idle": _apart(16)}
        for name in plan.workloads:
            kind, options = HELD_OUT[name]
            self.asks[name] = drawn(kind, LONGEST, seed=7, output_tokens=16, **options)[: plan.requests]
        compared = drawn("system_prompts", LONGEST, seed=7, output_tokens=16, **COMPARED_OPTIONS)
        self.asks[COMPARED] = compared[: 2 * plan.requests]
        for name, asks in self.asks.items():
            write_trace(self._trace(name), [
                WorkloadRequest(arrival_s=ask.arrival_s, prompt=np.array(ask.prompt, dtype=np.int32),
                                output_tokens=ask.max_tokens, session=ask.session or None)
                for ask in asks
            ])  # fmt: skip

    def vllm(self) -> tuple[Rows, dict[str, Any], Rows]:
        """vLLM behind HTTP, with nothing but the recorder of its steps; times are the client's."""
        recorded = self.folder / "vllm.jsonl"
        with self._vllm("vllm", BLOCKS, trace_config(recorded)) as server:
            measured = self._asking(server)

            def steps() -> Path:
                measured("calibration", 1.0)  # what is slow once
                steps = recorded.with_suffix(".steps")
                before = len(steps.read_text(encoding="utf-8").splitlines())
                measured("calibration", 1.0)
                kept = self.folder / "vllm.calibration"
                kept.write_text("\n".join(steps.read_text(encoding="utf-8").splitlines()[before:]) + "\n")
                return kept

            rows, fit = self._engine(steps, measured, LIKE_VLLM)
        with ExitStack() as servers:  # all at once: repeats of the policies take turns
            led = {
                policy: self._asking(servers.enter_context(self._vllm(policy, COMPARED_BLOCKS, policy_config(policy))))
                for policy in self.plan.policies
            }
            return rows, fit, self._policies(led, fit, LIKE_VLLM)

    def ours(self) -> tuple[Rows, dict[str, Any], Rows]:
        """`mode=serve`, each run a process of its own; times are the engine's."""

        def measured(workload: str, speed: float, policy: str = "lru") -> Times:
            serve = (f"model={self.model}", "+model.dtype=float32", "device=cpu", "run.check_requests=0")
            return self._run(workload, speed, "mode=serve", f"eviction={policy}", *serve)[0]

        def steps() -> Path:
            measured("calibration", 1.0)
            return self.folder / "run" / "metrics.jsonl"

        rows, fit = self._engine(steps, measured, ())
        led = {policy: partial(measured, policy=policy) for policy in self.plan.policies}
        return rows, fit, self._policies(led, fit, ())

    def _vllm(self, name: str, blocks: int, transfer: Mapping[str, Any]) -> AbstractContextManager[Server]:
        return serving(self.model, self.folder / f"{name}.log", arguments_of(blocks + 1), transfer)

    def _asking(self, server: Server) -> Measure:
        """Measures with a client of `server`, which starts each time with an empty cache."""
        client = Client(server)

        def measured(workload: str, speed: float) -> Times:
            asks = self.asks[workload]
            arrivals = [ask.arrival_s / speed for ask in asks]
            server.forget()
            start, answers = client.on_time(asks, arrivals)
            return _times(
                np.array(arrivals),
                np.array([answer.first_s - start for answer in answers]),
                np.array([answer.end_s - start for answer in answers]),
                np.array([len(answer.tokens) for answer in answers]),
            )

        return measured

    def _engine(
        self, steps: Callable[[], Path], measured: Measure, settings: Sequence[str]
    ) -> tuple[Rows, dict[str, Any]]:
        """Fit the clock to the timed steps, then each workload at each load, measured and replayed."""
        costs = self.costs
        # SciPy is in this environment; that of our engine need not have it.
        words = ("calibrate", str(steps()), "--out", str(costs), "--force", "--json")
        output = self._python("framework", *words, python=sys.executable)
        fit = json.loads(output)
        print(f"calibrated: {fit}", file=sys.stderr, flush=True)
        replay = ("mode=replay", f"replay.costs={costs}", *settings)
        # What a request takes outside steps (HTTP, checks of the prompt): to the first token of an idle engine.
        fit["request_s"] = float(np.median((measured("idle", 1.0) - self._run("idle", 1.0, *replay)[0])[:, 0]))
        rows = []
        for workload in self.plan.workloads:
            for load in self.plan.loads:
                speed = load * self._saturation(workload, *replay)
                predicted = self._run(workload, speed, *replay)[0] + np.array([fit["request_s"], 0, fit["request_s"]])
                runs = [measured(workload, speed) for _ in range(self.plan.repeats)]
                found = _compared(runs, predicted)
                rows += [{"workload": workload, "load": load, "requests": len(runs[0]), **row} for row in found]
                print(f"{workload} at {load:.0%}", file=sys.stderr, flush=True)
        flat = {
            **{f"{name[:-1]}us": 1e6 * cost for name, cost in fit["costs"].items()},
            **{key: fit[key] for key in ("request_s", "num_steps", "total_error", "step_error_p50", "step_error_p95")},
        }
        return rows, flat

    def _policies(self, led: Mapping[str, Measure], fit: Mapping[str, Any], settings: Sequence[str]) -> Rows:
        """Each policy's mean times in every repeat, and in the replay with the costs just fitted.

        Repeats are twice the clock's, and a run before them, of which nothing is kept, pays for what is slow once.
        """
        replay = ("mode=replay", f"replay.costs={self.costs}", *settings)
        speed = COMPARED_LOAD * self._saturation(COMPARED, *replay)
        runs: dict[str, list[Times]] = {policy: [] for policy in led}
        for turn in range(-1, 2 * self.plan.repeats):
            for policy, measured in led.items():
                times = measured(COMPARED, speed)
                if turn >= 0:
                    runs[policy].append(times)
        rows = []
        for policy in led:
            times, result = self._run(COMPARED, speed, *replay, f"eviction={policy}")
            replayed = times.mean(axis=0) + np.array([fit["request_s"], 0, fit["request_s"]])
            rows += [
                {"policy": policy, "hit_rate": result["hit_rate"], "measure": measure, "repeat": repeat,
                 "measured_s": float(run[:, column].mean()), "replayed_s": float(replayed[column])}
                for column, measure in enumerate(MEASURES)
                for repeat, run in enumerate(runs[policy])
            ]  # fmt: skip
            print(f"{policy}: {rows[-1]}", file=sys.stderr, flush=True)
        return rows

    def _saturation(self, workload: str, *replay: str) -> float:
        """The speed at which requests arrive as fast as the engine does them when all are there at once."""
        asks = self.asks[workload]
        drawn_per_s = (len(asks) - 1) / (asks[-1].arrival_s - asks[0].arrival_s)
        return float(self._run(workload, 1e6, *replay)[1]["requests_per_s"]) / drawn_per_s

    @property
    def costs(self) -> Path:
        return self.folder / "costs.json"

    def _run(self, workload: str, speed: float, *overrides: str) -> tuple[Times, dict[str, Any]]:
        """One run of ours, serve or replay: its times, its result."""
        out = self.folder / "run"
        self._python(
            "framework.run", "workload=trace", f"workload.path={self._trace(workload)}", f"workload.speed={speed}",
            f"run.dir={out}", "run.overwrite=true", *LIMITS,
            f"cache.num_blocks={COMPARED_BLOCKS if workload == COMPARED else BLOCKS}", *overrides,
        )  # fmt: skip
        rows = [json.loads(line) for line in (out / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
        rows.sort(key=lambda row: row["request"])
        wanted = [ask.max_tokens for ask in self.asks[workload]]
        if (found := [row["output_tokens"] for row in rows]) != wanted:
            raise RuntimeError(f"answers of other lengths than asked for: {found}, {wanted}")
        times = _times(*(np.array([row[key] for row in rows]) for key in
                         ("arrival_s", "first_token_s", "finished_s", "output_tokens")))  # fmt: skip
        return times, json.loads((out / "result.json").read_text(encoding="utf-8"))

    def _trace(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '_')}.jsonl"

    def _python(self, *command: str, python: str | None = None) -> str:
        """Standard output of a module of ours; None takes the Python of our engine."""
        return output_of([python or os.environ.get("KVLAB_PYTHON", sys.executable), "-m", *command])


def _mixed(count: int) -> list[Ask]:
    """Prompts of 8 to 900 tokens, a third of them repeated with a new end, in bursts of one to eight."""
    draw = np.random.default_rng(1)
    asks: list[Ask] = []
    now = 0.0
    while len(asks) < count:
        for _ in range(int(draw.integers(1, 9))):
            length = int(np.exp(draw.uniform(np.log(8), np.log(900))))
            prompt = draw.integers(2, VOCABULARY, length).tolist()
            if asks and draw.random() < 0.33:
                prompt = [*asks[int(draw.integers(len(asks)))].prompt[:600], *prompt[:200]]
            asks.append(Ask(tuple(prompt), int(draw.integers(4, 64)), arrival_s=now))
        now += float(draw.uniform(0.5, 3.0))
    return asks


def _apart(count: int) -> list[Ask]:
    """Prompts of 64 tokens, each when the one before has long been answered."""
    draw = np.random.default_rng(2)
    return [Ask(tuple(draw.integers(2, VOCABULARY, 64).tolist()), 2, arrival_s=float(index)) for index in range(count)]


def _times(arrival: Times, first: Times, end: Times, tokens: Times) -> Times:
    return np.stack([first - arrival, (end - first) / (tokens - 1), end - arrival], axis=1)


def _compared(runs: Sequence[Times], predicted: Times) -> list[dict[str, Any]]:
    """Each percentile: the mean over repeats, how far the repeats lie apart, and the replay's error, both relative."""
    rows = []
    for column, measure in enumerate(MEASURES):
        for percent in PERCENTILES:
            values = np.array([np.percentile(run[:, column], percent) for run in runs])
            replayed = float(np.percentile(predicted[:, column], percent))
            mean = float(values.mean())
            rows.append(
                {"measure": measure, "percentile": percent, "measured_s": mean,
                 "spread": float(values.max() - values.min()) / mean,
                 "replayed_s": replayed, "error": replayed / mean - 1}
            )  # fmt: skip
    return rows


def _costs(fits: Sequence[dict[str, Any]]) -> str:
    header = ["engine", "steps", "a request", "a step", "a row", "a token", "a token of context", "a pair",
              "held-out steps, all", "each, median"]  # fmt: skip
    keys = ("row_us", "token_us", "context_us", "pair_us")
    return table(header, [
        [fit["engine"], fit["num_steps"], f"{1e3 * fit['request_s']:.1f} ms", f"{fit['step_us'] / 1e3:.1f} ms",
         *(f"{fit[key]:.3g} µs" for key in keys), f"{fit['total_error']:+.1%}", f"{fit['step_error_p50']:.1%}"]
        for fit in fits
    ])  # fmt: skip


def _clock(rows: Sequence[dict[str, Any]]) -> str:
    """One line a workload and load; each cell the replay's error, and the spread of the engine's repeats."""
    header = [
        "engine",
        "workload",
        "load",
        *(f"{measure}, p{percent}" for measure in MEASURES for percent in PERCENTILES),
    ]
    lines: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        cells = lines.setdefault((row["engine"], row["workload"], f"{row['load']:.0%}"), [])
        cells.append(f"{1000 * row['measured_s']:.0f} ms: {row['error']:+.0%} (±{row['spread'] / 2:.0%})")
    return table(header, [[*key, *cells] for key, cells in lines.items()])


def _order(rows: Rows) -> str:
    """A line for each engine, mean and policy: how far beyond `lru`, measured (over repeats) and replayed."""
    header = ["engine", "mean", "policy", "hit rate", "measured", "beyond lru, 95 % interval over repeats", "replay",
              "beyond lru, replay"]  # fmt: skip
    lines = []
    for engine, measure in dict.fromkeys((row["engine"], row["measure"]) for row in rows):
        matching = [row for row in rows if (row["engine"], row["measure"]) == (engine, measure)]
        by_policy = {row["policy"]: row for row in matching}
        runs = {policy: [row["measured_s"] for row in matching if row["policy"] == policy] for policy in by_policy}
        for policy, row in by_policy.items():
            apart = paired([time - lru for time, lru in zip(runs[policy], runs["lru"], strict=True)], "repeat")
            low, high = apart.interval or (0.0, 0.0)
            interval = "" if apart.interval is None else f" [{1000 * low:+.0f}, {1000 * high:+.0f}]"
            beyond = row["replayed_s"] - by_policy["lru"]["replayed_s"]
            lines.append([
                engine, measure, policy, f"{row['hit_rate']:.1%}", f"{1000 * fmean(runs[policy]):.0f} ms",
                "" if policy == "lru" else f"{1000 * apart.value:+.0f} ms{interval}",
                f"{1000 * row['replayed_s']:.0f} ms", "" if policy == "lru" else f"{1000 * beyond:+.0f} ms",
            ])  # fmt: skip
    return table(header, lines)


if __name__ == "__main__":
    sys.exit(main())
