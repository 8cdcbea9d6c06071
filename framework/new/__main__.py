"""The command line of `framework.new`. Exit status: 0 written, 2 refused with one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from framework import registry
from framework.cli.exit import command, exit_with
from framework.new import create, usage


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write a package; 0, or 2 with one sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m framework.new", description="Write a package with one plugin, its tests and its entry point."
    )
    parser.add_argument("name", help="of the distribution, the module and the plugin, such as my-policy")
    parser.add_argument("--kind", required=True, help="one of: " + ", ".join(registry.kinds()))
    parser.add_argument("--dir", default=".", help="where its directory is made; default: here")
    options = parser.parse_args(arguments)
    place = create(options.name, options.kind, options.dir)
    plugin = options.name.replace("-", "_")
    print(  # noqa: T201
        f"wrote {place}; next:\n"
        f"  pip install -e {place}\n"
        f"  python -m framework.check {plugin} --kind {options.kind}\n"
        f"  {usage(options.kind, plugin)}\n"
        f"The idea is in {place / plugin / options.kind}.py."
    )
    return 0


if __name__ == "__main__":
    exit_with(main)
