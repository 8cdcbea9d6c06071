"""What can be chosen? The text of `--help`: every installed plugin, every group. Imports no plugin and no Hydra."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from framework import registry
from framework.config.defaults import conf_folder, default_choices, options_of

_USAGE = """\
usage: python -m framework.run [OVERRIDE ...] [--multirun] [--cfg job] [--help]

Serves a workload through a paged KV cache, replays traces, or measures kernels, with the components you choose.
With or without a leading +, a choice means the same.

  python -m framework.run                                          serve the default chat workload
  python -m framework.run +allocator=prefix +backend=triton        choose components
  python -m framework.run +allocator=prefix +allocator.watermark=0.02
  python -m framework.run cache.num_blocks=512 cache.block_size=8  set what components share
  python -m framework.run model=PATH_OR_HUB_ID workload=FILE       your checkpoint, your prompts
  python -m framework.run -m '+allocator=glob(*)' +eviction=lru,fifo
  python -m framework.run +allocator=prefix --cfg job              print the configuration; run nothing
"""
_FOOT = """\
Overrides: https://hydra.cc/docs/1.3/advanced/override_grammar/basic  --hydra-help: Hydra's own options
Tab completion: eval "$(kvcache-framework -sc install=bash)"           HYDRA_FULL_ERROR=1: tracebacks
"""


def help_text() -> str:
    """Usage, plugins with distribution and first docstring line, groups with their options; `*` marks a default."""
    folder = conf_folder()
    defaults = default_choices(folder)
    parts = [_USAGE]
    parts.extend(_plugins(kind, defaults.get(kind)) for kind in registry.kinds())
    parts.append(_groups(folder, defaults))
    parts.append(_FOOT)
    return "\n".join(parts)


def _plugins(kind: str, default: str | None) -> str:
    rows = [
        (
            f"{'*' if registry.choice(plugin) == default else ' '} {registry.choice(plugin)}",
            f"{plugin.distribution} {plugin.version}",
            registry.summary(plugin),
        )
        for plugin in registry.entries(kind)
    ]
    if not rows:
        return f"{kind}: none installed; in the checkout, run `pip install -e .`\n"
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {owner:<{widths[1]}}  {line}" for name, owner, line in rows]
    return "\n".join([f"{kind}:", *lines, ""])


def _groups(folder: Path, defaults: dict[str, str | None]) -> str:
    lines = ["groups (* default):"]
    for group, default in defaults.items():
        if group in registry.groups():
            continue
        options = [f"*{name}" if name == default else name for name in options_of(group, folder)]
        lines.append(f"  {group + ':':<12}{', '.join(options) or 'none yet'}")
    return "\n".join([*lines, ""])


def version_text() -> str:
    """`kvcache-framework 0.1.0`."""
    return f"kvcache-framework {importlib.metadata.version('kvcache-framework')}"
