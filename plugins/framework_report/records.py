"""Runs below folders, as records: what was set, what came of it, where it comes from; and what a search tried."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from framework import registry
from framework.errors import ConfigError, FrameworkError, RunDirectoryError, Unsupported
from framework.files.atomic import write_json
from framework.files.jsonl import JsonObject, require_file
from framework.results.layout import CONFIG, FAILURE, JOB, METRICS, PROVENANCE, RESULT, files_of_a_run
from framework.results.metric import is_number
from framework.results.reading import (
    FAILED_REQUESTS,
    FAULTY,
    read_json,
    read_result,
    status_at_the_end,
    what_went_wrong,
)
from framework_workloads.lines import read_jsonl

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What `provenance.json` says; empty strings for what it does not.

    Attributes:
        command: as typed.
        date: when the run began, UTC, to the second.
        machine: processor or accelerator, and the platform.
        revision: of the code; `+` at its end where files had changed.
        inputs: SHA-256, hexadecimal, of each file that the run read; empty where it does not say.
    """

    command: str = ""
    date: str = ""
    machine: str = ""
    revision: str = ""
    inputs: tuple[str, ...] = ()


def origin_of(provenance: Mapping[str, Any]) -> Origin:
    """What a `provenance.json` says of a run's origin, whatever parts it has."""
    package, device, cpu = (provenance.get(key) or {} for key in ("package", "device", "cpu"))
    revision = str(package.get("git_revision") or package.get("version") or "")[:12]
    parts = [device.get("model"), cpu.get("model"), provenance.get("platform")]
    return Origin(
        command=str(provenance.get("command") or ""),
        date=str(provenance.get("started_at") or "")[:19].replace("T", " "),
        machine=", ".join(str(part) for part in parts if part),
        revision=revision + ("+" if revision and package.get("git_dirty") is True else ""),
        inputs=tuple(str(entry.get("sha256") or "") for entry in provenance.get("inputs") or ()),
    )


_NEVER_A_RUN = frozenset({"wandb", ".hydra", "artifacts"})
_LONGEST_REASON = 2000
_NOT_SETTINGS = re.compile(r"^(run|tracker|sweep|experiment|hydra)(\.|$)")
_LONGEST_VALUE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, finished or not.

    Attributes:
        path: its folder.
        name: the folder below the one that was asked for.
        status: ok, failed, unavailable, unfinished (killed, or still running), or damaged: its files cannot be read.
        reason: why not ok.
        settings: dotted key -> value of what the run's mode reads; a component's name stands under its kind.
        result: as `result.json` holds it; empty when there is none.
        origin: where it comes from.
    """

    path: Path
    name: str
    status: str
    reason: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def trace(self) -> str:
        """What tells its workload's content from another's: the file's checksum, else its path, else the name."""
        return "+".join(filter(None, self.origin.inputs)) or str(
            self.settings.get("workload.path") or self.settings.get("workload") or ""
        )

    @property
    def trace_name(self) -> str:
        """The workload in a word for people: the name of its file, else its own."""
        path = self.settings.get("workload.path")
        return Path(str(path)).name if path else str(self.settings.get("workload") or "")

    def number(self, key: str) -> float | None:
        """A result as a float; None where it is missing, no number, or beyond what a table can hold."""
        value: Any = self.result.get(key)
        return float(value) if is_number(value) else None


def collect(folders: Sequence[str | Path]) -> list[Run]:
    """Every run below `folders`, in order of folder name; a run in two of them once.

    Raises:
        ConfigError: a folder is not there, or there is no run at all.
    """
    runs: dict[Path, Run] = {}
    for folder in folders:
        root = Path(folder)
        if not root.is_dir():
            raise ConfigError(f"no folder {str(folder)!r}; give run directories, or a folder above them")
        for path in sorted(_run_folders(root)):
            runs.setdefault(path.resolve(), _read(path, root))
    if not runs:
        raise ConfigError(f"no run below {', '.join(map(str, folders))}: a run has a result.json or a config.yaml")
    return list(runs.values())


