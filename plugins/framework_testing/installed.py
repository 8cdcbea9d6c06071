"""`python -m framework plugins`: what is installed, whether it loads, and which backends can run here.

A plugin that does not load is a line, not a failure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from framework import registry
from framework.errors import FrameworkError, plugin_note
from framework.guard.backend import GuardedBackend
from framework.guard.boundary import construct
from framework.interfaces.backend import AttentionSpec
from framework.interfaces.command import Command
from framework.registry.culprit import named

SPEC = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, dtype="float32", block_size=16)
"""The attention that a backend is asked about: Llama-3-8B's heads in float32, blocks of 16 tokens."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One installed plugin.

    Attributes:
        name: the word that chooses it: `DISTRIBUTION:NAME` where the name alone is another's.
        summary: first sentence of its class's docstring, read without importing it; "-" where there is none.
        error: why it does not load; empty when it does.
        device: the device a backend was asked about; None for other kinds, and when it does not load.
        reasons: why that backend cannot run there.
    """

    kind: str
    name: str
    distribution: str
    version: str
    value: str
    summary: str
    error: str = ""
    device: str | None = None
    reasons: tuple[str, ...] = ()
    is_built_in: bool = False

    @property
    def verdict(self) -> str:
        """ "ok", or what is wrong, in a sentence."""
        if self.error:
            return self.error
        return f"not on {self.device}: " + "; ".join(self.reasons) if self.reasons else "ok"


def installed(kind: str | None = None, *, device: str | None = None) -> list[Entry]:
    """Every installed plugin of this kind, or of all, each loaded to see whether it can be.

    Args:
        kind: of `registry.kinds()`; None for all.
        device: where backends would run; default "cuda" where there is one, else "cpu".

    Raises:
        ConfigError: no such kind.
    """
    kinds = registry.kinds() if kind is None else (kind,)
    return [_entry(plugin, device) for kind in kinds for plugin in registry.entries(kind)]


def _entry(plugin: registry.Plugin, device: str | None) -> Entry:
    name = registry.choice(plugin)
    facts: dict[str, Any] = {**asdict(plugin), "name": name, "summary": registry.read_source(plugin).summary or "-",
                             "is_built_in": plugin.is_built_in}  # fmt: skip
    try:
        cls = registry.load(plugin.kind, name)
    except FrameworkError as error:
        return Entry(**facts, error=f"{type(error).__name__}: {error}")
    if plugin.kind != "backend":
        return Entry(**facts)
    import torch

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        reasons = tuple(GuardedBackend(construct(plugin.kind, plugin.name, cls, {})).check(SPEC, where))
    except Exception as error:  # of a check that raises: a reason too
        reasons = (plugin_note(named(error)) or str(error),)
    return Entry(**facts, device=where, reasons=reasons)


class Plugins(Command):
    """List what is installed, whether it loads, and which backends can run here."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kind", help="only one of: " + ", ".join(registry.kinds()))
        parser.add_argument(
            "--device", help='where backends would run: "cpu", "cuda", "cuda:1"; default: the best here'
        )
        parser.add_argument("--json", action="store_true", help="a list of objects, for programs")

    def run(self, options: argparse.Namespace) -> int:
        entries = installed(options.kind, device=options.device)
        if options.json:
            print(json.dumps([{**asdict(entry), "verdict": entry.verdict} for entry in entries], indent=2))  # noqa: T201
        else:
            _print(entries)
        return 0


def _print(entries: Sequence[Entry]) -> None:
    """One table a kind: name, what it is and, where something is in the way, what; readable at 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widest = max((len(word) for entry in entries for word in (entry.name, entry.kind)), default=0)
    built_in = next((f"{e.distribution} {e.version}" for e in entries if e.is_built_in), "")
    for kind in dict.fromkeys(entry.kind for entry in entries):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        table.add_column(kind, width=min(widest, 24), overflow="fold")
        table.add_column(f"what it is ({built_in}, or as said)" if built_in else "what it is", ratio=1, overflow="fold")
        for entry in (entry for entry in entries if entry.kind == kind):
            style = "" if entry.verdict == "ok" else ("red" if entry.error else "yellow")
            text = Text(entry.summary)
            if not entry.is_built_in:
                text.append(f" [{entry.distribution} {entry.version}]", style="dim")
            if entry.verdict != "ok":
                text.append(f"\n{entry.verdict}", style=style)
            table.add_row(Text(entry.name, style=style), text)
        console.print(table)
