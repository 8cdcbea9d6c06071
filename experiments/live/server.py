"""A `vllm serve` of this environment on the loopback interface, and requests of drawn workloads sent to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.live.checkpoint import VOCABULARY
from experiments.shared import killing_after_us
from framework.cli.exit import interrupts
from framework.registry.components import build_component
from framework_kv_events.schema import BlockRemoved
from framework_kv_events.zeromq import Subscriber

START_S = 1800.0  # ten seconds on a machine that does nothing else
BLOCK, LONGEST, ROWS, STEP_TOKENS = 32, 1024, 8, 512
LIMITS = (
    f"cache.block_size={BLOCK}", f"engine.max_batch_tokens={STEP_TOKENS}", f"engine.max_batch_requests={ROWS}",
    f"engine.max_model_len={LONGEST}", "run.progress=false",
)  # fmt: skip
"""Settings of our engine that `arguments_of` gives vLLM."""
LIKE_VLLM = ("allocator={name: prefix, duplicates: keep, watermark: 0.0}",)
"""The choice that is not our default."""
MODEL = "small"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_prefix_cache
}


class StartFailed(Exception):
    """The server ended, or did not answer in time; carries the end of its log."""


@dataclass(frozen=True)
class Server:
    """One running server."""

    url: str
    log: Path

    def forget(self) -> None:
        """Empty the cache of prefixes; no request may be running."""
        asked = urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST")
        urllib.request.urlopen(asked, timeout=30).read()

    def metrics(self) -> dict[str, float]:
        """Counters of /metrics, summed over their labels."""
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=30).read().decode()
        counted: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                counted[name.partition("{")[0]] = counted.get(name.partition("{")[0], 0.0) + float(value)
        return counted


def policy_config(eviction: Any, clock: str = "seconds", **more: Any) -> dict[str, Any]:
    """The `--kv-transfer-config` under which `eviction` leads."""
    return connector_config("PolicyConnector", "vllm_connector", eviction=eviction, clock=clock, **more)


def trace_config(path: Path) -> dict[str, Any]:
    """The `--kv-transfer-config` that records a trace to `path`, and its steps beside it."""
    return connector_config("TraceConnector", "vllm_trace", path=str(path), steps=str(path.with_suffix(".steps")))


def order_arguments(scheduling: Any) -> tuple[str, ...]:
    """Arguments of `vllm serve` under which an order of ours says who of those that wait is next."""
    chosen = {"scheduling": scheduling, "scheduling_clock": "steps"}
    return ("--scheduler-cls", "framework_engines.vllm_scheduling.OrderedScheduler",
            "--additional-config", json.dumps(chosen))  # fmt: skip


def connector_config(name: str, module: str, **extra: Any) -> dict[str, Any]:
    """The `--kv-transfer-config` of one of our connectors."""
    place = {"kv_connector": name, "kv_connector_module_path": f"framework_engines.{module}", "kv_role": "kv_both"}
    return {**place, "kv_connector_extra_config": extra}


def both(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """Several connectors beside each other."""
    extra = {"connectors": list(configs)}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def counting_evictions(endpoint: str) -> Iterator[Callable[[], int]]:
    """How many blocks vLLM's KV events at `endpoint` have said to be removed until asked."""
    counted, last, stop = [0], [time.monotonic()], threading.Event()

    def read(subscriber: Subscriber) -> None:
        while not stop.is_set():
            for _, batch in subscriber.batches(0.1):
                last[0] = time.monotonic()
                counted[0] += sum(len(e.block_hashes) for e in batch.events if isinstance(e, BlockRemoved))

    def settled() -> int:
        asked = time.monotonic()
        while time.monotonic() - max(asked, last[0]) < 2.0:  # the last step's may still be on their way
            time.sleep(0.1)
        return counted[0]

    with Subscriber(endpoint) as subscriber:
        thread = threading.Thread(target=read, args=(subscriber,))
        thread.start()
        try:
            yield settled
        finally:
            stop.set()
            thread.join()


def arguments_of(num_blocks: int, step_tokens: int = STEP_TOKENS) -> tuple[str, ...]:
    """Arguments of `vllm serve`; `num_blocks` counts the null block."""
    return (
        "--enforce-eager", "--block-size", str(BLOCK), "--max-model-len", str(LONGEST), "--max-num-seqs", str(ROWS),
        "--num-gpu-blocks-override", str(num_blocks), "--max-num-batched-tokens", str(step_tokens),
    )  # fmt: skip