def _run_folders(root: Path) -> Iterator[Path]:
    for directory, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name not in _NEVER_A_RUN)
        if {RESULT, JOB, FAILURE} & set(files) or {CONFIG, PROVENANCE} <= set(files) or {CONFIG, METRICS} <= set(files):
            below.clear()
            yield Path(directory)


def _read(path: Path, root: Path) -> Run:
    """One damaged run is a row that says so: it must not keep the others from being read."""
    name = _printable(str(path.relative_to(root)) if path != root else root.resolve().name)
    try:
        return _read_whole(path, name)
    except Exception as error:  # whatever a file holds: the row carries the reason
        reason = f"{type(error).__name__}: {_printable(str(error))}"
        return Run(path=path, name=name, status="damaged", reason=reason[:_LONGEST_REASON])


def _read_whole(path: Path, name: str) -> Run:
    failure = read_json(path / FAILURE) or {}
    try:
        result = {_printable(key): value for key, value in read_result(path).items()}
        reason = what_went_wrong(result)
        if failure and not reason:  # an earlier result, of other settings, that a job which cannot start left alone
            result = {}
        ended = result.get("status", "ok")
        if ended in ("ok", FAILED_REQUESTS, FAULTY) and reason:  # one that an older version wrote may say "ok"
            ended = status_at_the_end(result)
        status = str(failure.get("status", "failed" if ended == "ok" else ended)) if reason or failure else "ok"
        reason = str(failure.get("reason", reason))
    except RunDirectoryError as error:
        missing = not (path / RESULT).exists()
        result = {}
        status = str(failure.get("status", "unfinished" if missing else "damaged"))
        reason = str(failure.get("reason", "killed, or still running" if missing else error))
    job = read_json(path / JOB) or failure
    overrides = job.get("overrides")
    return Run(
        path=path,
        name=name,
        status=_printable(status),
        reason=_printable(reason)[:_LONGEST_REASON],
        settings=settings_of(path, overrides if isinstance(overrides, list) else ()),
        result=result,
        origin=origin_of(read_json(path / PROVENANCE) or {}),
    )


