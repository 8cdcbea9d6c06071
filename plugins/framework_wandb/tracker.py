"""The run on Weights & Biases: online with an account, offline without one, and never in the way."""

from __future__ import annotations

import netrc
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlparse

from framework import registry
from framework.files.jsonl import to_plain
from framework.interfaces.tracker import RunLabel, Tracker
from framework.results.catalogue import find
from framework.results.layout import CONFIG, EVENTS, METRICS, PROVENANCE, REQUESTS, RESULT
from framework.tracking.tracker import TrackerWarning
from framework_workloads.lines import read_jsonl

_ID = "wandb-id"
INIT_TIMEOUT_S = 15.0
"""For reaching the server at the start; then the run is recorded offline."""
_FINISH_TIMEOUT_S = 60.0  # for the last upload; then the records stay for `wandb sync`
_MOST_TABLE_ROWS = 1000


class WandbTracker(Tracker):
    """Live step metrics, configuration, final summary, a table of requests and the memory timeline.

    The records lie in the run directory's `wandb/`; after an offline run, `wandb sync` uploads them.

    Args:
        project, entity: where the run appears; no entity means the account's own.
        mode: `auto` is online where an API key is at hand and offline elsewhere; `online`, `offline` or `disabled`
            as named. The environment variable WANDB_MODE wins. Without a key, `online` warns and is `offline`:
            nothing ever asks for one.
        tags: added to the label's, whose name is `run.name` and whose group the sweep's folder; without one,
            WANDB_RUN_GROUP names it.
        artifacts: whether the run's files (configuration, provenance, result, requests, events) are kept as an
            artifact of the run.

    A run that was killed and is run again in the same directory continues under the same id. Under `wandb agent` the
    agent's own id and sweep hold.
    """

    def __init__(
        self,
        *,
        project: str = "kvcache-framework",
        entity: str | None = None,
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        tags: Sequence[str] = (),
        artifacts: bool = True,
    ) -> None:
        self._project, self._entity, self._mode = project, entity, mode
        self._tags, self._artifacts = tuple(tags), artifacts
        self._first_step = 0
        self._run: Any = None
        self._folder: Path | None = None
        self._held: tuple[int, dict[str, Any]] | None = None

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        """Begin a W&B run beside any other of this process."""
        import wandb

        self._folder = folder
        mode = _mode(self._mode)
        if mode == "offline" and (os.environ.get("WANDB_MODE") or self._mode) == "online":
            warnings.warn("W&B knows no API key here; recording offline", TrackerWarning, stacklevel=2)
        try:
            self._run = self._init(mode, config, folder, label)
        except (wandb.errors.Error, TimeoutError) as fault:
            if mode != "online":
                raise
            warnings.warn(f"W&B cannot be reached ({fault}); recording offline instead", TrackerWarning, stacklevel=2)
            (folder / _ID).unlink(missing_ok=True)  # W&B holds the id of the attempt above for used
            self._run = self._init("offline", config, folder, label)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the metrics of the first 1,000 steps, then of every 10th, from 10,000 on of every 100th, and so on: the
        same steps in every run of one command. The last one waits for the end.
        """
        self._held = (step, dict(metrics))
        if step % 10 ** max(0, len(str(step)) - 3) == 0:
            self._send_held()

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        """Send what is left, the summary, the table and the plot, and end the run."""
        if self._run is None:
            return
        try:
            self._send_held()
            self._log_table("requests", self._lines(REQUESTS)[:_MOST_TABLE_ROWS])
            for name in registry.declared("files"):
                if name.endswith(".jsonl"):
                    self._log_table(Path(name).stem, self._lines(name)[:_MOST_TABLE_ROWS])
            self._log_pictures()
            self._run.summary.update(to_plain(summary))
            declared = [metric for key in summary if (metric := find(key)) is not None]
            words = ("key", "unit", "better", "definition")
            self._log_table("definitions", [{name: getattr(metric, name) for name in words} for metric in declared])
            if self._artifacts:
                self._log_files()
        finally:
            run, self._run = self._run, None
            run.finish(exit_code=1 if failed else 0)
        if self._folder is not None:
            (self._folder / _ID).unlink(missing_ok=True)

    def publish(self, files: Sequence[Path], folder: Path) -> None:
        """One more run of the sweep's group: the page to look at, all files as an artifact.

        Raises:
            wandb.errors.Error: W&B cannot be reached in time, or refuses.
        """
        import wandb

        facts = {"group": folder.name, "job_type": "report", "name": f"report of {folder.name}"}
        run = _begin(_mode(self._mode), folder, project=self._project, entity=self._entity, **facts)
        try:
            artifact = wandb.Artifact(f"report-{run.id}", type="report")
            for path in files:
                artifact.add_file(str(path), name=path.name)
                if path.suffix == ".html":
                    run.log({"report": wandb.Html(path.read_text(encoding="utf-8"), inject=False)})
            run.log_artifact(artifact)
        finally:
            run.finish()

    def _init(self, mode: str, config: Mapping[str, Any], directory: Path, label: RunLabel) -> Any:
        identity: dict[str, Any] = {}
        if not os.environ.get("WANDB_SWEEP_ID"):  # an agent has given the run its id and its sweep already
            identity["id"] = _continued_id(directory)
            if mode == "online":
                identity["resume"] = "allow"
        run = _begin(
            mode,
            directory,
            **identity,
            project=self._project,
            entity=self._entity,
            group=label.group or None,
            job_type=label.job_type or None,
            name=label.name or None,
            tags=[*label.tags, *self._tags] or None,
            config=to_plain(config),
        )
        self._first_step = int(run.step) if run.resumed else 0
        return run

    def _send_held(self) -> None:
        if self._held is None:
            return
        (step, metrics), self._held = self._held, None
        self._run.log(to_plain(metrics), step=self._first_step + step)

    def _log_table(self, name: str, rows: list[dict[str, Any]]) -> None:
        import wandb

        if rows:
            columns: list[str | int] = list(dict.fromkeys(key for row in rows for key in row))
            data = [[_cell(row.get(str(column))) for column in columns] for row in rows]
            self._run.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)})

    def _log_pictures(self) -> None:
        """The memory timeline, and what the mode drew."""
        import wandb
        from PIL import Image

        from framework_report.figures import memory
        from framework_report.figures.style import save

        assert self._folder is not None
        for path in (self._folder / name for name in registry.declared("files") if name.endswith(".png")):
            if path.is_file():
                self._run.log({path.stem: wandb.Image(str(path))})
        figure = memory.draw(self._lines(METRICS))
        if figure is not None:
            # wandb takes a figure only where pyplot was loaded, which is global state we keep out of a run.
            picture = BytesIO()
            save(figure, picture)
            with Image.open(picture) as image:
                self._run.log({"memory": wandb.Image(image)})

    def _log_files(self) -> None:
        import wandb

        assert self._folder is not None
        artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
        for name in (CONFIG, PROVENANCE, RESULT, REQUESTS, EVENTS, *registry.declared("files")):
            path = self._folder / name
            if path.is_file():
                artifact.add_file(str(path), name=name)
        self._run.log_artifact(artifact)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        assert self._folder is not None
        path = self._folder / name
        return read_jsonl(path) if path.exists() else []


def _continued_id(directory: Path) -> str:
    """The id that an unfinished run left in this directory, else a new one, left there for the next."""
    path = directory / _ID
    try:
        name = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        name = ""
    if not name:
        name = secrets.token_hex(8)
        path.write_text(name + "\n", encoding="ascii")
    return name


def _mode(asked: str) -> str:
    """The mode of a run: WANDB_MODE, else what was asked for; online only with an account."""
    mode = os.environ.get("WANDB_MODE") or asked
    if mode in ("auto", "online"):
        return "online" if has_account() else "offline"
    return mode


def has_account() -> bool:
    """Whether W&B could log in by itself: an API key or identity token in the environment, or a key in netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    import wandb

    host = urlparse(wandb.setup().settings.base_url).netloc
    # The public service answers under two names, and old netrc entries know the first.
    public = ("api.wandb.ai", "api.forge.coreweave.com")
    hosts = public if host in public else (host,)
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        if path and (file := Path(path).expanduser()).is_file():
            try:
                entries = netrc.netrc(str(file))
                return any(entries.authenticators(name) for name in hosts)
            except (OSError, netrc.NetrcParseError):
                return False
    return False


def _cell(value: Any) -> Any:
    """Tables hold scalars; anything nested is shown as text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _begin(mode: str, folder: Path, **facts: Any) -> Any:
    """A W&B run beside any other of this process, its records below `folder`."""
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        x_disable_meta=True,  # it would hold the command line with its secrets
        init_timeout=INIT_TIMEOUT_S,
        login_timeout=INIT_TIMEOUT_S,
        finish_timeout=_FINISH_TIMEOUT_S,
    )
    return wandb.init(mode=cast(Any, mode), dir=str(folder), reinit="create_new", settings=settings, **facts)
