"""The text of `--help`: every installed plugin with its options, every group, every setting. Imports no plugin."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from framework import registry
from framework.config.config import SECTIONS, Config, default_choices, defaults_of, options_of
from framework.registry.sources import first_sentence
from framework.validation import Options

_USAGE = """\
usage: python -m framework.run [OVERRIDE ...] [--multirun] [--cfg job] [--help]

Serves a workload through a paged KV cache, replays traces, or measures kernels,
with the components you choose. With or without a leading +, a choice means the
same.

  python -m framework.run                     serve the default chat workload
  python -m framework.run +allocator=prefix +backend=triton   choose components
  python -m framework.run +allocator=prefix +allocator.watermark=0.02
  python -m framework.run eviction=FILE.py:CLASS       a class of your own
  python -m framework.run cache.num_blocks=512 cache.block_size=8
  python -m framework.run model=PATH_OR_HUB_ID workload=FILE
  python -m framework.run -m '+allocator=glob(*)' +eviction=lru,fifo    a sweep
  python -m framework.run +allocator=prefix --cfg job   print the configuration
"""
_FOOT = """\
Overrides: https://hydra.cc/docs/1.3/advanced/override_grammar/basic
Tab completion: eval "$(kvcache-framework -sc install=bash)"
--hydra-help: Hydra's own options; HYDRA_FULL_ERROR=1: tracebacks
Exit status: 0 done, 1 a run failed, 2 invalid command, configuration or input,
130, 143, 129 interrupted by Ctrl-C, SIGTERM, SIGHUP
"""


def help_text() -> str:
    """Usage, plugins with their options, groups with theirs, settings, as wide as the terminal; `*` marks a default."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    defaults = default_choices()
    parts = [_USAGE]
    parts.extend(_plugins(kind, defaults.get(kind), width) for kind in registry.kinds())
    parts.append(_groups(defaults, width))
    parts.append(_settings(width))
    parts.append(_FOOT)
    return "\n".join(parts)


def _plugins(kind: str, default: str | None, width: int) -> str:
    installed = registry.entries(kind)
    if not installed:
        return f"{kind}: none installed; in the checkout, run `pip install -e .`\n"
    names = [registry.choice(plugin) for plugin in installed]
    column = min(max(map(len, names)), 24)
    lines = []
    for plugin, name in zip(installed, names, strict=True):
        source = registry.read_source(plugin)
        owner = "" if plugin.is_built_in else f" ({plugin.distribution} {plugin.version})"
        mark = "*" if name == default else " "
        lines.append(_row(f"{mark} {name:<{column}}", f"{source.summary or '-'}{owner}", width))
        if source.options:
            lines.append(_row(" " * (column + 2), f"options: {', '.join(source.options)}", width))
    chosen = f"{kind}=NAME, options {kind}.OPTION=VALUE"
    if kind not in registry.groups():
        chosen = f"{kind}, chosen by {registry.kind_of(kind).chosen.format(kind=kind, name='NAME')}"
    return "\n".join([f"{chosen}:", *lines, ""])


def _groups(defaults: dict[str, str | None], width: int) -> str:
    lines = ["other groups (* default):"]
    for group, default in defaults.items():
        if group in registry.groups():
            continue
        options = [f"*{name}" if name == default else name for name in options_of(group)]
        lines.append(_row(f"  {group + '=':<12}", ", ".join(options) or "none yet", width))
    return "\n".join([*lines, ""])


def _settings(width: int) -> str:
    """Every setting as KEY=DEFAULT, with what it means."""
    lines = ["settings, with their defaults:"]
    sections: tuple[type[Options], ...] = (Config, *SECTIONS.values())
    for section in sections:
        if section.section:
            lines.append(_row(f"  {section.section}:", first_sentence(section.__doc__ or ""), width))
        for name, default in defaults_of(section).items():
            if name not in SECTIONS:
                key = f"{section.section}.{name}".lstrip(".")
                meaning = section.model_fields[name].description or ""
                lines.append(_row(f"    {f'{key}={_shown(default)}':<30}", meaning, width))
    return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    """A default as the command line writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{','.join(map(_shown, value))}]" if isinstance(value, list) else str(value)


def _row(head: str, text: str, width: int) -> str:
    """A word and its meaning, wrapped beside it; below it where the word is too long for its column."""
    indent = " " * (len(head) + 2)
    if len(head.rstrip()) != len(head) or len(head) <= 34:
        return textwrap.fill(text, width, initial_indent=f"{head}  ", subsequent_indent=indent, break_on_hyphens=False)
    below = " " * 36
    return f"{head}\n" + textwrap.fill(text, width, initial_indent=below, subsequent_indent=below)
