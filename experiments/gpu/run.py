"""What only a GPU can show, in one command of at most nine minutes: `make gpu`.

    python experiments/gpu/run.py [--wheels FOLDER] [--budget-s 540] [--only grid serve] [--out FOLDER] [--dry-run]

Nothing is assumed but Python, torch, triton, numpy and pydantic: the project need not be installed, and nothing is
fetched. Each
part is a process with a time limit, so that a crash or a hang costs that part alone. After every part `results.json` is
rewritten, and each part's output is kept beside it: whatever stops this script, what was known by then is there.
`--dry-run` takes tiny shapes on the CPU: it shows that the script works, and no number of it means anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ASSUMED = ("torch", "triton", "numpy", "pydantic")
_DATE = "%Y-%m-%dT%H-%M-%SZ"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run.

    Attributes:
        limit_s: at most, and no more than is left of the budget. What a part leaves, later ones have.
        modules: without which it is skipped, beside those that are assumed.
    """

    words: tuple[str, ...]
    limit_s: float
    modules: tuple[str, ...] = ()


def parts(*, dry: bool) -> dict[str, Part]:
    """In the order in which they run."""
    ours, small = ("torch", ("--dry-run",)) if dry else ("triton", ())
    script = {name: str(HERE / f"{name}.py") for name in ("grid", "serve", "links")}
    return {
        "grid": Part((script["grid"], ours, *small), 300),
        "grid-flashinfer": Part((script["grid"], "flashinfer", *small), 60, ("framework_flashinfer",)),
        "grid-flash_attn": Part((script["grid"], "flash_attn", *small), 60, ("framework_flash_attn",)),
        "serve": Part((script["serve"], ours, *small), 60),
        "serve-eager": Part((script["serve"], ours, "--eager", *small), 30),
        "links": Part((script["links"], *small), 60),
        "kit": Part(
            ("-m", "pytest", "tests/gpu", "-v", "--tb=short", "-n", "1" if dry else "12",
             "-p", "no:cacheprovider",
             "-o", "addopts=--import-mode=importlib"),
            300, ("pytest", "xdist", "hypothesis", "hydra", "omegaconf", "antlr4"),
        ),
    }  # fmt: skip


def main() -> int:
    """Run all parts, or those asked for; 0 when no part failed, 2 when nothing can run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=540.0, help="seconds for everything (default 540)")
    parser.add_argument("--out", type=Path, help="default: results/DATE, or dry-run, beside this script")
    parser.add_argument("--wheels", type=Path, default=HERE / "wheels", help="folder of wheels to be unpacked")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--only", nargs="+", choices=list(parts(dry=False)), help="these parts alone")
    options = parser.parse_args()
    start, dry = time.monotonic(), options.dry_run
    out = options.out or HERE / ("dry-run" if dry else f"results/{time.strftime(_DATE, time.gmtime())}")
    with tempfile.TemporaryDirectory(prefix="gpu-run-") as folder:
        make_site(Path(folder), options.wheels)
        environment = environment_of(Path(folder))
        sys.path.insert(0, folder)  # what is looked for below may be one of the wheels
        if absent := [name for name in ASSUMED if importlib.util.find_spec(name) is None]:
            print(f"{', '.join(absent)} not found: nothing can run", file=sys.stderr)
            return 2
        if not dry and not has_cuda(environment):
            print("no CUDA device found by torch; --dry-run shows that the script works", file=sys.stderr)
            return 2
        out.mkdir(parents=True, exist_ok=True)
        results: dict[str, Any] = {"dry_run": dry, "date": time.strftime(_DATE, time.gmtime()), "commit": commit()}
        results["parts"] = {}
        print(f"results go to {out.absolute()}", flush=True)
        for name, part in parts(dry=dry).items():
            if options.only and name not in options.only:
                continue
            left_s = options.budget_s - (time.monotonic() - start)
            limit_s = min(part.limit_s, left_s - 5)
            found = results["parts"][name] = run(name, part, out / f"{name}.log", environment, limit_s)
            text = json.dumps(results, indent=1) + "\n"
            (out / "results.json").write_text(text)
            took, rows = f"{found.get('seconds', 0):.0f} s", f"{len(found.get('rows', []))} rows"
            why = f": {found['reason'][-200:]}" if "reason" in found else ""
            print(f"{name}: {found['status']}, {took}, {rows}{why}", flush=True)
    counts = Counter(found["status"] for found in results["parts"].values())
    print(f"done: {', '.join(f'{count} {status}' for status, count in counts.items())}; {out.absolute()}/results.json")
    return 1 if counts["failed"] else 0


def run(name: str, part: Part, log: Path, environment: dict[str, str], limit_s: float) -> dict[str, Any]:
    """A part's record: ok, failed, unavailable (exit status 4), skipped, or out of time with what it had found."""
    if absent := [module for module in part.modules if importlib.util.find_spec(module) is None]:
        return {"status": "skipped", "reason": f"needs {', '.join(absent)}"}
    if limit_s < 5:
        return {"status": "out of time", "reason": "no time was left"}
    start, rc, reason = time.monotonic(), None, f"stopped after {limit_s:.0f} s"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *part.words], cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            rc = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers it has started
            process.wait()
    output = log.read_text(errors="replace")
    status = {0: "ok", 4: "unavailable", None: "out of time"}.get(rc, "failed")
    found = {"status": status, "seconds": round(time.monotonic() - start, 2), "rows": json_lines(output)}
    if rc:
        reason = " ".join(output.split()[-60:])
    return found if rc == 0 else {**found, "reason": reason}


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


def make_site(folder: Path, wheels: Path) -> None:
    """Fill `folder` in place of an installation: this project's entry points, and the wheels unpacked."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = facts["name"].replace("-", "_"), facts.get("version") or "0"
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {version}\n")
    lines = []
    for group, points in facts["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    info.joinpath("entry_points.txt").write_text("\n".join(lines))
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def environment_of(site: Path) -> dict[str, str]:
    """Environment of every part's process: the site folder first, Triton's cache in it, and no network."""
    paths = [str(site), str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(site / "triton-cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(site / "inductor-cache"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }


def has_cuda(environment: dict[str, str]) -> bool:
    """Asked in a process of its own: this one stays without torch."""
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


def commit() -> str | None:
    """The checkout's commit; None outside one."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
