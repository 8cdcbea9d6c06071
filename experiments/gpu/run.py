"""What only a GPU can show, in one command of at most nine minutes: `make gpu`.

    python experiments/gpu/run.py [--wheels FOLDER] [--budget-s 540] [--only grid serve] [--out FOLDER] [--dry-run]

Nothing is assumed but Python, torch, triton and numpy: the project need not be installed, and nothing is fetched. What
will run, where its results go, what is missing and what is skipped for it is said first. Each run has a folder of its
own, named by its date. A step is a process with a time limit, so that a crash or a hang
costs that step alone. After every step `results.json` and `logs.tar.gz` are rewritten: whatever stops this script, what
was known by then is there. `--dry-run` takes tiny shapes on the CPU: it shows that the script works, and no number of
it means anything. `sanitizer` runs only when asked for: --only sanitizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent))
import surroundings
from headlines import headline

HERE, ROOT = Path(__file__).resolve().parent, surroundings.ROOT
_DATE = "%Y-%m-%dT%H-%M-%SZ"
_LAST_S = 5
"""Kept for the end; no step begins in them."""
Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run.

    Attributes:
        limit_s: at most, of the budget's 540 s; less where the budget is. What a part leaves, later ones have.
        modules: without which it is skipped, beside torch, triton and numpy.
        usual: run unless others are asked for.
    """

    steps: Callable[[Session], Iterator[tuple[str, list[str]]]]
    limit_s: float
    modules: tuple[str, ...] = ()
    usual: bool = True


@dataclass(slots=True)
class Session:
    """Time that is left, where things lie, and what was found so far."""

    out: Path
    budget_s: float
    dry: bool
    scratch: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    start_s: float = field(default_factory=time.monotonic)
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Until the last step must have ended."""
        return self.budget_s - _LAST_S - (time.monotonic() - self.start_s)

    def save(self) -> None:
        """Rewrite results.json and logs.tar.gz, each whole or not at all."""
        self.results["elapsed_s"] = round(time.monotonic() - self.start_s, 1)
        temporary = self.out / ".results.tmp"
        temporary.write_text(json.dumps(self.results, indent=1) + "\n")
        temporary.replace(self.out / "results.json")
        with tarfile.open(self.out / ".logs.tmp", "w:gz") as archive:
            for log in sorted(self.scratch.glob("*.log")):
                archive.add(log, arcname=log.name)
        (self.out / ".logs.tmp").replace(self.out / "logs.tar.gz")

    def record(self, part: str, step: Step) -> None:
        """Add one step's findings and save."""
        self.results.setdefault("parts", {}).setdefault(part, []).append(step)
        why = f" ({step['reason'][-200:]})" if "reason" in step else ""
        found = headline(part, step)
        took = f" in {step['seconds']:.0f} s" if "seconds" in step else ""
        self.say(f"{part}: {step['step']}: {step['status']}{took}{': ' if found else ''}{found}{why}")
        self.save()

    def say(self, text: str) -> None:
        """A line with the time since the start."""
        print(f"[{time.monotonic() - self.start_s:5.0f} s] {text}", flush=True)


