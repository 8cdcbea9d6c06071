"""What a run's numbers are made of: configuration, code and files read; and which jobs differ in none of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from framework import registry
from framework.errors import FrameworkError
from framework.files.digest import sha256_of
from framework.files.jsonl import to_plain
from framework.interfaces.mode import Mode
from framework.registry.signatures import signature

NOT_IN_HASH = frozenset(
    {
        "name", "dir", "sweep", "overwrite", "progress", "report", "stall_timeout_s", "timeout_s", "chunk",
    }
)  # fmt: skip
"""Keys of `run` that say where a job writes or how it is watched, not what it computes."""
_FOLDERS = ("workload", "model")
"""Groups whose options may name a folder that is read: a trace of many files, a checkpoint."""
_LARGE_BYTES = 256 * 2**20


def identity(config: Mapping[str, Any]) -> str:
    """Digest of configuration, code and files read, 32 hex digits: two runs of one identity give the same counts.

    Args:
        config: resolved, plain and checked.
    """
    kept = {key: value for key, value in config.items() if key not in ("tracker", "sweep", "experiment")}
    kept["run"] = {key: value for key, value in (config.get("run") or {}).items() if key not in NOT_IN_HASH}
    plugins = [(key, _content(key, name)) for key, name in components(config)]
    return digest(
        [kept, registry.framework_content(), plugins, [(key, digest_of(path)) for key, path in inputs(config)]]
    )


def digest(value: Any) -> str:
    """32 hex digits of what JSON can hold, whatever the order of its keys."""
    text = json.dumps(to_plain(value), sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def components(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, name) of every plugin that a run may use; the last part of a key is the kind: `below.tiers.1.store`.

    Of a trace whose format nobody named, all readers that others installed: which one recognises it is up to all.
    """
    for kind in registry.groups():
        if kind != "tracker" and (name := _name(config.get(kind))):
            yield kind, name
            yield from _within(kind, config[kind])
    for number, observer in enumerate(config.get("observers") or (), start=1):
        if name := _name(observer):
            yield f"observers.{number}.observer", name
    workload = config.get("workload")
    if _name(workload) == "trace" and isinstance(workload, Mapping):
        if (format := str(workload.get("format") or "auto")) != "auto":
            yield "trace", format
            return
        for reader in registry.entries("trace"):
            if not reader.is_built_in:
                yield f"auto.{reader.full_name}.trace", reader.full_name


def inputs(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """(dotted key, path) of the files that a configuration names, and of the folders that are a trace or a model.

    Where a run writes, and what a store below the pool keeps, is no input.
    """
    for key, value in config.items():
        if key not in ("run", "tracker", "observers"):
            yield from _files(key, value, folders=key in _FOLDERS)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or over the names and digests of a folder's files; empty where it cannot be read.

    A model's weights of 256 MiB and more count by size and time of change: reading them all takes as long as a run.
    """
    try:
        if path.is_dir():
            files = sorted(inner for inner in path.rglob("*") if inner.is_file())
            text = "".join(f"{inner.relative_to(path)}\0{digest_of(inner)}\0" for inner in files)
            return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        stat = path.stat()
        if stat.st_size >= _LARGE_BYTES and path.suffix in (".safetensors", ".bin", ".pt", ".gguf"):
            return hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
        return sha256_of(path)
    except OSError:
        return ""


def _content(key: str, name: str) -> str:
    """Digest of the code of a component that is none of the framework's own, whose code is counted once; else empty."""
    try:
        plugin = registry.find(key.rpartition(".")[2], name)
    except FrameworkError:
        return ""  # the run itself will say why
    return "" if plugin.is_built_in else registry.content_of(plugin)


def _within(key: str, options: Any) -> Iterator[tuple[str, str]]:
    """The components among the options of another: what stands there under the name of a kind."""
    if isinstance(options, (list, tuple)):
        options = dict(enumerate(options, start=1))
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if name in registry.kinds() and (chosen := _name(value)):
            yield f"{key}.{name}", chosen
        yield from _within(f"{key}.{name}", value)


def _name(node: Any) -> str:
    name = node.get("name") if isinstance(node, Mapping) else node
    return name if isinstance(name, str) else ""


def _files(key: str, value: Any, *, folders: bool) -> Iterator[tuple[str, Path]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in ("name", "store"):
                yield from _files(f"{key}.{name}", inner, folders=folders)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value, start=1):
            yield from _files(f"{key}.{number}", inner, folders=folders)
    elif isinstance(value, (str, Path)) and str(value) and _is_input(path := Path(value), folders):
        yield key, path


def _is_input(path: Path, folders: bool) -> bool:
    try:
        return path.is_file() or (folders and path.is_dir())
    except (OSError, ValueError):  # a text that no file system takes as a name
        return False


class Repeats:
    """Receives each job of a sweep in turn; knows which repeat an earlier one but for an unused seed."""

    def __init__(self) -> None:
        self._seen: dict[frozenset[str], str | None] = {}
        """Overrides but for the seed -> the policy whose seed is unused; "" not asked yet; None where it is used."""
        self.names = Counter[str]()
        """What the repeated jobs ran, and how many of them there were."""

    def repeats(self, words: Sequence[str], config: Callable[[], Mapping[str, Any]]) -> bool:
        """Whether the job of these overrides differs from an earlier one in a seed that it does not use.

        Args:
            config: gives the job's configuration: resolved, plain and checked. Asked for the second of such jobs only.
        """
        bare = [word.lstrip("+") for word in words]
        if not any(word.startswith("seed=") for word in bare):
            return False
        rest = frozenset(word for word in bare if not word.startswith("seed="))
        if rest not in self._seen:
            self._seen[rest] = ""
            return False
        if self._seen[rest] == "":
            plain = config()
            self._seen[rest] = None if uses_seed(plain) else str(plain["eviction"]["name"])
        policy = self._seen[rest]
        if policy is None:
            return False
        self.names[f"eviction={policy}"] += 1
        return True


def uses_seed(config: Mapping[str, Any]) -> bool:
    """Whether two runs of this configuration with other seeds may differ.

    A component draws from the run's seed if its constructor has a parameter `seed`. A replay of a trace or of a
    recording has no other source of chance; other modes have the model, the workload, sampling and time.
    """
    mode: type[Mode] = registry.load("mode", _name(config.get("mode")) or "serve")
    if not mode.repeats or config["workload"]["name"] not in ("trace", "recording"):
        return True
    return any("seed" in signature(registry.load(kind, config[kind]["name"])).names() for kind in mode.repeats)
