"""A bar for runs long enough to want one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.engine.engine import Engine
    from framework.sweep.job import Outcome


@contextmanager
def request_progress(engine: Engine) -> Iterator[Callable[[], None]]:
    """A bar over the engine's open requests on standard error, with tokens and rows; nothing when not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    total = engine.num_unfinished
    columns = (
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens, {task.fields[rows]} running"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("serve", total=total, tokens=0, rows=0)

        def tick() -> None:
            bar.update(
                task,
                completed=total - engine.num_unfinished,
                tokens=engine.metrics.num_output_tokens,
                rows=engine.state.rows.num_active,
            )

        yield tick


@contextmanager
def replay_progress(*, enabled: bool) -> Iterator[Callable[[Engine], None]]:
    """A counter of ended requests and computed tokens with their rate, on standard error; nothing if no terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} requests, {task.fields[tokens]:,} tokens, {task.speed:,.0f} requests/s"),
        TimeElapsedColumn(),
    )
    if not (enabled and console.is_terminal):
        yield lambda engine: None
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=None, tokens=0)

        def tick(engine: Engine) -> None:
            if engine.state.step_number % 64 == 0:
                done = sum(engine.metrics.statuses.values())
                bar.update(task, completed=done, tokens=engine.metrics.num_scheduled_tokens)

        yield tick


@contextmanager
def sweep_progress(total: int, done: int, *, enabled: bool) -> Iterator[Callable[[Outcome], None]]:
    """What becomes of a sweep's jobs, on standard error: a bar on a terminal, else a line a job.

    Args:
        done: how many of `total` were done before; they are said first and not reported again.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not enabled:
        yield lambda outcome: None
        return
    if done:
        print(f"{done} of {total} done before", file=sys.stderr, flush=True)  # noqa: T201
    if not console.is_terminal:
        yield _sweep_lines(total, done)
        return
    columns = (
        TextColumn("jobs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[states]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    states: Counter[str] = Counter()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sweep", total=total, completed=done, states="")

        def tick(outcome: Outcome) -> None:
            states[outcome.state] += 1
            bar.update(task, advance=1, states=", ".join(f"{count} {state}" for state, count in sorted(states.items())))

        yield tick


def _sweep_lines(total: int, done: int) -> Callable[[Outcome], None]:
    """A line a job: how many have ended, how this one did, its seconds and its folder."""
    number = done

    def tick(outcome: Outcome) -> None:
        nonlocal number
        number += 1
        took = "" if outcome.took_s is None else f", {outcome.took_s:.1f} s"
        name = "" if outcome.directory is None else f": {Path(outcome.directory).name}"
        print(f"{number} of {total} {outcome.state}{took}{name}", file=sys.stderr, flush=True)  # noqa: T201

    return tick


@contextmanager
def cell_progress(*, enabled: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A line a cell of a kernel grid, on standard error, as it is known; terminal or not."""

    def tick(row: Mapping[str, Any]) -> None:
        if enabled:
            found = f"{row['time_s'] * 1e6:,.1f} us" if row.get("time_s") else "; ".join(row.get("reasons") or ())[:160]
            print(f"{row['cell']}: {row['status']} {found}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201

    yield tick