@contextmanager
def serving(
    model: Path, log: Path, arguments: Sequence[str], transfer: Mapping[str, Any] | None = None
) -> Iterator[Server]:
    """Start, wait until it answers, and stop with SIGINT at the end, or when this process ends, by SIGKILL too.

    Raises:
        StartFailed: as it says.
    """
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--host", "127.0.0.1",
        "--port", str(port),
        "--served-model-name", MODEL, "--dtype", "float32", "--enable-prompt-tokens-details", *arguments,
    ]  # fmt: skip
    if transfer is not None:
        command += ["--disable-hybrid-kv-cache-manager", "--kv-transfer-config", json.dumps(transfer)]
    server = Server(f"http://127.0.0.1:{port}", log)
    with interrupts():
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )  # fmt: skip
        try:
            with killing_after_us("-KILL", f"-{process.pid}"):
                _wait(server, process)
                yield server
        finally:
            _stop(process)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise StartFailed(f"the server ended with status {process.returncode}:\n{server.log.read_text()[-4000:]}")
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise StartFailed(f"no answer within {START_S:.0f} s:\n{server.log.read_text()[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers, too
    process.wait()


@dataclass(frozen=True)
class Ask:
    """One request: prompt tokens, how many to answer, and when it comes."""

    prompt: tuple[int, ...]
    max_tokens: int
    session: str = ""
    arrival_s: float = 0.0


@dataclass
class Answer:
    """What a server said: token ids, and the prompt tokens that it found in its cache.

    Attributes:
        lengths: tokens of each sample, in their order.
        first_s, end_s: `time.perf_counter` at the first token and at the end, of a streamed answer.
    """

    tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    lengths: list[int] = field(default_factory=list)
    first_s: float = 0.0
    end_s: float = 0.0


def drawn(name: str, longest: int, seed: int = 0, **options: Any) -> list[Ask]:
    """The requests of a workload that are, with their answer, no longer than `longest` tokens.

    In order of arrival; the histories hold drawn answers, so that a stream does not depend on what a server says.
    """
    workload = build_component("workload", {"name": name, "vocab_size": VOCABULARY, **options}, {"seed": seed})
    asks = [
        Ask(tuple(request.prompt.tolist()), request.output_tokens, request.session or "", request.arrival_s)
        for request in workload.requests()
    ]
    return [ask for ask in asks if len(ask.prompt) + ask.max_tokens <= longest]


class Client:
    """The `openai` client of one server. Greedy unless asked otherwise, `max_tokens` tokens whatever they are."""

    def __init__(self, server: Server) -> None:
        import openai

        self.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)

    def ask(self, ask: Ask, **extra: Any) -> Answer:
        """One request, answered whole."""
        body = {"ignore_eos": True, "return_token_ids": True, **extra.pop("extra_body", {})}
        completion = self.api.completions.create(
            model=MODEL,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            extra_body=body,
            **{"temperature": 0.0, **extra},
        )
        usage = completion.usage
        details = usage.prompt_tokens_details
        samples = [choice.token_ids for choice in sorted(completion.choices, key=lambda choice: choice.index)]
        tokens = [token for sample in samples for token in sample]
        cached = (details.cached_tokens or 0) if details else 0
        return Answer(tokens, cached, usage.prompt_tokens, [len(sample) for sample in samples])

    def stream(self, ask: Ask, stop_after: int | None = None) -> Answer:
        """One request, streamed; the connection is closed after `stop_after` tokens: an abort."""
        answer = Answer()
        with self.api.completions.create(
            model=MODEL,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "return_token_ids": True},
        ) as chunks:
            for chunk in chunks:
                for choice in chunk.choices:
                    answer.tokens += choice.token_ids or []
                    answer.end_s = time.perf_counter()
                    answer.first_s = answer.first_s or answer.end_s
                if chunk.usage and chunk.usage.prompt_tokens_details:
                    answer.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens or 0
                    answer.prompt_tokens = chunk.usage.prompt_tokens
                if stop_after is not None and len(answer.tokens) >= stop_after:
                    break
        return answer

    def one_by_one(self, asks: Iterable[Ask]) -> list[Answer]:
        """Each request when the one before it has been answered."""
        return [self.ask(ask) for ask in asks]

    def on_time(self, asks: Sequence[Ask], arrivals_s: Sequence[float]) -> tuple[float, list[Answer]]:
        """Each request streamed from its arrival on, whatever became of the others; and when the clock began."""
        with ThreadPoolExecutor(len(asks)) as pool:
            start = time.perf_counter()

            def ask_at(ask: Ask, arrival_s: float) -> Answer:
                time.sleep(max(0.0, start + arrival_s - time.perf_counter()))
                return self.stream(ask)

            return start, list(pool.map(ask_at, asks, arrivals_s))

    def at_once(self, asks: Sequence[Ask], clients: int, **extra: Any) -> list[Answer]:
        """`clients` requests at a time, in order of asking."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda ask: self.ask(ask, **extra), asks))
