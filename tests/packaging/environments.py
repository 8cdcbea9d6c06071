"""Commands that must succeed, distributions built from folders, and environments in which ours is not installed yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that must end with status 0."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, out: Path, target: str = "wheel") -> Path:
    """The wheel or sdist of a folder."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    (path,) = out.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[target])
    return path


def fresh_environment(place: Path) -> Path:
    """A virtual environment with our dependencies and without us; returns its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent)
    python = place / "bin" / "python"
    inside = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    # A directory named in a .pth file is searched, but its own .pth files, our editable install, are not read.
    ours = [folder for folder in sys.path if folder.endswith("site-packages")]
    (Path(inside) / "00_dependencies.pth").write_text("".join(f"{folder}\n" for folder in ours))
    return python


def pip_install(python: Path) -> list[str | Path]:
    """The words that install into an environment without a network, but for what is installed."""
    return [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation"]