def main() -> int:
    """Run all parts, or those asked for; 0 when no step failed, 2 when nothing can run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=540.0, help="seconds for everything (default 540)")
    parser.add_argument("--out", type=Path, help="default: results/DATE, or dry-run, beside this script")
    parser.add_argument("--wheels", type=Path, default=HERE / "wheels", help="folder that carry.py has filled")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="these parts alone")
    options = parser.parse_args()
    out = (
        options.out or HERE / ("dry-run" if options.dry_run else f"results/{time.strftime(_DATE, time.gmtime())}")
    ).absolute()
    chosen = [name for name in PARTS if (name in options.only if options.only else PARTS[name].usual)]
    with tempfile.TemporaryDirectory(prefix="gpu-run-") as folder:
        session = Session(out, options.budget_s, options.dry_run, Path(folder))
        if not prepare(session, options.wheels, chosen):
            return 2
        for name in chosen:
            for step in run_part(session, name):
                session.record(name, step)
        session.say(ending(session))
    steps = [step for found in session.results.get("parts", {}).values() for step in found]
    return 1 if any(step["status"] == "failed" for step in steps) else 0


def ending(session: Session) -> str:
    """How many steps ended how, where the results are, and what to do with them."""
    steps = [step for found in session.results.get("parts", {}).values() for step in found]
    counts = Counter(step["status"] for step in steps)
    results = session.out / "results.json"
    outcome = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no step"
    return (
        f"done: {outcome}; {results} and logs.tar.gz beside it; "
        f"against another: python experiments/gpu/compare.py OTHER/results.json {results}"
    )


def prepare(session: Session, wheels: Path, chosen: Sequence[str]) -> bool:
    """Make the site folder and say what will run and what is missing; False where nothing can: no file is left."""
    site = session.scratch / "site"
    carried = surroundings.make_site(site, wheels)
    session.environment = surroundings.environment(site, session.scratch)
    sys.path.insert(0, str(site))
    versions = surroundings.versions(site)
    session.results = {
        "dry_run": session.dry, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(),
        "versions": versions, "carried": carried, "skipped": skipped(),
    }  # fmt: skip
    absent = [name for name in surroundings.ASSUMED if versions[name] is None]
    if absent:
        print(f"{', '.join(absent)} not found: nothing can run", file=sys.stderr)
        return False
    if not session.dry and not has_cuda(session):
        print("no CUDA device: nothing to measure; --dry-run shows that the script works", file=sys.stderr)
        return False
    for line in announced(session, wheels, chosen):
        session.say(line)
    session.out.mkdir(parents=True, exist_ok=True)
    session.save()
    return True


def announced(session: Session, wheels: Path, chosen: Sequence[str]) -> Iterator[str]:
    """What is here, what will run and for how long, and what will not."""
    versions, skipped = session.results["versions"], session.results["skipped"]
    here = ", ".join(f"{name} {versions[name]}" for name in surroundings.ASSUMED)
    yield f"Python {platform.python_version()}, {here}; {len(session.results['carried'])} carried wheels in {wheels}"
    parts = [name for name in chosen if name not in skipped]
    where = "tiny shapes on the CPU, whose numbers mean nothing" if session.dry else f"at most {session.budget_s:.0f} s"
    yield f"runs {', '.join(parts) or 'nothing'}: {where}; results go to {session.out}"
    for name in chosen:
        if name in skipped:
            yield f"skips {name}: {skipped[name]}"
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        yield f"not installed, and needed by nothing that runs: {', '.join(missing)}"
    lacking = [] if session.dry else surroundings.lacking_for_launches()
    if lacking:
        yield f"this Triton builds its launchers and lacks {', '.join(lacking)}: its kernels will not start"


def has_cuda(session: Session) -> bool:
    """Asked in a process of its own: this one stays without torch."""
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program], env=session.environment).returncode == 0


def commit() -> str | None:
    """Of the checkout; None outside one."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def skipped() -> dict[str, str]:
    """Parts that cannot run for want of a module, with the reason."""
    found = {}
    for name, part in PARTS.items():
        absent = [module for module in part.modules if importlib.util.find_spec(module) is None]
        if absent:
            found[name] = f"needs {', '.join(absent)}; carry.py fetches the wheels where there is a network"
    return found


def run_part(session: Session, name: str) -> Iterator[Step]:
    """Each step of a part, run and read."""
    if name in session.results["skipped"]:
        yield {"step": name, "status": "skipped", "reason": session.results["skipped"][name]}
        return
    end = time.monotonic() + PARTS[name].limit_s * min(1.0, session.budget_s / 540)
    for step, command in PARTS[name].steps(session):
        done = run_process(session, f"{name}-{step}", command, min(end - time.monotonic(), session.left_s))
        junit = session.scratch / f"{name}.xml"
        yield judged(step, done, rows=json_lines(done["log"]), **(tests_of(junit) if junit.exists() else {}))


def run_process(session: Session, name: str, command: list[str], limit_s: float) -> dict[str, Any]:
    """Its exit status (None: stopped at the limit or never begun), seconds and output, which also goes to a log."""
    if limit_s < 5 and not session.dry:
        return {"rc": None, "seconds": 0.0, "log": "", "reason": "no time was left"}
    start = time.monotonic()
    log = session.scratch / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=session.environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
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


