"""A real vLLM on this CPU as the judge: served by HTTP with our policies leading it, recorded, and replayed.

Needs vLLM's environment: `make live` sets it up and runs this. KVLAB_PYTHON is the Python that replays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

from experiments.live.checkpoint import make
from experiments.live.clients import Answer, Ask, Client, drawn
from experiments.live.server import Server, both, policy_config, serving, trace_config
from experiments.shared import parse, publish, table, write_provenance, write_rows

BLOCK, BLOCKS, LONGEST = 32, 96, 1024
ROWS, STEP_TOKENS = 8, 512
ARGUMENTS = (
    "--enforce-eager", "--block-size", str(BLOCK), "--max-model-len", str(LONGEST), "--max-num-seqs", str(ROWS),
)  # fmt: skip
ROOMY = (*ARGUMENTS, "--num-gpu-blocks-override", str(BLOCKS), "--max-num-batched-tokens", str(STEP_TOKENS))
CROWDED = (
    *ARGUMENTS, "--num-gpu-blocks-override", "40", "--max-num-batched-tokens", "128", "--async-scheduling",
    "--scheduling-policy", "priority",
)  # fmt: skip
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
RANKED = ("lru", "fifo", "lfu", "s3fifo", "sieve", "arc")
FAILING = f"{Path(__file__).with_name('failing.py')}:FailsLater"

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """All parts; status 1 where something that must be equal is not."""
    options = parse(__doc__, "live", arguments)
    if importlib.util.find_spec("vllm") is None:
        sys.exit("vLLM is not installed here: make live")
    with tempfile.TemporaryDirectory() as folder:
        lab = Laboratory(Path(folder), 40 if options.quick else 200)
        hits = lab.hits(
            dict(list(WORKLOADS.items())[: 1 if options.quick else None]), RANKED[: 2 if options.quick else None]
        )
        served = lab.every_policy(("lru", "hazard") if options.quick else leading())
        features = lab.features()
    for name, rows in (("hits", hits), ("policies", served), ("features", features)):
        write_rows(options.out / f"{name}.csv", rows)
    write_provenance(options, [], vllm=version("vllm"), torch=version("torch"))
    publish(
        options, {name: _table(rows) for name, rows in (("hits", hits), ("policies", served), ("features", features))}
    )
    wrong = [row for row in (*hits, *served, *features) if not row["as it should be"]]
    for row in wrong:
        print(f"not equal: {row}", file=sys.stderr)
    return 1 if wrong else 0


def leading() -> list[str]:
    """The installed policies that need no future."""
    from framework.registry.lookup import load

    names = sorted({point.name for point in entry_points(group="framework.eviction")})
    return [name for name in names if not load("eviction", name).needs_future]


class Laboratory:
    """Servers over one checkpoint, and what they said.

    Args:
        folder: for checkpoint, logs and recordings.
        most: requests of a workload.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most, self.model = folder, most, make(folder / "checkpoint")
        self._logs = 0

    def asks(self, workload: str) -> list[Ask]:
        """The requests of a workload; short answers, since one request at a time is served."""
        name, drawn_with = WORKLOADS[workload]
        return drawn(name, LONGEST, self.most, **{"output_tokens": 6, **drawn_with})

    def serving(self, arguments: Sequence[str], transfer: Any = None) -> Any:
        """A server with a log of its own."""
        self._logs += 1
        return serving(self.model, self.folder / f"{self._logs}.log", arguments, transfer)

    def hits(self, workloads: dict[str, Any], policies: Sequence[str]) -> Rows:
        """Requests one after another: tokens and hits of vLLM alone, of vLLM led by us, and of the replay."""
        rows: Rows = []
        for workload in workloads:
            asks = self.asks(workload)
            with self.serving(ROOMY) as server:
                alone, counted = Client(server).one_by_one(asks), _hits(server)
            rows.append(_row(workload, "vLLM alone", alone, alone, counted, None))
            for policy in policies:
                trace = self.folder / f"{workload}-{policy}.jsonl"
                with self.serving(ROOMY, both(policy_config(policy, "steps"), trace_config(trace))) as server:
                    led, counted = Client(server).one_by_one(asks), _hits(server)
                row = _row(workload, policy, led, alone, counted, self.replayed(trace, policy))
                if policy == "lru":
                    row["as it should be"] &= [a.cached_tokens for a in led] == [a.cached_tokens for a in alone]
                rows.append(row)
        return rows

    def replayed(self, trace: Path, policy: str) -> list[int]:
        """Hit tokens by request of a recording's replay with vLLM's settings."""
        out = trace.with_suffix("")
        command = [
            os.environ.get("KVLAB_PYTHON", sys.executable), "-m", "framework.run", "mode=replay", "workload=trace",
            f"workload.path={trace}", f"eviction={policy}", f"run.dir={out}", "run.progress=false",
            "allocator={name: prefix, duplicates: keep, watermark: 0.0}", "engine.scheduling=running_first",
            f"cache.block_size={BLOCK}", f"cache.num_blocks={BLOCKS - 1}", f"engine.max_batch_tokens={STEP_TOKENS}",
            f"engine.max_batch_requests={ROWS}", f"engine.max_model_len={LONGEST}",
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = (out / "requests.jsonl").read_text(encoding="utf-8").splitlines()
        return [int(json.loads(line)["cached_tokens"]) for line in lines]

    def every_policy(self, policies: Sequence[str]) -> Rows:
        """Each installed policy leads a server; the tokens are those of vLLM alone."""
        asks = self.asks("agents")[:40]
        with self.serving(ROOMY) as server:
            alone = Client(server).one_by_one(asks)
        rows: Rows = []
        for policy in policies:
            with self.serving(ROOMY, policy_config(policy)) as server:
                led, counted = Client(server).one_by_one(asks), _hits(server)
                failed = "The eviction policy failed" in server.log.read_text()
            equal = [a.tokens for a in led] == [a.tokens for a in alone]
            rows.append(
                {"policy": policy, "requests": len(asks), "hit tokens": counted, "tokens equal": equal,
                 "policy failed": failed, "as it should be": equal and not failed and counted == _cached(led)}
            )  # fmt: skip
        return rows

    def features(self) -> Rows:
        """What else clients do: vLLM alone, led by lru, and led by a policy that fails."""
        asks = self.asks("conversations")[:40]
        alone, led = (self._quiet(asks, transfer) for transfer in (None, policy_config("lru")))
        broken = self._quiet(asks, policy_config(FAILING))
        rows = [
            {"feature": name, "requests": len(alone[name]), "led like alone": _same(alone[name], led[name]),
             "with a failing policy": _same(alone[name], broken[name])}
            for name in alone
        ]  # fmt: skip
        crowds = [self._crowd(asks, transfer) for transfer in (None, policy_config("lru"), policy_config("lru"))]
        preempted = [crowd.pop("preemptions")[0].cached_tokens for crowd in crowds]
        for name in crowds[0]:
            rows.append(
                {"feature": f"8 clients, {name} (preemptions {preempted[0]}, led {preempted[1]})",
                 "requests": len(crowds[0][name]), "led like alone": _same(crowds[0][name], crowds[1][name]),
                 "with a failing policy": "-"}
            )  # fmt: skip
        rows.append(
            {"feature": "a restart", "requests": len(asks), "with a failing policy": "-",
             "led like alone": _same(crowds[1]["chunks, asynchronous"], crowds[2]["chunks, asynchronous"])}
        )  # fmt: skip
        for row in rows:
            row["as it should be"] = row["led like alone"] and row["with a failing policy"] in (True, "-")
        if not preempted[0]:
            rows[-1]["as it should be"] = False
        return rows

    def _quiet(self, asks: Sequence[Ask], transfer: Any) -> dict[str, list[Answer]]:
        with self.serving(ROOMY, transfer) as server:
            client = Client(server)
            streamed = [client.stream(ask) for ask in asks]
            for ask in asks[:10]:
                client.stream(ask, stop_after=2)
            after = client.one_by_one(asks)
            several = [client.ask(ask, n=2, temperature=1.0) for ask in asks[:10]]
        lengths = [Answer(tokens=[len(answer.tokens)], cached_tokens=answer.cached_tokens) for answer in several]
        return {"streaming": streamed, "after aborts": after, "n=2, sampled (lengths)": lengths}

    def _crowd(self, asks: Sequence[Ask], transfer: Any) -> dict[str, list[Answer]]:
        with self.serving(CROWDED, transfer) as server:
            client = Client(server)
            longer = [Ask(ask.prompt, min(64, LONGEST - len(ask.prompt)), ask.session) for ask in asks]
            crowd = client.at_once(longer, 8)
            urgent = client.at_once(longer, 8, extra_body={"priority": -1})
            counted = int(server.metrics()["vllm:num_preemptions_total"])
        return {"chunks, asynchronous": crowd, "priorities": urgent, "preemptions": [Answer(cached_tokens=counted)]}


def _same(these: Sequence[Answer], those: Sequence[Answer]) -> bool:
    return [answer.tokens for answer in these] == [answer.tokens for answer in those]


def _hits(server: Server) -> int:
    return int(server.metrics()["vllm:prefix_cache_hits_total"])


def _cached(answers: Sequence[Answer]) -> int:
    return sum(answer.cached_tokens for answer in answers)


def _row(
    workload: str, policy: str, led: list[Answer], alone: list[Answer], counted: int, replayed: list[int] | None
) -> dict[str, Any]:
    live = [answer.cached_tokens for answer in led]
    equal = "-" if replayed is None else sum(a == b for a, b in zip(live, replayed, strict=True))
    return {
        "workload": workload,
        "policy": policy,
        "requests": len(led),
        "prompt tokens": sum(answer.prompt_tokens for answer in led),
        "hit tokens": sum(live),
        "/metrics": counted,
        "replay": "-" if replayed is None else sum(replayed),
        "requests with equal hits": equal,
        "tokens equal": _same(led, alone),
        "as it should be": _same(led, alone) and counted == sum(live) and equal in ("-", len(led)),
    }


def _table(rows: Rows) -> str:
    header = [key for key in rows[0] if key != "as it should be"]
    return table(header, [[_cell(row[key]) for key in header] for row in rows])


def _cell(value: Any) -> str:
    return (
        {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


if __name__ == "__main__":
    sys.exit(main())
