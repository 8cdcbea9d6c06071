"""One run from the lock on its directory to its result: the part that all modes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from framework import registry
from framework.cli.exit import complain, describe, interrupts, sentence
from framework.config.config import Config
from framework.engine.engine import Engine, Trial
from framework.engine.sizes import shortened
from framework.errors import FrameworkError
from framework.files.secrets import masked
from framework.guard.observer import GuardedObserver
from framework.interfaces.mode import OnBegin
from framework.interfaces.observer import RunView
from framework.interfaces.tracker import RunLabel
from framework.modes.watchdog import Watchdog
from framework.registry.components import build_component
from framework.registry.culprit import named
from framework.results.layout import EVENTS, JOB
from framework.results.reading import status_at_the_end, what_went_wrong
from framework.sweep import identity
from framework.tracking.provenance import checkout_state, collect_provenance, headline
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import TrackedRun

KINDS = ("allocator", "eviction", "hash", "backend")


class Session:
    """`with Session(config) as session:` around a whole run: reading first, then `begin`, then `record`.

    Until `begin` nothing of an earlier run in the directory is touched. A run that raises before, into a directory
    that holds no result, leaves a `result.json` with status "failed" and the reason; one that raises after `begin`
    leaves what there is as well. Ctrl-C, SIGTERM and SIGHUP do the same with status "interrupted".

    Args:
        on_begin: called once with the directory when it becomes this run's.
        stalls: whether a call into a plugin may be ended after `run.stall_timeout_s`.

    Attributes:
        facts: what the result says besides what was measured; modes add to it before the end.
        run: the directory.
        observers: those that listen to the run, once they were opened.

    Raises:
        ConfigError, RunDirectoryError: see RunDirectory; ConfigError: no such tracker.
    """

    def __init__(self, config: Config, *, on_begin: OnBegin = lambda path: None, stalls: bool = True) -> None:
        self.config, self.settings = config, config.run
        self.facts: dict[str, Any] = {"mode": config.mode.name, "seed": config.seed}
        tracker = registry.build("tracker", config.tracker.name, config.tracker.options)
        self.run = RunDirectory(config.run.dir, overwrite=config.run.overwrite, on_begin=on_begin)
        self._tracked = TrackedRun(self.run, tracker)
        self._watchdog = Watchdog(
            stall_s=config.run.stall_timeout_s if stalls else None,
            timeout_s=config.run.timeout_s,
        )
        self._recorded = False
        self.observers: list[GuardedObserver] = []
        self._stack = ExitStack()

    def __enter__(self) -> Session:
        self._stack.enter_context(interrupts())
        self._stack.enter_context(self.run)
        self._stack.push(self._leave)
        self._stack.enter_context(self._watchdog)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    @property
    def in_sweep(self) -> bool:
        """Whether the run is a job of a sweep."""
        return (self.run.path / JOB).exists()

    def trial(self, *, record: bool = False) -> Trial:
        """The run's seed and faults, and who listens: the event log and the observers, each where it is asked for.

        Args:
            record: whether the engine keeps what a recording needs.

        Raises:
            ConfigError, PluginError: an observer that cannot be had, or not here.
        """
        config, run = self.config, self.run
        log = None
        if self.settings.events:
            log = lambda event, **facts: run.log(EVENTS, {"event": event, **facts})  # noqa: E731
        self.open_observers()
        observers = tuple(observer.plugin for observer in self.observers)
        return Trial(seed=config.seed, faults=config.faults, record=record, log=log, observers=observers)

    def open_observers(self) -> None:
        """Make the observers that the configuration names. They are closed with the session.

        Raises:
            ConfigError, PluginError: one that cannot be had, or not here.
        """
        view = RunView(config=self.config.plain(), write=self.run.log)
        shared = {"seed": self.config.seed}
        for entry in self.config.observers:
            observer = GuardedObserver(build_component("observer", entry, shared))
            self._stack.enter_context(closing(observer.plugin))
            observer.plugin.start(view)
            self.observers.append(observer)

    def observed(self, request: int) -> dict[str, Any]:
        """What the observers add to the row of a request that has ended."""
        return {key: value for observer in self.observers for key, value in observer.row(request).items()}

    def begin(self, device: str, components: str = "") -> dict[str, Any]:
        """All is read and can start: take over the directory, write what made the run, start the trackers.

        Args:
            components: what trackers call such runs; "": the names of allocator, policy, hash scheme and backend.

        Returns:
            the provenance, as `provenance.json` holds it.

        Raises:
            RunDirectoryError: nothing can be written here.
        """
        path = self.run.path
        checkout = checkout_state([path.parent if self.in_sweep else path])  # before its first file
        self.run.begin()
        origin = self._provenance(device, checkout)
        self.facts |= headline(origin)
        self.run.write_provenance(origin)
        components = components or "-".join(names_of(self.config, KINDS).values())
        group = self.run.path.parent.name if self.in_sweep else ""
        own = self.run.path.name.rpartition("-")[0] if self.in_sweep else components  # a job's: what varies comes first
        label = RunLabel(name=self.settings.name or own, group=group, job_type=components)
        self._tracked.start(masked(self.config.plain()), label)
        return origin

    def say_length(self, asked: int | None, needed: int | None, longest: int, advice: str) -> None:
        """Put the longest sequence into the result, and say on standard error where it is less than what is wanted.

        After `begin`; the jobs of a sweep say nothing, their results do.

        Args:
            asked: engine.max_model_len; needed: the workload's longest request, where it is known.
            longest: the longest sequence, tokens; advice: how to raise it.
        """
        self.facts["max_model_len"] = longest
        if asked is not None and asked > longest:
            self.facts["max_model_len_asked"] = asked
        what = "the workload's longest request of {asked} tokens"
        message = shortened(asked, longest, advice) or shortened(needed, longest, advice, what=what)
        if message and not self.in_sweep:
            complain(message)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`, and live numbers for the trackers."""
        self._tracked.log(step, metrics)

    def log_step(self, engine: Engine, named: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row) -> None:
        """The engine's last step, its times as `named`; of a long run every 100th from the 10,000th on."""
        step = engine.state.step_number
        if step < 10_000 or step % 100 == 0:
            self.log(step, named(engine.state.step_row()))

    def record(self, work: Callable[[], object], outcome: Callable[[bool], Mapping[str, Any]]) -> dict[str, Any]:
        """Do the work and write `result.json`, whatever becomes of it.

        Args:
            outcome: what was measured, asked once after the work with True; with False where the work, or that call,
                raised: then it gives what there is, quickly.

        Returns:
            what `result.json` holds; its status is "ok" where nothing went wrong.
        """

        def measure(complete: bool) -> dict[str, Any]:
            measured = dict(outcome(complete))
            for observer in self.observers:
                measured |= observer.results()
            return measured

        try:
            work()
            measured = measure(True)
        except BaseException as error:
            error = named(error)
            if not isinstance(error, KeyboardInterrupt):
                self.observers = []  # one of them may be what failed
            salvaged = self._salvage(measure)
            failure = self._failure(error)
            self._finish({**salvaged, **failure, "reasons": [*failure["reasons"], *salvaged.get("reasons", ())]})
            raise error
        return self._finish({"status": status_at_the_end({**self.facts, **measured}), **measured})

    def _finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        status = {"status": result["status"]}
        whole = {**status, **self.facts, **result}
        self._recorded = True
        self._tracked.finish(whole, failed=bool(what_went_wrong(whole)))
        return whole

    def _failure(self, error: BaseException) -> dict[str, Any]:
        error = self._watchdog.error or error
        if isinstance(error, KeyboardInterrupt):
            return {"status": "interrupted", "reasons": [f"interrupted by {describe(error)}"]}
        return {"status": "failed", "reasons": [sentence(error)]}

    def _salvage(self, outcome: Callable[[bool], Mapping[str, Any]]) -> dict[str, Any]:
        """What there is of a run that did not come to its end; a broken engine may not be able to say."""
        try:
            return dict(outcome(False))
        except Exception as error:
            return {"not_measured": sentence(error)}

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """At the end: a run that raised before it recorded anything leaves its reason, unless a result lies there."""
        if error is None or self._recorded or (self.run.holds_result and not self.run.begun):
            return
        with suppress(FrameworkError, OSError):  # the error that ended the run is the one to report
            self._finish(self._failure(named(error)))

    def _provenance(self, device: str, checkout: Mapping[str, Any]) -> dict[str, Any]:
        plain = self.config.plain()
        read = dict(identity.inputs(plain))
        path = read.pop("workload.path") if read.get("workload.path", Path()).is_file() else None
        return collect_provenance(
            components=identity.components(plain),
            seeds={"seed": self.facts["seed"]},
            device=device,
            inputs=[path] if path is not None else [],
            other_inputs={f"{key}={path}": identity.digest_of(path) for key, path in read.items()},
            checkout=checkout,
        )


def names_of(config: Config, groups: tuple[str, ...]) -> dict[str, str]:
    """Group -> the chosen component's name."""
    return {group: choice.name for group, choice in config.choices().items() if group in groups}
