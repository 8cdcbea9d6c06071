"""Named benchmark baselines, one a machine, and a gate that noise does not trip.

python tests/bench/baseline.py save NAME [PYTEST_ARGUMENT ...]
python tests/bench/baseline.py compare NAME [--limit 10] [--tries 3] [PYTEST_ARGUMENT ...]

A baseline is pytest-benchmark's own JSON in `.benchmarks/NAME.json`, kept out of git: times of another machine say
nothing. `compare` gates on the least time of each benchmark, and fails only for those that were more than `--limit`
percent slower in every one of `--tries` runs: on noisy cores unchanged code is 10 % slower in one run now and then, in
three hardly ever. Medians are shown beside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

FOLDER = Path(".benchmarks")
DEFAULT = ["tests/bench/test_bench_hot_paths.py", "tests/bench/test_bench_allocator.py"]
Stats = dict[str, dict[str, float]]


def run(arguments: list[str], to: Path) -> Stats:
    """Run the benchmarks; (min, median) seconds by test. Exits as pytest does when one fails."""
    paths = [] if any(Path(argument.split("::")[0]).exists() for argument in arguments) else DEFAULT
    command = [sys.executable, "-m", "pytest", *paths, "--benchmark-only", "-q", f"--benchmark-json={to}", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"the benchmarks failed ({done.returncode}): {' '.join(command)}")
    return read(to)


def read(path: Path) -> Stats:
    """(min, median) seconds by test, of pytest-benchmark's JSON."""
    return {row["fullname"]: row["stats"] for row in json.loads(path.read_text())["benchmarks"]}


def compare(name: str, limit: float, tries: int, arguments: list[str]) -> int:
    """0 unless a benchmark was slower than the baseline by more than `limit` percent in each of `tries` runs."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        sys.exit(f"no baseline {path}; make one on this machine: python {sys.argv[0]} save {name}")
    base, slow, best = read(path), None, {}
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(tries):
            found = run(arguments, Path(folder) / f"{attempt}.json")
            for test, stats in found.items():
                if test not in best or stats["min"] < best[test]["min"]:
                    best[test] = stats
            late = {t for t, s in found.items() if t in base and s["min"] > base[t]["min"] * (1 + limit / 100)}
            slow = late if slow is None else slow & late
            if not slow:
                break
    show(base, best, slow or set())
    return 1 if slow else 0


def show(base: Stats, found: Stats, slow: set[str]) -> None:
    """A table of ratios, new ones marked."""
    table = Table("benchmark", "min, us", "baseline, us", "min ratio", "median ratio", "")
    for test, stats in sorted(found.items()):
        old = base.get(test)
        if old is None:
            table.add_row(escape(test.split("::")[-1]), f"{stats['min'] * 1e6:,.1f}", "-", "-", "-", "new")
            continue
        ratios = (f"{stats[key] / old[key]:.2f}" for key in ("min", "median"))
        verdict = "SLOWER" if test in slow else ""
        times = (f"{one['min'] * 1e6:,.1f}" for one in (stats, old))
        table.add_row(escape(test.split("::")[-1]), *times, *ratios, verdict)
    Console().print(table)
    for test in sorted(set(base) - set(found)):
        Console().print(f"{escape(test)} is in the baseline and was not run")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("name", help="of the baseline: one a machine")
    parser.add_argument("--limit", type=float, default=10.0, help="percent by which the least time may grow")
    parser.add_argument("--tries", type=int, default=3, help="runs that must all be slower")
    options, arguments = parser.parse_known_args()
    if options.action == "save":
        FOLDER.mkdir(exist_ok=True)
        path = FOLDER / f"{options.name}.json"
        print(f"{path}: {len(run(arguments, path))} benchmarks")
        return
    sys.exit(compare(options.name, options.limit, options.tries, arguments))


if __name__ == "__main__":
    main()
