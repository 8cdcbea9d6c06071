"""`python -m framework plugins`: everything installed in a line each, whether it loads, where it can run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_line import command

from framework import registry
from framework_testing.installed import SPEC, installed

main = command("plugins")

BACKEND = '''
from framework.interfaces.backend import AttentionBackend, Capabilities

class Moon(AttentionBackend):
    """Runs on the moon."""
    capabilities = Capabilities(dtypes=frozenset({"float16"}), devices=frozenset({"moon"}))
    def attend(self, q, pool, batch, out, *, lse=None): ...

class Shy(Moon):
    """Will not say."""
    def check(self, spec, device):
        raise OSError("libmoon.so.1: cannot open shared object file")
'''


def test_every_plugin_of_ours_loads_and_says_what_it_is() -> None:
    found = [entry for entry in installed(device="cpu") if entry.distribution == "kvcache-framework"]
    assert {entry.kind for entry in found} >= set(registry.groups()), "of other kinds the packages may be deleted"
    assert [entry for entry in found if entry.error or entry.summary == "-"] == []
    assert {entry.name: entry.reasons for entry in found if entry.kind == "backend"}["torch"] == ()


def test_a_backend_says_why_it_cannot_run_here(distribution: Any) -> None:
    distribution(
        "moon", "[framework.backend]\nmoon = moon_backend:Moon\nshy = moon_backend:Shy\n", moon_backend=BACKEND
    )
    found = {entry.name: entry for entry in installed("backend", device="cpu")}
    assert found["moon"].verdict == (
        "not on cpu: device cpu is not supported; supported: moon; "
        f"dtype {SPEC.dtype} is not supported; supported: float16"
    )
    assert found["shy"].reasons == (
        "moon 1.5: attention backend Shy.check: raised OSError('libmoon.so.1: cannot open shared object file')",
    )


def test_what_does_not_load_is_a_line_and_spoils_no_other(distribution: Any, capsys: Any) -> None:
    distribution("broken", "[framework.hash]\nbroken = broken_import:X\n", broken_import="import not_there_at_all")
    distribution("first", "[framework.hash]\ntwin = twin_one:X\n", twin_one="")
    distribution("second", "[framework.hash]\ntwin = twin_two:X\n", twin_two="")
    assert main(["--kind", "hash", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = {(entry["name"], entry["distribution"]): entry["verdict"] for entry in found}
    assert "No module named 'not_there_at_all'" in verdicts["broken", "broken"]
    for twin in ("first", "second"):
        assert "has no attribute 'X'" in verdicts[f"{twin}:twin", twin]
    assert verdicts["sha256", "kvcache-framework"] == "ok"


def test_the_table_fits_80_columns_and_says_what_each_is_and_whose(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--kind", "backend", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80, out
    words = " ".join(out.split())
    for plugin in registry.entries("backend"):
        owner = f" [{plugin.distribution} {plugin.version}]" if not plugin.is_built_in else ""
        assert f"{plugin.name} {registry.read_source(plugin).summary}{owner}" in words, out
    assert "varlen One call" in words
    assert "not on cpu: device cpu is not supported" in words
    assert "eviction" not in out
