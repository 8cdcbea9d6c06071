"""The core's tests without packages of features: `python tests/packaging/without_packages.py NAME ... [-- PYTEST ...]`.

The checkout is copied; there the packages, those that import them and the lines of pyproject.toml that name them are
deleted, and tests/ is run, but for `ELSEWHERE`. No NAME: without all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from environments import build

ROOT = Path(__file__).resolve().parents[2]
CORE = frozenset({"framework_builtin", "framework_testing", "framework_torch", "framework_workloads"})
"""What tests of the core may import besides: the plugins of a first run, and conformance kits."""
ELSEWHERE = ("tests/packaging", "tests/unit/experiments")
"""Tests of the repository as a whole, and of experiments, which use what there is."""
_IMPORT = re.compile(r"^\s*(?:from|import) (framework_\w+)", re.MULTILINE)


def imports(folder: Path) -> set[str]:
    """The packages that a package's code imports."""
    files = (path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts)
    return {name for path in files for name in _IMPORT.findall(path.read_text(encoding="utf-8"))}


def packages(root: Path = ROOT) -> dict[str, set[str]]:
    """Package of the root's wheel -> the packages that it imports."""
    folders = (path.parent for path in sorted((root / "plugins").glob("framework_*/__init__.py")))
    return {folder.name: imports(folder) - {folder.name} for folder in folders}


def with_dependents(names: set[str]) -> set[str]:
    """These, and every package that imports one of them, but for `CORE`: the figure of mode=kernel is missing then."""
    found = packages()
    while more := {name for name, used in found.items() if used & names} - names - CORE:
        names = names | more
    return names


def remove(names: set[str], root: Path) -> None:
    """Delete packages from a checkout, and what names them in its pyproject.toml."""
    for name in names:
        shutil.rmtree(root / "plugins" / name)
    project, word = root / "pyproject.toml", re.compile(rf"\b({'|'.join(names)})\b")
    lines = []
    for line in project.read_text(encoding="utf-8").splitlines():
        if line.startswith("pythonpath"):
            line = re.sub(rf'"plugins/({"|".join(names)})/tests", ', "", line)
        if not word.search(line):
            lines.append(line)
    project.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    asked, options = set(words[:at]) or set(packages()) - CORE, words[at + 1 :]
    names = with_dependents(asked)
    with tempfile.TemporaryDirectory() as folder:
        copy, site = Path(folder) / "copy", Path(folder) / "site"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        remove(names, copy)
        with zipfile.ZipFile(build(copy, Path(folder) / "wheel")) as wheel:  # its entry points hide the installed ones
            wheel.extractall(site, [name for name in wheel.namelist() if ".dist-info/" in name])
        gone = "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(names))  # importing one raises
        (site / "sitecustomize.py").write_text(f"import sys\n{gone}")
        print("without", *sorted(names), flush=True)
        path = os.pathsep.join(map(str, (site, copy, copy / "plugins")))
        tests = ["tests", *(f"--ignore={folder}" for folder in ELSEWHERE)]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(options or tests)]
        return subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
