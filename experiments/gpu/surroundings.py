"""What a GPU machine may lack: a site folder with this project's metadata and carried wheels, and what is missing.

Nothing is installed: the folder goes on PYTHONPATH, with the repository and its plugins. Only the standard library is
needed to make it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
ASSUMED = ("torch", "triton", "numpy")
"""Without one of these no part can run."""


def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def make_site(folder: Path, wheels: Path | None) -> list[str]:
    """Fill `folder`: dist-info with the entry points of pyproject.toml, and the wheels unpacked.

    Returns:
        The names of the wheels' files.
    """
    facts = project()
    name, version = facts["name"].replace("-", "_"), facts.get("version") or "0"
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {version}\n")
    sections = {**facts.get("entry-points", {}), "console_scripts": facts.get("scripts", {})}
    lines = [
        line
        for group, points in sections.items()
        if points
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()), "")
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(lines))
    found = sorted(wheels.glob("*.whl")) if wheels is not None and wheels.is_dir() else []
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return [wheel.name for wheel in found]


def environment(site: Path, cache: Path) -> dict[str, str]:
    """Of every part's process: the site folder first, caches in a folder that goes with the run, and no network."""
    paths = [str(site), str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }


def versions(site: Path) -> dict[str, str | None]:
    """Of every package the project or its tests name, as this interpreter or the site folder has it; None: missing."""
    facts = project()
    wanted = [*ASSUMED, *facts["dependencies"], "antlr4-python3-runtime", *facts["optional-dependencies"]["test"]]
    names = [re.match(r"[A-Za-z0-9._-]+", requirement)[0] for requirement in wanted]  # type: ignore[index]
    carried = {found.name.lower(): found.version for found in importlib.metadata.distributions(path=[str(site)])}
    return {name: carried.get(name.lower()) or _version(name) for name in dict.fromkeys(names)}


def lacking_for_launches() -> list[str]:
    """What the installed Triton builds its launchers with and is not here; empty where it brings them built.

    Up to 3.6 at least it calls a C compiler at the first launch of each kernel's signature. Triton is not imported.
    """
    found = importlib.util.find_spec("triton")
    driver = Path(found.origin).with_name("backends") / "nvidia" / "driver.py" if found and found.origin else None
    if driver is None or not driver.exists() or "compile_module_from_src" not in driver.read_text():
        return []
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # as Triton has it, for Debian's Python
    headers = Path(sysconfig.get_paths(scheme)["include"], "Python.h")
    return [
        *([] if compiler else ["a C compiler (CC, gcc or clang)"]),
        *([] if headers.exists() else [f"Python's headers ({headers})"]),
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
