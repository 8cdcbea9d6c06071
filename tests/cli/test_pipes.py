"""A reader that has read enough, or a standard output that is closed, is no failure of any command; a full one is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "framework.run": ("--help",),
    "framework.plugins": ("--kind", "hash", "--json"),
    "framework.report": ("lost",),  # printed by rich
}


@pytest.mark.parametrize("module", COMMANDS)
def test_a_closed_pipe_ends_a_command_quietly(module: str, tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "failure.json").write_text('{"status": "failed", "reason": "lost", "overrides": []}')
    words = [sys.executable, "-m", module, *COMMANDS[module]]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.close()
        assert run.stderr is not None
        err = run.stderr.read()
    assert (err, run.returncode) == ("", 0), (err, run.returncode)


RUN = "-m framework.run mode=replay executor=cache_only workload=conversations workload.num_sessions=2"
SWEEP = f"{RUN} -m seed=1,2"


@pytest.mark.parametrize(
    ("words", "where", "status", "said"),
    [(RUN, "&-", 0, ""),
     (RUN, "/dev/full", 1, "standard output cannot be written: No space left on device; the results are in"),
     ("-m framework.plugins --kind hash", "&-", 0, ""),
     ("-m framework.plugins --kind hash", "/dev/full", 1, "standard output cannot be written: No space left"),
     (f"{SWEEP} run.progress=false", "&-", 0, ""),
     (f"{SWEEP} run.progress=false", "/dev/full", 1, "standard output cannot be written: No space left")],
)  # fmt: skip
def test_a_closed_output_is_none_and_a_full_one_a_failure(
    words: str, where: str, status: int, said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        f"{sys.executable} {words} >{where}", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, said in done.stderr) == (status, True), done
    assert done.stderr.count("\n") == int(bool(said)), done
