"""`python -m framework NAME ...`: every installed command. Exit status: see `framework.cli.exit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from framework.cli.exit import command, exit_with
from framework.commands import RUN, run_command, usage


@command
def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; its exit status."""
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name in ("--help", "-h"):
        print(usage(), end="")  # noqa: T201
        return 0
    if name == RUN:
        from framework.run import call

        return call(rest)
    return run_command(name, rest)


if __name__ == "__main__":
    exit_with(main)