def judged(name: str, done: dict[str, Any], **facts: Any) -> Step:
    """A step's record: ok, failed, unavailable (exit status 4), or out of time with what it had found."""
    status = {0: "ok", 4: "unavailable", None: "out of time"}.get(done["rc"], "failed")
    step = {"step": name, "status": status, "seconds": done["seconds"], **facts}
    if status != "ok":
        step["reason"] = done["reason"] or " ".join(done["log"].split()[-60:])
    return step


def json_lines(log: str) -> list[dict[str, Any]]:
    """The objects among a log's lines; the last, cut off by a kill, is no object."""
    found = []
    for line in log.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def tests_of(path: Path) -> dict[str, Any]:
    """Counts and the names of what failed, from a JUnit file."""
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    counts = {
        key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    bad = [
        f"{case.get('classname')}::{case.get('name')}"
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {"counts": counts, "failed_tests": bad}


def _script(session: Session, name: str, *words: str) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py"), *words, *(["--dry-run"] if session.dry else [])]


def others(session: Session) -> list[str]:
    """Backends of other distributions that compare on a GPU and are installed beside this one."""
    return [name for name in ("flashinfer", "flash_attn") if importlib.util.find_spec(f"framework_{name}") is not None]


def machine(session: Session) -> Iterator[tuple[str, list[str]]]:
    """Versions, driver, clocks, ceilings."""
    yield "ceilings", _script(session, "machine")


def replay(session: Session) -> Iterator[tuple[str, list[str]]]:
    """Captured decode steps replayed with other lengths, tables and queries, against fp64: attention, then engine."""
    ours = "torch" if session.dry else "triton"
    yield "attention", _script(session, "graph_replay", ours)
    yield "engine", _script(session, "engine_replay", ours)


def precompile(session: Session) -> Iterator[tuple[str, list[str]]]:
    """What the parts after it launch, into their cache; and every shipped kernel of the chip compiles."""
    yield "sm_90", _script(session, "precompile", "--processes", "12")


def grid(session: Session) -> Iterator[tuple[str, list[str]]]:
    """Kernel times: Triton first, then whoever else is installed."""
    for name in ["torch"] if session.dry else ["triton", *others(session)]:
        yield name, _script(session, "grid", name)


def serve(session: Session) -> Iterator[tuple[str, list[str]]]:
    """Tokens per second after a warm-up pass, with graphs and without."""
    ours = "torch" if session.dry else "triton"
    yield ours, _script(session, "serve", ours)
    if not session.dry:
        yield f"{ours}-eager", _script(session, "serve", ours, "--eager")


def tiers(session: Session) -> Iterator[tuple[str, list[str]]]:
    """Copies between pool and host memory with their link models; decode steps with and without copies in flight."""
    yield "links", _script(session, "links")
    yield "overlap", _script(session, "overlap", "torch" if session.dry else "triton")


def kit(session: Session) -> Iterator[tuple[str, list[str]]]:
    """The GPU tests, 12 at a time; every one is skipped in a dry run."""
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        f"--junitxml={session.scratch / 'kit.xml'}",
    ]
    yield "tests", [sys.executable, "-m", "pytest", "tests/gpu", *options, "-n", "1" if session.dry else "12"]


def shared(session: Session) -> Iterator[tuple[str, list[str]]]:
    """Decode behind a shared prefix, read once and row by row."""
    yield "triton", _script(session, "shared_prefix")


def sanitizer(session: Session) -> Iterator[tuple[str, list[str]]]:
    """compute-sanitizer over one small batch of the Triton kernels: memory errors, then races."""
    found = next(iter(Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None)
    tool = shutil.which("compute-sanitizer") or str(found or "compute-sanitizer")
    program = [sys.executable, str(HERE / "graph_replay.py"), "triton", "--no-graph"]
    for check in ("memcheck", "racecheck"):
        yield check, [tool, "--tool", check, "--error-exitcode", "3", *program]


PARTS = {
    "machine": Part(machine, 30),
    "replay": Part(replay, 60),
    "precompile": Part(precompile, 90),
    "grid": Part(grid, 250),
    "serve": Part(serve, 60),
    "tiers": Part(tiers, 45),
    "kit": Part(kit, 300, ("pytest", "xdist", "hypothesis", "hydra", "omegaconf", "antlr4")),
    "shared": Part(shared, 60, usual=False),
    "sanitizer": Part(sanitizer, 500, usual=False),
}


if __name__ == "__main__":
    sys.exit(main())
