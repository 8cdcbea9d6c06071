"""Conformance kit of observers: any engine can be listened to, and none is changed by it.

`observer_checks` are plain functions `check(make)`; `make()` builds a fresh observer. Each listens to a small engine
without a model: prompts that share prefixes, samples, beams and preemptions over a pool that evicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framework.config.sections import EngineOptions, FaultOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.files.jsonl import dump_line
from framework.guard.observer import GuardedObserver
from framework.interfaces.observer import Observer, RunView
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework_testing.driver import Violation
from framework_testing.rules import blamed, checks_of, need

Make = Callable[[], Observer]

CONFIG: Mapping[str, Any] = {
    "mode": "replay", "executor": "none", "seed": 0, "cache": {"block_size": 4, "num_blocks": 24},
    "eviction": {"name": "lru"}, "allocator": {"name": "prefix_cow"},
}  # fmt: skip
Line = tuple[str, Mapping[str, Any]]
_MOST_STEPS = 1000


def _engine(*observers: Observer) -> tuple[Engine, list[Line]]:
    log: list[Line] = []
    engine = Engine(
        _allocator(), ReplayExecutor(constant_step(1.0)), limits=ModelLimits(max_model_len=64),
        options=EngineOptions(max_batch_tokens=32, max_batch_requests=6, chunk_size=16), virtual_clock=True,
        trial=Trial(faults=FaultOptions(preempt_every=5), log=lambda event, **facts: log.append((event, facts)),
                    observers=observers),
    )  # fmt: skip
    return engine, log


def _allocator() -> Any:
    return build_allocator("prefix_cow", "lru", "xxh64", num_blocks=24, block_size=4, max_model_len=64)


def _serve(engine: Engine) -> None:
    for number in range(12):
        prompt = [*range(8 + number % 3), 100 + number]
        samples, beams = 1 + (number % 4 == 1), 1 + (number % 4 == 3)
        sampling = Sampling(max_tokens=6, ignore_eos=True, temperature=float(samples > 1), n=samples, beam_width=beams)
        engine.submit(prompt, sampling)
    for _ in range(_MOST_STEPS):
        if not engine.num_unfinished:
            return
        engine.step()
    raise Violation(f"an engine that ends in fewer steps was still at work after {_MOST_STEPS}")


def _listened(observer: Observer, *, reset: bool = False) -> tuple[Mapping[str, Any], list[Line], list[str]]:
    """A whole run: its results, its log, and the names of the files that were written."""
    files: list[str] = []

    def write(file: str, record: Mapping[str, Any]) -> None:
        dump_line(record)
        files.append(file)

    guarded = GuardedObserver(observer)
    with blamed(observer):
        observer.start(RunView(config=CONFIG, write=write))
        engine, log = _engine(observer)
        _serve(engine)
        if reset:
            engine.reset(_allocator())
            _serve(engine)
        for request in range(12):
            dump_line(guarded.row(request))
        results = guarded.results()
        observer.close()
        observer.close()
    return results, log, files


def check_it_changes_nothing_of_what_it_is_given(make: Make) -> None:
    """The engine does the same, step by step and block by block, with the observer and without."""
    engine, plain = _engine()
    _serve(engine)
    observer = make()
    _, log, _ = _listened(observer)
    need(observer, log == plain, "changed what the engine does: its log differs from that of a run without it")


def check_it_goes_on_after_a_reset(make: Make) -> None:
    """An engine that is reset begins anew, with an empty cache; the observer goes on."""
    _listened(make(), reset=True)


def check_a_run_that_never_began_has_an_end(make: Make) -> None:
    """A run may fail before its engine is made: `results` and `close` raise nothing then."""
    observer = make()
    with blamed(observer):
        observer.start(RunView(config=CONFIG, write=lambda file, record: None))
        GuardedObserver(observer).results()
        observer.close()


def check_its_results_and_files_are_declared(make: Make) -> None:
    """What it says is declared in `metrics`, and what it writes in `files`."""
    observer = make()
    results, _, files = _listened(observer)
    dump_line(results)
    unknown = results.keys() - {metric.key for metric in observer.metrics}
    need(observer, not unknown, "gives results that its `metrics` do not declare", sorted(unknown))
    need(observer, {*files} <= {*observer.files}, "writes files that its `files` do not name", sorted({*files}))


observer_checks = checks_of(globals())
