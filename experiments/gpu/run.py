"""What only a GPU can show, in one command of about ten minutes: `make gpu`.

Sections run one after another, each step in a process of its own, so that a crash or a hang costs that step alone:
tests, graph replay, kernel grid, serve, sanitizer. `results.json` is rewritten after every step: whatever stops this
script, what was known by then is there. A step that cannot run, or for which no time is left, is recorded with the
reason. `--dry-run` takes tiny shapes on the CPU: it shows that the script works, and no number of it means anything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_LAST = 15
"""Seconds kept for the end; no step begins in them."""
_SHARES = {"tests": 0.2, "replay": 0.2, "kernel": 0.3, "serve": 0.25, "sanitizer": 0.05}
"""Of the budget, at most; what a section leaves goes to those after it."""


@dataclass(slots=True)
class Session:
    """Time that is left, and what was found so far."""

    out: Path
    budget_s: float
    dry: bool
    start_s: float = field(default_factory=time.monotonic)
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Until the last step must have ended."""
        return self.budget_s - _LAST - (time.monotonic() - self.start_s)

    def save(self) -> None:
        """Rewrite results.json, whole or not at all."""
        self.results["elapsed_s"] = round(time.monotonic() - self.start_s, 1)
        temporary = self.out / ".results.tmp"
        temporary.write_text(json.dumps(self.results, indent=1) + "\n")
        temporary.replace(self.out / "results.json")

    def record(self, section: str, step: dict[str, Any]) -> None:
        """Add one step's findings and save."""
        self.results.setdefault("sections", {}).setdefault(section, []).append(step)
        print(f"[{time.monotonic() - self.start_s:5.0f} s] {section}: {step['step']}: {step['status']}", flush=True)
        self.save()


def main() -> int:
    """Run all sections, or those asked for; 0 when no step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=600.0, help="seconds for everything (default 600)")
    parser.add_argument("--out", type=Path, help="default: results, or dry-run, beside this script")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), help="these sections alone")
    options = parser.parse_args()
    out = (options.out or HERE / ("dry-run" if options.dry_run else "results")).absolute()
    out.mkdir(parents=True, exist_ok=True)
    session = Session(out, options.budget_s, options.dry_run)
    session.results = {"dry_run": options.dry_run, "provenance": provenance(options.dry_run)}
    session.save()
    if not options.dry_run and not session.results["provenance"]["cuda"]:
        print("no CUDA device: nothing to measure; --dry-run shows that the script works", file=sys.stderr)
        return 2
    sections = [name for name in SECTIONS if not options.only or name in options.only]
    for at, name in enumerate(sections):
        rest = sum(_SHARES[later] for later in sections[at:])
        end = time.monotonic() + max(0.0, session.left_s) * _SHARES[name] / rest
        for step in SECTIONS[name](session, lambda end=end: min(end - time.monotonic(), session.left_s)):
            session.record(name, step)
    steps = [step for found in session.results.get("sections", {}).values() for step in found]
    return 1 if any(step["status"] == "failed" for step in steps) else 0


def provenance(dry: bool) -> dict[str, Any]:
    """Code, versions and device, as every run's provenance.json has them."""
    import torch

    from framework.tracking import collect_provenance

    cuda = torch.cuda.is_available()
    found = collect_provenance(device="cuda" if cuda and not dry else "cpu")
    return {**found, "cuda": cuda}


Left = Callable[[], float]
Step = dict[str, Any]


def tests(session: Session, left: Left) -> Iterator[Step]:
    """The GPU tests; every one is skipped in a dry run."""
    command = ["-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider", "-o", "timeout=0"]
    done = _python(session, "tests", command, left())
    summary = [line for line in done["log"].splitlines() if re.search(r"\d+ (passed|failed|skipped|error)", line)]
    yield _step("pytest tests/gpu", done, summary=summary[-1].strip("= ") if summary else None)


def replay(session: Session, left: Left) -> Iterator[Step]:
    """Captured decode steps replayed with other lengths, tables and queries, against fp64: attention, then engine."""
    for program in ("graph_replay", "engine_replay"):
        for backend in backends():
            command = [str(HERE / f"{program}.py"), backend, *(["--dry-run"] if session.dry else [])]
            name = backend if program == "graph_replay" else f"engine-{backend}"
            if program == "engine_replay" and not (graph_safe(backend) or (session.dry and backend == "torch")):
                yield {"step": name, "status": "skipped", "reason": f"{backend} does not declare graph_safe"}
                continue
            done = _python(session, f"replay-{name}", command, left())
            found = [json.loads(line) for line in done["log"].splitlines() if line.startswith("{")]
            yield _step(name, done, cases=found)


