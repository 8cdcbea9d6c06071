"""`python -m framework new NAME --kind KIND`: the command line."""

from __future__ import annotations

import argparse

from framework.interfaces.command import Command
from framework_testing.new import create, kinds, usage


class New(Command):
    """Write a package with one plugin, its tests and its entry point."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="of the distribution, the module and the plugin, such as my-policy")
        parser.add_argument("--kind", required=True, help="one of: " + ", ".join(kinds()))
        parser.add_argument("--dir", default=".", help="where its directory is made; default: here")

    def run(self, options: argparse.Namespace) -> int:
        place = create(options.name, options.kind, options.dir)
        plugin = options.name.replace("-", "_")
        print(  # noqa: T201
            f"wrote {place}; next:\n"
            f"  pip install -e {place}\n"
            f"  python -m framework check {plugin} --kind {options.kind}\n"
            f"  {usage(options.kind, plugin)}\n"
            f"The idea is in {place / plugin / options.kind}.py."
        )
        return 0
