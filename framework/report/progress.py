"""A bar for runs long enough to want one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.engine.engine import Engine


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
                rows=engine.scheduler.rows.num_active,
            )

        yield tick