def kernel(session: Session, left: Left) -> Iterator[Step]:
    """The kernel grid for each backend, page 16 and page 256."""
    grid = ["kernel.budget_s=0.15"]
    if session.dry:
        grid = [*_DRY_GRID, "device=cpu"]
    names = backends()
    for at, backend in enumerate(names):
        folder = session.out / f"kernel-{backend}"
        sizes = "kernel.block_size=[16]" if session.dry else "kernel.block_size=[16,256]"
        words = ["mode=kernel", f"backend={backend}", sizes, *grid, f"run.dir={folder}"]
        shutil.rmtree(folder, ignore_errors=True)
        done = _python(session, f"kernel-{backend}", ["-m", "framework.run", *words], left() / (len(names) - at))
        rows = _json_lines(folder / "kernel.jsonl")
        unavailable = bool(rows) and all(row["status"] == "unavailable" for row in rows)
        yield _step(backend, done, unavailable=unavailable, rows=rows)


def serve(session: Session, left: Left) -> Iterator[Step]:
    """End to end: Qwen3-0.6B's shape, random weights, bf16; each backend, with graphs and without, and allocator."""
    runs = serve_runs(session.dry)
    for at, (backend, allocator, variant) in enumerate(runs):
        name = "-".join(("serve", backend, allocator, variant)).removesuffix("-")
        folder = session.out / name
        size = 256 if backend in ("flash_attn", "varlen") else 16
        words = [f"backend={backend}", f"allocator={allocator}", f"cache.block_size={size}", f"run.dir={folder}"]
        words += [*(_DRY_SERVE if session.dry else _SERVE), *_VARIANTS[variant]]
        shutil.rmtree(folder, ignore_errors=True)
        done = _python(session, name, ["-m", "framework.run", "mode=serve", *words], left() / min(4, len(runs) - at))
        result = _json(folder / "result.json")
        kept = {key: result.get(key) for key in _SERVE_KEYS if key in result}
        floor = {} if session.dry else {"floor": serve_floor()}
        unavailable = "BackendUnavailable" in done["log"]
        yield _step(name.removeprefix("serve-"), done, unavailable=unavailable, **kept, **floor)


_VARIANTS = {
    "": [],  # engine.cuda_graphs=auto: where the backend allows it
    "eager": ["engine.cuda_graphs=false"],
    "compiled": ["engine.compile=true"],
    "compiled-eager": ["engine.compile=true", "engine.cuda_graphs=false"],
}


def serve_runs(dry: bool) -> list[tuple[str, str, str]]:
    """(backend, allocator, variant): every backend first, then ours in all variants, then it with every allocator."""
    usual, ours = "prefix_cow", "torch" if dry else "triton"
    names = [name for name in backends() if not (dry and name == "triton")]
    names.sort(key=lambda name: name != ours)
    runs = [(ours, usual, ""), (ours, usual, "eager")]
    runs += [(name, usual, "") for name in names if name != ours]
    if dry:
        return runs[:3]
    runs += [(ours, usual, "compiled"), (ours, usual, "compiled-eager")]
    runs += [(name, usual, "eager") for name in names if name != ours and graph_safe(name)]
    runs += [(ours, allocator, "") for allocator in allocators() if allocator != usual]
    return runs + [(name, other, "") for name in names if name != ours for other in allocators() if other != usual]


def graph_safe(backend: str) -> bool:
    """Whether it says so."""
    from framework import registry

    return bool(registry.build("backend", backend, {}, {}).capabilities.graph_safe)


