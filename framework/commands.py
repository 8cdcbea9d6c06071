"""The installed commands, by name."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence

from framework import registry
from framework.errors import ConfigError, did_you_mean, listing
from framework.interfaces.command import Command
from framework.registry.components import build
from framework.registry.culprit import raise_named

RUN = "run"
"""The one command that is no plugin, since its words are Hydra's: see `framework.run`."""


def run_command(name: str, words: Sequence[str]) -> int:
    """Run one installed command; its exit status.

    Raises:
        ConfigError: no such command. And what the command raises.
    """
    names = registry.names("command")
    if name not in names and ":" not in name:
        raise ConfigError(f"no command {name!r}; commands: {listing([RUN, *names])}{did_you_mean(name, [RUN, *names])}")
    made: Command = build("command", name)
    parser = argparse.ArgumentParser(
        prog=f"python -m framework {name}",
        description=inspect.getdoc(made),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    try:
        made.add_arguments(parser)
        return made.run(made.parse(parser, words))
    except BaseException as error:
        raise_named(error)


def usage() -> str:
    """What `python -m framework --help` prints."""
    rows = {
        RUN: "Serve a workload, replay a trace, or what else mode=NAME does; `python -m framework.run` is the same."
    }
    for plugin in registry.entries("command"):
        rows[registry.choice(plugin)] = registry.read_source(plugin).summary or "-"
    width = max(map(len, rows))
    listed = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in rows.items())
    return f"usage: python -m framework COMMAND ...; COMMAND --help says what it takes\n\n{listed}\n"
