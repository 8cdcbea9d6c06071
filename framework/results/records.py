"""Which runs lie below these folders, what was set in each, and what came of it?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, RunDirectoryError
from framework.results.catalogue import canonical
from framework.results.layout import CONFIG, FAILURE, JOB, METRICS, PROVENANCE, RESULT
from framework.results.reading import read_json, read_result, what_went_wrong

Value = str | int | float | bool | None

_KINDS = ("allocator", "eviction", "hash", "backend", "model", "workload")
_NOT_SETTINGS = re.compile(r"^(run|tracker|sweep|experiment|hydra)(\.|$)")
_NEVER_A_RUN = frozenset({"wandb", ".hydra", "artifacts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run, finished or not.

    Attributes:
        path: its folder.
        name: the folder below the one that was asked for.
        status: ok, failed, unavailable, or unfinished: killed, or still running.
        reason: why not ok.
        settings: dotted key -> value; a component's name stands under its kind (`eviction`). Where a run writes and
            who follows it are no settings.
        result: as `result.json` holds it; empty when there is none.
        revision: of the code, as `provenance.json` has it.
    """

    path: Path
    name: str
    status: str
    reason: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    revision: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def collect(folders: Sequence[str | Path]) -> list[RunRow]:
    """Every run below `folders`, in order of folder name.

    Raises:
        ConfigError: a folder is not there, or there is no run at all.
    """
    rows: list[RunRow] = []
    for folder in folders:
        root = Path(folder)
        if not root.is_dir():
            raise ConfigError(f"no folder {str(folder)!r}; give run directories, or a folder above them")
        rows.extend(_row(path, root) for path in sorted(_run_folders(root)))
    if not rows:
        raise ConfigError(f"no run below {', '.join(map(str, folders))}: a run has a result.json or a config.yaml")
    return rows


def _run_folders(root: Path) -> Iterator[Path]:
    for directory, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name not in _NEVER_A_RUN)
        if {RESULT, JOB, FAILURE} & set(files) or {CONFIG, PROVENANCE} <= set(files) or {CONFIG, METRICS} <= set(files):
            below.clear()
            yield Path(directory)


def _row(path: Path, root: Path) -> RunRow:
    failure = read_json(path / FAILURE) or {}
    try:
        result: Mapping[str, Any] = {canonical(key): value for key, value in read_result(path).items()}
        reason = what_went_wrong(result)
        status = str(failure.get("status", "failed")) if reason else "ok"
        reason = reason and str(failure.get("reason", reason))
    except RunDirectoryError as error:
        missing = not (path / RESULT).exists()
        result = {}
        status = str(failure.get("status", "unfinished" if missing else "failed"))
        reason = str(failure.get("reason", "killed, or still running" if missing else error))
    job = read_json(path / JOB) or failure
    name = str(path.relative_to(root)) if path != root else root.name
    package = (read_json(path / PROVENANCE) or {}).get("package") or {}
    return RunRow(
        path=path,
        name=name,
        status=status,
        reason=reason,
        settings=_settings(path, job.get("overrides") or ()),
        result=result,
        revision=str(package.get("git_revision") or package.get("version") or ""),
    )


def _settings(path: Path, overrides: Sequence[str]) -> dict[str, Value]:
    import yaml

    try:
        config = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        config = None
    if isinstance(config, dict):
        return dict(_flat(config))
    pairs = (word.lstrip("+").partition("=") for word in overrides)
    return {key: _scalar(yaml.safe_load(text or "null")) for key, _, text in pairs if not _NOT_SETTINGS.match(key)}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in node.items():
        dotted = f"{prefix}{key}"
        if _NOT_SETTINGS.match(dotted):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{dotted}.")
        elif prefix.rstrip(".") in _KINDS and key == "name":
            yield prefix.rstrip("."), _scalar(value)
        else:
            yield dotted, _scalar(value)


def _scalar(value: Any) -> Value:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