def sanitizer(session: Session, left: Left) -> Iterator[Step]:
    """compute-sanitizer over one small batch of the Triton kernels: memory errors, then races."""
    tool = shutil.which("compute-sanitizer") or next(iter(Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None)
    if tool is None:
        yield {"step": "compute-sanitizer", "status": "skipped", "reason": "compute-sanitizer was not found"}
        return
    for check in ("memcheck", "racecheck"):
        program = [sys.executable, str(HERE / "graph_replay.py"), "triton", "--no-graph"]
        done = _run(
            session, f"sanitizer-{check}", [str(tool), "--tool", check, "--error-exitcode", "3", *program], left() / 2
        )
        yield _step(check, done)


SECTIONS: dict[str, Callable[[Session, Left], Iterator[Step]]] = {
    "tests": tests,
    "replay": replay,
    "kernel": kernel,
    "serve": serve,
    "sanitizer": sanitizer,
}
_DRY_GRID = [
    "kernel.batch=[2]",
    "kernel.context=[64]",
    "kernel.prefill=[32]",
    "kernel.heads=[4/2/64]",
    "kernel.budget_s=0.01",
]
_SERVE = [
    "model=random",
    "model.shape=qwen3-0.6b",
    "model.dtype=bfloat16",
    "workload=no_sharing",
    "workload.num_requests=256",
    "workload.min_tokens=128",
    "workload.max_tokens=1024",
    "workload.new_tokens=128",
    "engine.max_batch_requests=256",
    "engine.max_batch_tokens=16384",
    "cache.num_blocks=null",
    "cache.memory_fraction=0.6",
    "run.check_requests=0",
    "run.progress=false",
]
_DRY_SERVE = [
    "device=cpu",
    "workload=no_sharing",
    "workload.num_requests=2",
    "workload.new_tokens=4",
    "run.progress=false",
]
_SERVE_KEYS = (
    "backend", "allocator", "num_finished", "num_failed", "wall_s", "output_tokens_per_s", "total_tokens_per_s",
    "tpot_s_p50", "ttft_s_p50", "cuda_graphs", "cuda_graphs_off", "graph_batch_sizes", "graph_steps", "eager_steps",
    "graph_padded_rows", "graph_capture_s", "engine_overhead", "forward_s", "schedule_s", "sample_s",
    "num_blocks", "block_size",
)  # fmt: skip


def backends() -> list[str]:
    """Installed ones; `gather`, the slow yardstick, last."""
    return sorted(_names("backend"), key=lambda name: (name == "gather", name != "triton", name))


def allocators() -> list[str]:
    """Installed ones."""
    return sorted(_names("allocator"))


def _names(kind: str) -> list[str]:
    from framework import registry

    return list(registry.names(kind))


def serve_floor() -> dict[str, Any]:
    """Modelled: output tokens/s of 256 rows of 700 tokens if a step only read weights and KV once, on an H200."""
    from framework.replay.roofline import DEVICES, Roofline

    model = Roofline(device="h200", shape="qwen3-0.6b")
    moved = 2 * model.shape.num_parameters + 256 * 700 * model.kv_bytes_per_token
    rate = 256 / (moved / DEVICES["h200"].bytes_per_s)
    return {"modelled_output_tokens_per_s": rate, "bytes_per_step": moved, "device": "h200", "kind": "modelled"}


def _python(session: Session, name: str, command: list[str], limit_s: float) -> dict[str, Any]:
    return _run(session, name, [sys.executable, *command], limit_s)


def _run(session: Session, name: str, command: list[str], limit_s: float) -> dict[str, Any]:
    """Its exit status (None: stopped at the limit or never begun), seconds and output, which also goes to a log."""
    if limit_s < 5 and not session.dry:
        return {"rc": None, "seconds": 0.0, "log": "", "reason": "no time was left"}
    start = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "WANDB_MODE": "offline"}
    log = session.out / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        reason = ""
        try:
            rc: int | None = process.wait(timeout=max(limit_s, 5.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers it has started
            process.wait()
            rc, reason = None, f"stopped after {limit_s:.0f} s"
    seconds = round(time.monotonic() - start, 2)
    return {"rc": rc, "seconds": seconds, "log": log.read_text(errors="replace"), "reason": reason}


def _step(name: str, done: dict[str, Any], *, unavailable: bool = False, **facts: Any) -> Step:
    """A step's record: ok, failed, unavailable, or out of time with what it had found."""
    status = "ok" if done["rc"] == 0 else "unavailable" if unavailable or done["rc"] == 4 else "failed"
    if done["rc"] is None:
        status = "out of time"
    step = {"step": name, "status": status, "seconds": done["seconds"], **facts}
    if status != "ok":
        step["reason"] = done["reason"] or " ".join(done["log"].split()[-60:])
    return step


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    whole = [line for line in path.read_text().split("\n")[:-1] if line]  # a killed run may leave half a line
    return [json.loads(line) for line in whole]


if __name__ == "__main__":
    sys.exit(main())
