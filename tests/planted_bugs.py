"""Planted bugs and the tests that must notice them.

    python tests/planted_bugs.py [NAME...] [--list]

`planted_bugs.toml` says of each bug which text of which file is replaced by which other one, and which tests must fail
then. One bug at a time is planted in a copy of the tracked files, and only those tests run. NAME is a bug, an area or a
part of a file's path; without one all are planted. Exit status 1 where a bug lives, where a text is in its file no
longer or more than once, or where the tests fail without any bug.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before torch, which must not have threads when it is forked

import tomllib  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402, F401  for the forks

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600
NOT_THE_COPY = 99


@dataclass(frozen=True)
class Bug:
    """`old`, which `file` holds once, becomes `new`, and one of `tests` must fail."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def places(self) -> int:
        """How often the text to replace is in the file."""
        path = ROOT / self.file
        return path.read_text(encoding="utf-8").count(self.old) if path.exists() else 0


def bugs(chosen: Sequence[str]) -> list[Bug]:
    """Those of the data file that a name chooses, in its order."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    found = [
        Bug(group["area"], name, group["file"], old, new, tuple(group.get("tests") or data["tests"][group["area"]]))
        for group in data["group"]
        for name, old, new in group["bugs"]
    ]
    twice = [name for name, count in Counter(bug.name for bug in found).items() if count > 1]
    if twice:
        sys.exit(f"two bugs of one name: {', '.join(twice)}")
    unknown = [name for name in chosen if not any(chooses(name, bug) for bug in found)]
    if unknown:
        sys.exit(f"no bug, area or file {', '.join(unknown)}; --list shows them")
    return [bug for bug in found if not chosen or any(chooses(name, bug) for name in chosen)]


def chooses(name: str, bug: Bug) -> bool:
    """Whether a name of the command line means this bug."""
    return name in (bug.name, bug.area) or ("/" in name and name in bug.file)


def copied(to: Path) -> None:
    """Copy the tracked and the new files as they are now, and nothing that is ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)


def run(copy: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Pytest's exit status over the copy, and what it said; None where it did not end.

    In a fork, which has torch already: importing it would take longer than most of the tests.
    """
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os._exit(in_copy(copy, tests, said.fileno()))
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                said.seek(0)
                return os.waitstatus_to_exitcode(status), said.read()
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None, f"no end after {LIMIT_S} s"


def in_copy(copy: Path, tests: Sequence[str], output: int) -> int:
    """Run these tests in this process; NOT_THE_COPY where they would import anything but the copy."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    paths = [str(copy), str(copy / "plugins")]
    sys.path[:0] = paths
    os.environ.update(PYTHONPATH=os.pathsep.join(paths), CI="1")  # the same examples
    import framework

    if not str(framework.__file__).startswith(str(copy)):
        return NOT_THE_COPY
    return int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:hydra_pytest", *tests]))


def plant(bug: Bug, copy: Path, number: int) -> str:
    """What became of the bug, the number-th of all: killed, alive, or why neither is known."""
    if bug.places != 1:
        return f"text found {bug.places} times"
    path = copy / bug.file
    sound = path.read_text(encoding="utf-8")
    path.write_text(sound.replace(bug.old, bug.new), encoding="utf-8")
    os.utime(path, (number, number))  # or Python might take what it compiled of the bug before
    try:
        status, said = run(copy, bug.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
        os.utime(path, (0, 0))
    if status in (0, 1):
        return ("alive", "killed")[status]
    return said if status is None else f"pytest ended with {status}: {said.strip().splitlines()[-1]}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help="a bug, an area, or a part of a file's path; default: all")
    parser.add_argument("--list", action="store_true", help="show them and whether their text is there; plant none")
    arguments = parser.parse_args()
    chosen = bugs(arguments.name)
    if arguments.list:
        for bug in chosen:
            state = "" if bug.places == 1 else f"  text found {bug.places} times"
            print(f"{bug.area:<12} {bug.name:<34} {bug.file}{state}")
        return int(any(bug.places != 1 for bug in chosen))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        copied(copy)
        status, said = run(copy, sorted({test for bug in chosen for test in bug.tests}))
        if status != 0:
            print(said[-4000:], "the tests fail without any bug", sep="\n")
            return 1
        ends: dict[Bug, str] = {}
        for number, bug in enumerate(chosen, start=1):
            ends[bug] = plant(bug, copy, number)
            print(f"{ends[bug]:<8} {bug.area:<12} {bug.name}", flush=True)
    print()
    for area in [*dict.fromkeys(bug.area for bug in chosen), "all"]:
        those = [end for bug, end in ends.items() if area in (bug.area, "all")]
        killed = those.count("killed")
        print(f"{area:<12} {killed} of {len(those)} killed, {100 * killed / len(those):.0f} %")
    return int(set(ends.values()) != {"killed"})


if __name__ == "__main__":
    sys.exit(main())