def _printable(text: str) -> str:
    """Text that can be written as UTF-8, on one line."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


class Results(tuple[Run, ...]):
    """The runs of one directory or of a sweep, in order of folder name.

    Settings keep their dotted names (`cache.num_blocks`, a component under its kind: `eviction`), results their keys
    in `result.json`; docs/results.md defines each.
    """

    def __repr__(self) -> str:
        return f"<Results: {len(self)} runs, {len(self.ok)} ok>"

    @property
    def ok(self) -> Results:
        """Those that ended well."""
        return Results(run for run in self if run.ok)

    def records(self) -> list[dict[str, Any]]:
        """One flat dict a run: `run`, `status`, `reason`, its settings, then its results.

        Where a result has a setting's name (the component's), both are the same and stand once.
        """
        return [
            {"run": run.name, "status": "", "reason": run.reason, **run.settings, **run.result} | {"status": run.status}
            for run in self
        ]

    def lines(self, kind: str) -> list[JsonObject]:
        """All lines of one of the runs' files, each with its `run`.

        Args:
            kind: the file's name without .jsonl: `metrics` (a line a step), `requests`, `events`, or what else runs of
                their mode write. A run without the file has no lines.

        Raises:
            Unsupported: no run writes such a file.
            RunDirectoryError: a line that cannot be read.
        """
        kinds = [name.removesuffix(".jsonl") for name in files_of_a_run() if name.endswith(".jsonl")]
        if kind not in kinds:
            raise Unsupported(f"no lines of kind {kind!r}; there are {', '.join(kinds)}")
        paths = [(run, run.path / f"{kind}.jsonl") for run in self]
        return [{"run": run.name, **line} for run, path in paths if path.is_file() for line in read_jsonl(path)]


def read(*folders: str | Path) -> Results:
    """The runs below these folders: run directories, sweeps, or folders above them.

    A run that failed, was killed or is damaged is among them, with its `status` and `reason`: see `Results.ok`.

    Raises:
        ConfigError: a folder is not there, or there is no run at all.
    """
    return Results(collect(folders))


def settings_of(folder: Path, overrides: Sequence[Any]) -> dict[str, Value]:
    """Dotted key -> value; a component's name stands under its kind (`eviction`), what a list holds under its number
    from 1 (`below.tiers.1.num_blocks`).

    Where a run writes and who follows it are no settings, and neither is what its mode never reads: the engine's
    options in a cache-only run, the model's in a replay.

    Args:
        overrides: words of the command line, for a run that left no readable `config.yaml`.

    Raises:
        RecursionError: a configuration that holds itself.
    """
    if config := config_of(folder):
        unread = _unread(config)
        return {key: value for key, value in _flat(config) if not unread.match(key)}
    pairs = (word.lstrip("+").partition("=") for word in overrides if isinstance(word, str))
    return {key: _parsed(text) for key, _, text in pairs if key and not _NOT_SETTINGS.match(key)}


def config_of(folder: Path) -> Mapping[str, Any]:
    """The configuration that a run left in its `config.yaml`; empty where none can be read."""
    import yaml

    try:
        require_file(folder / CONFIG, RunDirectoryError)
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return config if isinstance(config, Mapping) else {}


def _unread(config: Mapping[Any, Any]) -> re.Pattern[str]:
    """What the run's mode never reads, as a pattern of dotted keys."""
    mode = config.get("mode")
    name = str(mode.get("name") if isinstance(mode, Mapping) else mode or "serve")
    try:
        words = registry.load("mode", name).unread(config)  # type: ignore[attr-defined]
    except FrameworkError:  # of a mode that is not installed here all stand
        return re.compile(r"(?!)")
    return re.compile("|".join(rf"{re.escape(word)}(\.|$)" for word in words))


def _flat(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in node.items():
        dotted = f"{prefix}{key}"
        owner, _, last = dotted.rpartition(".")
        if _NOT_SETTINGS.match(dotted):
            continue
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value, start=1))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{dotted}.")
        elif last == "name" and owner.rpartition(".")[2] in (*registry.kinds(), "model"):
            yield owner, _scalar(value)
        else:
            yield dotted, _scalar(value)


def _parsed(text: str) -> Value:
    import yaml

    try:
        return _scalar(yaml.safe_load(text or "null"))
    except (ValueError, yaml.YAMLError, RecursionError):
        return _scalar(text)


def _scalar(value: Any) -> Value:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "an integer beyond 10^18"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(str(_scalar(item)) for item in value[:50] if not isinstance(item, (list, dict))) + "]"
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)[:_LONGEST_VALUE])


SEARCH = "search.json"


@dataclass(frozen=True, slots=True)
class Trial:
    """One question of the sampler.

    Attributes:
        number: from 1, in the order of asking.
        folder: of the run, below the search's; trials that ask the same share it.
        overrides: what was varied.
        value: of the metric; None where it failed, and then the reason.
    """

    number: int
    folder: str
    overrides: Sequence[str]
    value: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trials:
    """All finished trials of a search for the largest, or smallest, value of one metric."""

    metric: str
    maximize: bool
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The first of the best; None when none was good."""
        sign = -1 if self.maximize else 1
        good = [(sign * trial.value, trial.number) for trial in self.trials if trial.value is not None]
        return self.trials[min(good)[1] - 1] if good else None


def write_trials(folder: Path, trials: Trials) -> None:
    """Leave `search.json` in the search's folder, whole or not at all."""
    write_json(folder / SEARCH, asdict(trials))


def read_trials(folder: Path) -> Trials | None:
    """What `write_trials` left; None where there is none that can be read."""
    record = read_json(folder / SEARCH)
    if record is None:
        return None
    try:
        return Trials(record["metric"], record["maximize"], tuple(Trial(**trial) for trial in record["trials"]))
    except (KeyError, TypeError):
        return None
