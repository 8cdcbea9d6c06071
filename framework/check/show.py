"""How a check's findings look on a terminal."""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from framework.check.costs import UNITS, Cost
from framework.check.subject import Subject
from framework.check.verdicts import Verdict, verdicts
from framework.errors import FrameworkError

_STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


class Report:
    """Prints as it goes; with `quiet`, nothing."""

    def __init__(self, subject: Subject, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._subject = subject
        self._console = Console(highlight=False, quiet=quiet)
        if not self._console.is_terminal:
            self._console.width = max(self._console.width, 100)

    def verdicts(self, **options: Any) -> list[Verdict]:
        """Run the kit; a table of verdicts, then every failure in full."""
        found: list[Verdict] = []
        with self._console.status("checking") as status:
            for verdict in verdicts(self._subject, **options):
                found.append(verdict)
                status.update(f"checking: {len(found)} done, {verdict.check}")
        self._table(found)
        for verdict in found:
            if verdict.status == "failed":
                self._failure(verdict)
        return found

    def _table(self, found: Sequence[Verdict]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("check", ratio=4)
        table.add_column("verdict", no_wrap=True)
        table.add_column("s", justify="right", no_wrap=True)
        for verdict in found:
            check = Text(verdict.check)
            if verdict.status == "skipped":
                check.append(f" ({verdict.text})", style="dim")
            table.add_row(check, Text(verdict.status, style=_STYLES[verdict.status]), f"{verdict.seconds:.2f}")
        self._console.print(Text(self._subject.title, style="bold"))
        self._console.print(table)
        counts: Counter[str] = Counter(verdict.status for verdict in found)
        self._line(", ".join(f"{counts[status]} {status}" for status in _STYLES if counts[status]), "bold")

    def _failure(self, verdict: Verdict) -> None:
        self._line(f"\nFAILED {verdict.check}", "bold red")
        if verdict.rule:
            self._line(f"rule: {verdict.rule}")
        self._line(verdict.text)

    def costs(self, measure: Callable[[], list[Cost]]) -> list[Cost]:
        """Measure and print; a device that the plugin cannot run on is a line, not an error."""
        try:
            with self._console.status("measuring"):
                found = measure()
        except unittest.SkipTest as reason:
            self._line(f"\nno cost measured: {reason}")
            return []
        except FrameworkError:
            raise
        except Exception as error:
            self._line(f"\nno cost measured: {type(error).__name__}: {error}")
            return []
        self._cost_table(found)
        return found

    def _cost_table(self, found: Sequence[Cost]) -> None:
        from rich import box
        from rich.table import Table

        if not found:
            return
        columns = list(dict.fromkeys(column for cost in found for column in cost.numbers))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("cost", overflow="fold")
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for cost in found:
            table.add_row(cost.name, *(_number(cost.numbers[column]) if cost.numbers else "-" for column in columns))
        self._console.print(table)
        self._line(UNITS[self._subject.kind], "dim")
        for cost in found:
            if cost.error:
                self._line(f"{cost.name} was not measured: {cost.error}", "red")

    def _line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=True)


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
