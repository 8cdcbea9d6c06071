"""Progress on standard error of runs long enough to want it: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.engine.engine import Engine
    from framework.sweep.job import Outcome


@contextmanager
def _bar(what: str, text: str, *, total: int | None = None, **fields: Any) -> Iterator[Callable[..., None]]:
    """A bar of `completed` of `total`, with `text`, a format of the fields; nothing where there is no terminal.

    Yields:
        its update, of `completed`, or of how much to `advance`, and of the fields.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(text), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, **fields)
        yield lambda **changed: bar.update(task, **changed)


@contextmanager
def request_progress(engine: Engine) -> Iterator[Callable[[], None]]:
    """A bar over the engine's open requests, with tokens and rows."""
    total = engine.num_unfinished
    with _bar("requests", "{task.fields[tokens]} tokens, {task.fields[rows]} running", total=total, tokens=0,
              rows=0) as update:  # fmt: skip

        def tick() -> None:
            done, rows = total - engine.num_unfinished, engine.state.rows.num_active
            update(completed=done, tokens=engine.metrics.num_output_tokens, rows=rows)

        yield tick


@contextmanager
def replay_progress(*, enabled: bool) -> Iterator[Callable[[Engine], None]]:
    """A count of ended requests and computed tokens."""
    if not (enabled and sys.stderr.isatty()):
        yield lambda engine: None
        return
    with _bar("requests", "{task.fields[tokens]:,} tokens", tokens=0) as update:

        def tick(engine: Engine) -> None:
            if engine.state.step_number % 64 == 0:
                done = sum(engine.metrics.statuses.values())
                update(completed=done, tokens=engine.metrics.num_scheduled_tokens)

        yield tick


@contextmanager
def reference_progress(total: int, *, enabled: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar over block references, by how many more were replayed."""
    if not enabled:
        yield lambda references: None
        return
    with _bar("references", "", total=total) as update:
        yield lambda references: update(advance=references)


@contextmanager
def sweep_progress(total: int, done: int, *, enabled: bool) -> Iterator[Callable[[Outcome], None]]:
    """What becomes of a sweep's jobs: a bar on a terminal, else a line a job.

    Args:
        done: how many of `total` were done before; they are said first and not reported again.
    """
    if not enabled:
        yield lambda outcome: None
        return
    if done:
        print(f"{done} of {total} done before", file=sys.stderr, flush=True)  # noqa: T201
    states: Counter[str] = Counter()
    with _bar("jobs", "{task.fields[states]}", total=total, completed=done, states="") as update:

        def tick(outcome: Outcome) -> None:
            states[outcome.state] += 1
            update(advance=1, states=", ".join(f"{count} {state}" for state, count in sorted(states.items())))
            if not sys.stderr.isatty():
                took = "" if outcome.took_s is None else f", {outcome.took_s:.1f} s"
                name = "" if outcome.directory is None else f": {Path(outcome.directory).name}"
                number = done + states.total()
                print(f"{number} of {total} {outcome.state}{took}{name}", file=sys.stderr, flush=True)  # noqa: T201

        yield tick
