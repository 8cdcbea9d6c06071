"""`--help`, `--version`, tab completion, and what is not imported for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework import registry
from framework.config.config import SECTIONS, defaults_of

LINES = [
    ("kvcache-framework +alloc", ["+allocator.", "+allocator="]),
    ("kvcache-framework allocator=pref", ["allocator=prefix", "allocator=prefix_cow"]),
    ("kvcache-framework ++allocator=pref", ["++allocator=prefix", "++allocator=prefix_cow"]),
    ("kvcache-framework +allocator=pref", ["+allocator=prefix", "+allocator=prefix_cow"]),
    ("kvcache-framework backend=gather +allocator=prefix +allocator.water", ["+allocator.watermark="]),
    ("kvcache-framework +allocator=nope cache.num", []),
    ("kvcache-framework cache.num", ["cache.num_blocks="]),
    ("kvcache-framework model=ti", ["model=tiny"]),
]


@pytest.mark.parametrize("width", [80, 120])
def test_help_lists_every_plugin_with_its_sentence_and_options_and_every_setting(
    width: int, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, err = command("--help")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(out.split())
    for kind in registry.kinds():
        for plugin in registry.entries(kind):
            # One name may be of several kinds: `native` is an allocator and a backend.
            owner = "" if plugin.is_built_in else f" ({plugin.distribution} {plugin.version})"
            found = registry.read_source(plugin).options
            options = f" options: {', '.join(found)}" if found else ""
            assert " ".join(f"{plugin.name} {registry.read_source(plugin).summary}{owner}{options}".split()) in words, (
                plugin
            )
    for group in ("model", "workload", "tracker", "experiment"):
        assert f"{group}=" in out, out
    for section in SECTIONS.values():
        for name in defaults_of(section):
            assert f"{section.section}.{name}" in words, name
            assert str(section.model_fields[name].description) in words, name


def test_help_works_beside_other_words(command: Any) -> None:
    assert command("allocator=zzz", "-h")[0] == 0


def test_version_is_ours(command: Any) -> None:
    status, out, _ = command("--version")
    assert (status, out.split()[0]) == (0, "kvcache-framework")


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_completion_keeps_the_users_spelling(
    line: str, expected: list[str], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    status, out, err = command("-sc", "query=bash")
    assert (status, err) == (0, "")
    assert out.split() == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_installed_script(elsewhere: Path) -> None:
    line = "kvcache-framework +eviction=lr"
    shell = f"""
    eval "$(kvcache-framework -sc install=bash)"
    COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({line}) COMP_CWORD=1
    hydra_bash_completion
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, cwd=elsewhere, env=environment, check=True
    )
    assert "+eviction=lru" in done.stdout.split(), done


def test_help_loads_no_torch_hydra_or_plugin_and_a_configuration_is_shown_without_torch(
    elsewhere: Path,
) -> None:
    code = """
import sys
import framework
first = {"torch", "hydra", "omegaconf", "triton"} & set(sys.modules)
from framework.run import call
assert call(["--help"]) == 0
loaded = {"torch", "hydra", "omegaconf", "triton", "numpy"} & set(sys.modules)
ours = ("framework_builtin.", "framework_torch.", "framework_triton.", "framework_workloads.")
plugins = [name for name in sys.modules if name.startswith(ours) and name != "framework_workloads.kinds"]
assert not (first or loaded or plugins), (first, loaded, plugins)
assert call(["--cfg", "job", "+allocator=prefix"]) == 0
assert call(["--cfg", "job", "+allocator=prefix", "backend=gather"]) == 0
assert "torch" not in sys.modules, "torch was imported to show a configuration"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=elsewhere, check=False)
    assert done.returncode == 0, done.stderr


def test_what_hydra_refuses_while_it_shows_its_own_is_a_sentence(elsewhere: Path) -> None:
    # A process of its own: Hydra's --info turns its debug log on.
    command = [sys.executable, "-m", "framework.run", "--info", "config", "cache.blocksize=8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.partition(":")[0]) == (2, "ConfigError"), done.stderr
    assert "unknown key 'cache.blocksize'" in last, last
