"""Runs as records and as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from framework.errors import Unsupported
from framework.files.jsonl import JsonObject, read_jsonl
from framework.results.layout import EVENTS, KERNEL, METRICS, REQUESTS
from framework.results.records import Run, collect

if TYPE_CHECKING:
    import pandas

_LINES = {"metrics": METRICS, "requests": REQUESTS, "events": EVENTS, "kernel": KERNEL}


class Results(Sequence[Run]):
    """The runs of one directory or of a sweep, in order of folder name.

    Settings keep their dotted names (`cache.num_blocks`, a component under its kind: `eviction`), results their keys
    in `result.json`; docs/results.md defines each.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Run | Results:
        return Results(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return f"<Results: {len(self._runs)} runs, {sum(run.ok for run in self._runs)} ok>"

    @property
    def ok(self) -> Results:
        """Those that ended well."""
        return Results([run for run in self._runs if run.ok])

    def records(self) -> list[dict[str, Any]]:
        """One flat dict a run: `run`, `status`, `reason`, its settings, then its results.

        Where a result has a setting's name (the component's), both are the same and stand once.
        """
        return [
            {"run": run.name, "status": run.status, "reason": run.reason, **run.settings, **_facts(run)}
            for run in self._runs
        ]

    def lines(self, kind: str) -> list[JsonObject]:
        """All lines of one of the runs' files, each with its `run`.

        Args:
            kind: `metrics` (a line a step), `requests`, `events` or `kernel` (a line a cell). A run without the file
                has no lines.

        Raises:
            Unsupported: another kind.
            RunDirectoryError: a line that cannot be read.
        """
        if kind not in _LINES:
            raise Unsupported(f"no lines of kind {kind!r}; there are {', '.join(_LINES)}")
        paths = [(run, run.path / _LINES[kind]) for run in self._runs]
        return [{"run": run.name, **line} for run, path in paths if path.is_file() for line in read_jsonl(path)]

    def to_pandas(self, kind: str = "runs") -> pandas.DataFrame:
        """The records as a DataFrame, or the lines of a kind (see `lines`).

        Raises:
            Unsupported: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise Unsupported("to_pandas needs pandas: pip install pandas; records() gives plain dicts") from error
        return pandas.DataFrame.from_records(self.records() if kind == "runs" else self.lines(kind))


def read(*folders: str | Path) -> Results:
    """The runs below these folders: run directories, sweeps, or folders above them.

    A run that failed, was killed or is damaged is among them, with its `status` and `reason`: see `Results.ok`.

    Raises:
        ConfigError: a folder is not there, or there is no run at all.
    """
    return Results(collect(folders))


def _facts(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.result.items() if key != "status"}
