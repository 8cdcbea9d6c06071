"""What made this run: code, versions, machine, seeds."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from framework import registry
from framework.cli import COMMAND
from framework.errors import FrameworkError
from framework.files.digest import sha256_of
from framework.files.secrets import masked
from framework.registry.points import DISTRIBUTION

CHECKOUT = Path(__file__).resolve().parents[2]
"""Where the package lies, which is a checkout unless it is installed."""

_LIBRARIES = (
    "torch", "triton", "numpy", "hydra-core", "omegaconf", "xxhash", "transformers", "tokenizers", "safetensors",
    "huggingface-hub", "wandb", "flash-attn",
)  # fmt: skip


def collect_provenance(
    *,
    components: Iterable[tuple[str, str]] = (),
    seeds: Mapping[str, int] | None = None,
    device: str | None = None,
    argv: Sequence[str] | None = None,
    inputs: Sequence[Path] = (),
    other_inputs: Mapping[str, str] | None = None,
    checkout: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A plain dict for `provenance.json`. Imports no library: versions come from the installed metadata.

    Args:
        components: (key, chosen name), as in `("allocator", "prefix")`; the last part of a key is the kind. Each is
            reported with the distribution it came from and the SHA-256 of its code.
        seeds: every seed of the run by name.
        device: where the model ran, as torch names it.
        argv: the command line; default this process's.
        inputs: files of requests that the run reads, such as its trace; each is named with its SHA-256.
        other_inputs: dotted key -> digest of what else it reads, such as its model.
        checkout: what `checkout_state` said before the run's first output; None asks it now.
    """
    state = checkout_state() if checkout is None else checkout
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "package": {
            "name": DISTRIBUTION,
            "version": _version(DISTRIBUTION),
            "content_sha256": registry.framework_content(),
            **state,
        },
        "components": {key: _component(key, name) for key, name in components},
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name)) is not None},
        "argv": masked(list(_arguments() if argv is None else argv)),
        "command": command_line() if argv is None else shlex.join(masked(list(argv))),
        "seeds": dict(seeds or {}),
        "device": _device(device),
        "cpu": {"model": _cpu_model(), "num_logical": os.cpu_count(), "num_usable": usable},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "inputs": [
            {"name": path.name, "path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in inputs
            if path.is_file()
        ],
        "other_inputs": dict(other_inputs or {}),
        "environment": {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "PYTHONHASHSEED")
            if name in os.environ
        },
        "working_directory": str(Path.cwd()),
        "started_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def headline(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The few facts of a provenance that every result carries, so that a reader of the result alone has them."""
    device, package, cpu = provenance["device"], provenance["package"], provenance["cpu"]
    facts = {
        "command": provenance["command"],
        "started_at": provenance["started_at"],
        "machine": device.get("model") or f"{cpu['model']}, {cpu['num_usable']} of {cpu['num_logical']} cores",
        "version": package["version"],
        "git_revision": package["git_revision"],
    }
    for read in provenance["inputs"][:1]:
        facts |= {"trace": read["path"], "trace_sha256": read["sha256"]}
    return facts


@contextmanager
def handed_on() -> Iterator[None]:
    """Workers that are started meanwhile say the command of this process, not their own."""
    before = os.environ.get(COMMAND)
    os.environ[COMMAND] = command_line()
    try:
        yield
    finally:
        del os.environ[COMMAND]
        if before is not None:
            os.environ[COMMAND] = before


def _arguments() -> list[str]:
    return shlex.split(os.environ[COMMAND]) if COMMAND in os.environ else sys.argv


def command_line() -> str:
    """How the user called this process, or the one whose worker it is, as a shell would take it; secrets are masked."""
    if COMMAND in os.environ:
        return os.environ[COMMAND]
    module = getattr(sys.modules["__main__"], "__spec__", None)
    script = sys.argv[0] or sys.executable
    if module is not None:
        started = ["python", "-m", module.name.removesuffix(".__main__")]
    else:
        started = ["python", script] if script.endswith(".py") else [Path(script).name]
    return shlex.join([*started, *masked(sys.argv[1:])])


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _component(key: str, name: str) -> dict[str, Any]:
    try:
        plugin = registry.find(key.rpartition(".")[2], name)
    except FrameworkError:
        return {"name": name, "class": None, "distribution": None, "version": None}
    return {
        "name": name,
        "class": plugin.value,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "content_sha256": registry.content_of(plugin),
    }


def checkout_state(outputs: Sequence[Path] = ()) -> dict[str, Any]:
    """`git_revision`, and whether files differ from it, when the package runs from its own checkout; else None.

    An installed copy inside another checkout has none.

    Args:
        outputs: folders whose files do not count.
    """
    checkout = CHECKOUT
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").exists()):
        return {"git_revision": None, "git_dirty": None}
    revision = _git_output(checkout, "rev-parse", "HEAD")
    inside = [path.resolve().relative_to(checkout) for path in outputs if path.resolve().is_relative_to(checkout)]
    without = [f":(exclude,top,literal){path.as_posix()}" for path in inside if path.parts]
    changes = _git_output(checkout, "status", "--porcelain", "--untracked-files=normal", "--", ":(top)", *without)
    return {"git_revision": revision or None, "git_dirty": None if changes is None else bool(changes)}


def _git_output(checkout: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None  # no git here, or a checkout of another user: the run is none the worse
    return done.stdout.strip()


def _device(device: str | None) -> dict[str, Any]:
    """Names the accelerator when torch is loaded already; asking must not load it."""
    facts: dict[str, Any] = {"name": device}
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["torch_threads"] = torch.get_num_threads()
        if device is not None and device.startswith("cuda"):
            properties = torch.cuda.get_device_properties(device)
            facts["model"] = properties.name
            facts["compute_capability"] = f"{properties.major}.{properties.minor}"
            facts["memory_bytes"] = properties.total_memory
            facts["cuda"] = torch.version.cuda
    return facts


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
