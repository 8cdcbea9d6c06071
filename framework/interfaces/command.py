"""Commands: what `python -m framework NAME` does."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence

__all__ = ["Command"]


class Command(ABC):
    """One command, `python -m framework NAME ARGUMENTS`. Its docstring is the text of `--help`.

    A FrameworkError that `run` raises ends as one sentence on standard error and the exit status of its class; what
    is raised besides is an internal error, with status 1. The constructor takes nothing.
    """

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what the command takes; `parser` has its name and description already."""

    @abstractmethod
    def run(self, options: argparse.Namespace) -> int:
        """Do it; the exit status: 0 done, 1 something failed, 2 the request cannot be met."""

    def parse(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
        """The options of a command line, by `parser`; an override may read words in another order."""
        return parser.parse_args(words)
