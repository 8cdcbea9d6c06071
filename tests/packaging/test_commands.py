"""Every command that a page, a preset's comment or `--help` shows runs, in the order of its page.

A fence under `<!-- run -->` is run whole by `test_docs.py`; here is all the rest. A new command is found by itself: it
runs, or a line of `NOT_HERE` says why it cannot.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.config.hydra.help import help_text
from framework.results.reading import read_result
from framework.run import call

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "plugins").glob("*/README.md")),
         *sorted((ROOT / "experiments").glob("*/README.md"))]  # fmt: skip
PRESETS = sorted([*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "plugins").glob("*/conf/*/*.yaml")])
_NAMED = r"python -m framework(?:\.run| [a-z_]+)|kvcache-framework"
_OURS = re.compile(rf"(?:{_NAMED})(?: |$)")
_FENCE = re.compile(r"(?P<mark><!-- [^\n]*-->\n)?```bash\n(?P<text>.*?)```", re.DOTALL)

NOT_HERE = {
    r"(?:^|[ =|])(?:OVERRIDE|NAME(?:_OR\S*)?|MODEL_OR_CONFIG|DIR|RUN_OR_TRACE|EVENTS|STEPS|FOLDER)\b|\.\.\."
    r"|\[runs/other\]| \w+\|\w+\|":
        "a form, not a command",
    r"PATH_OR_HUB_ID|model=PATH\b|Qwen/": "needs a checkpoint of the reader's, or the hub",
    r"backend=triton": "is minutes in Triton's interpreter without a GPU; its own tests run it",
    r"fewest_hits|check fewest|=fewest\b"
    r"|my-policy|shallow|capped_hits|int8_reader|tracker=lines|check lines|workload=surveys|FILE\.py:"
    r"|\[greed\]|check greed|mode=demand|hits":
        "needs the package or class that the page has the reader write",
    r"check (?:packed|keyed|plain_softmax|shared_questions|gateway_log|step_lines|best_\w+|fitting|near_\w+|zipped"
    r"|large_values)\b":
        "needs plugins/framework-example installed; test_example_package.py checks each of it",
    r"record_events|record request_logs|vllm\.jsonl|/events\.jsonl": "needs a running engine, or what one left",
    r"executor=roofline|num_blocks: 20000": "is minutes: thousands of blocks in tiers; tests/cli has smaller ones",
    r"--format azure|trace fetch": "needs a file of that format, or the network",
    r"tracker=wandb": "may reach W&B's server; tests/unit/tracking runs it offline",
    r"workload\.limit=": "belongs to a page of measurements, whose traces are not in the repository",
}  # fmt: skip
"""What in a command keeps it from running here -> why."""

QUICK = ("plugins/framework_cache_only/conf/experiment/cache_only.yaml", "conf/config.yaml")
"""Sources whose commands take seconds; the rest is slow."""


def _commands(text: str) -> Iterator[str]:
    """What a page shows in fences of bash, and within its sentences where a command has arguments."""
    fences = [*_FENCE.finditer(text)]
    for fence in fences:
        if fence["mark"] is None or "run -->" not in fence["mark"]:
            for line in re.sub(r"\\\n\s*", "", fence["text"]).splitlines():
                if _OURS.match(line):
                    yield re.sub(r"\s+#.*", "", line)
    for span in re.findall(rf"`((?:{_NAMED}) [^`]+)`", _FENCE.sub("", text)):
        yield " ".join(span.split())


def _found() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        yield page.relative_to(ROOT).as_posix(), [*_commands(page.read_text())]
    for preset in PRESETS:
        lines = [line.removeprefix("# ") for line in preset.read_text().splitlines() if line.startswith("# ")]
        spans = re.findall(rf"`((?:{_NAMED}) [^`]+)`", "\n".join(lines))
        yield preset.relative_to(ROOT).as_posix(), [*(line for line in lines if _OURS.match(line)), *spans]
    shown = [line.strip() for line in help_text().splitlines()]
    yield "--help", [re.sub(r"\s{2,}.*", "", line) for line in shown if _OURS.match(line)]


FOUND = {source: list(dict.fromkeys(commands)) for source, commands in _found() if commands}


def _why_not(command: str) -> str:
    return next((why for pattern, why in NOT_HERE.items() if re.search(pattern, command)), "")


def test_what_is_not_run_is_shown_somewhere_and_every_preset_has_a_command() -> None:
    everything = [command for commands in FOUND.values() for command in commands]
    stale = [pattern for pattern in NOT_HERE if not any(re.search(pattern, command) for command in everything)]
    assert stale == []
    assert len(everything) > 60, everything
    for preset in PRESETS:
        assert preset.relative_to(ROOT).as_posix() in FOUND, f"{preset}: its first comment is the command that runs it"
    run = [command for command in everything if not _why_not(command)]
    assert len(run) > 25, run


@pytest.mark.timeout(3600)  # a sweep over all policies is minutes, and more on a busy machine
@pytest.mark.parametrize(
    "source",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in FOUND],
)
def test_the_commands_of_a_source_run(source: str, tmp_path: Path) -> None:
    commands = [command for command in FOUND[source] if not _why_not(command)]
    if not commands:
        pytest.skip("; ".join(dict.fromkeys(map(_why_not, FOUND[source]))))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    python = shlex.quote(sys.executable)

    def run(command: str) -> None:
        command = re.sub(r"^python ", f"{python} ", re.sub(r"^kvcache-framework", "python -m framework.run", command))
        command = re.sub(r"(?<=[ =])(?:TRACE|FILE)\b", "trace.jsonl", command)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"

    run("python -m framework trace synth agents --block-tokens 16 --out trace.jsonl && cp trace.jsonl agents.jsonl")
    for command in commands:
        run(command)


def test_the_small_pool_evicts_and_preempts(tmp_path: Path) -> None:
    """Its requests were longer than its pool: all 32 were rejected."""
    assert call(["+experiment=small_pool", f"run.dir={tmp_path / 'run'}", "run.progress=false"]) == 0
    found = read_result(tmp_path / "run")
    counts = {key: found[key] for key in ("num_rejected", "num_preemptions", "num_evictions")}
    assert counts["num_rejected"] == 0, counts
    assert min(counts["num_preemptions"], counts["num_evictions"]) > 0, counts
