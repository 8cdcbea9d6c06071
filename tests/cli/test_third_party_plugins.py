"""A third-party plugin needs one class and one entry point; a broken one is named and harms no other run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from framework import registry
from framework.config.hydra.compose import compose
from framework.errors import DuplicatePlugin, FrameworkError, PluginError, PluginImportError, UnknownPlugin

HASH = '''
from typing import Literal
from framework.interfaces.hash import DigestScheme

class Acme(DigestScheme):
    """Acme's digest, four bytes.

    More."""

    def __init__(self, *, rounds: int, mix: Literal["fast", "good"] = "good", weights: tuple[float, ...] = (1.0, 2.0),
                 label: "NotDefinedAnywhere" = None, block_size: int = 0) -> None:
        if rounds < 0:
            raise RuntimeError("rounds below zero\\nand more")
        self.rounds, self.mix, self.weights, self.block_size = rounds, mix, weights, block_size

    def digest(self, data: bytes) -> bytes:
        return data[:4]
'''
ENTRY = """
[framework.hash]
acme = acme_hash:Acme
"""


@pytest.fixture
def acme(distribution: Any) -> Path:
    folder: Path = distribution("acme-hash", ENTRY, acme_hash=HASH)
    return folder


def test_a_class_without_yaml_is_a_choice_with_typed_options(acme: Path, command: Any, runs: list[Any]) -> None:
    status, _, err = command("+hash=acme", "+hash.rounds=3", "hash.mix=fast", "backend=gather")
    assert (status, err) == (0, ""), err
    assert runs[0]["hash"] == {"name": "acme", "rounds": 3, "mix": "fast", "weights": [1.0, 2.0], "label": None}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "hash.rounds has no value; set hash.rounds=..."),
        (("hash.rounds=3", "hash.mix=goood"), "did you mean 'good'"),
        (("hash.rounds=3", "+hash.mixx=good"), "did you mean 'mix'"),
        (("hash.rounds=3", "+hash.block_size=8"), "set cache.block_size instead"),
    ],
)
def test_its_options_are_checked_like_ours(words: Any, says: str, acme: Path, command: Any, runs: list[Any]) -> None:
    status, _, err = command("+hash=acme", "backend=gather", *words)
    assert (status, runs) == (2, []), err
    assert says in err, err
    assert err.count("\n") == 1, err


def test_its_configuration_survives_pickling(acme: Path, elsewhere: Path) -> None:
    import pickle

    config = compose(["+hash=acme", "hash.rounds=3", "backend=gather"])
    assert pickle.loads(pickle.dumps(config)) == config


def test_it_is_in_the_help_with_its_distribution_and_not_imported(acme: Path, command: Any) -> None:
    status, out, err = command("--help")
    assert (status, err) == (0, "")
    line = next(line for line in out.splitlines() if "acme" in line)
    assert line.split() == ["acme", "Acme's", "digest,", "four", "bytes.", "(acme-hash", "1.5)"], line
    assert "acme_hash" not in sys.modules


def test_listing_reads_no_module(distribution: Any) -> None:
    distribution(
        "bomb", "[framework.hash]\nbomb = bomb:Bomb\n", bomb="raise SystemExit('imported')\nclass Bomb:\n '''B.'''\n"
    )
    bomb = next(plugin for plugin in registry.entries("hash") if plugin.name == "bomb")
    assert (registry.read_source(bomb).summary, bomb.distribution, bomb.version) == ("B.", "bomb", "1.5")
    assert "bomb" not in sys.modules


def test_two_distributions_of_one_name_are_an_error_when_chosen_only(
    acme: Path, distribution: Any, command: Any, runs: list[Any]
) -> None:
    distribution("other-acme", ENTRY.replace("acme_hash:", "other_acme:"), other_acme=HASH)
    status, _, err = command("hash=acme", "hash.rounds=1", "backend=gather")
    assert (status, runs) == (2, [])
    assert "acme-hash 1.5 and other-acme 1.5; say which: hash=acme-hash:acme or hash=other-acme:acme" in err
    assert err.count("\n") == 1, err
    assert command("hash=sha256", "backend=gather")[0] == 0
    with pytest.raises(DuplicatePlugin):
        registry.load("hash", "acme")
    assert command("+hash=Other_Acme:acme", "hash.rounds=1", "backend=gather")[::2] == (0, "")
    assert runs[-1]["hash"]["name"] == "Other_Acme:acme"
    assert registry.load("hash", "other-acme:acme").__module__ == "other_acme"
    assert [name for name in registry.names("hash") if "acme" in name] == ["acme-hash:acme", "other-acme:acme"]


BROKEN = {
    "import": ("raise RuntimeError('no such\\nlibrary')", PluginImportError, "RuntimeError('no such"),
    "exit": ("raise SystemExit(3)", PluginImportError, "SystemExit"),
    "syntax": ("class X(:", PluginImportError, "SyntaxError"),
    "missing": ("", PluginImportError, "AttributeError"),
    "unrelated": ("class X: pass", PluginError, "not a subclass of EvictionPolicy"),
    "function": ("def X(): pass", PluginError, "not a subclass of EvictionPolicy"),
    "abstract": (
        "from framework.interfaces.eviction import EvictionPolicy\nclass X(EvictionPolicy): pass",
        PluginError,
        "does not implement evicted, pin, release, victim",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_named_when_chosen_and_silent_otherwise(
    kind: str, distribution: Any, command: Any, runs: list[Any]
) -> None:
    text, error, says = BROKEN[kind]
    module = f"broken_{kind}"
    distribution("broken", f"[framework.eviction]\nbroken = {module}:X\n", **{module: text})
    status, _, err = command("+eviction=broken", "backend=gather")
    assert (status, runs) == (2, []), err
    assert "eviction 'broken' (broken 1.5)" in err, err
    assert says in err, err
    assert err.count("\n") == 1, err
    with pytest.raises(error):
        registry.load("eviction", "broken")
    assert command("--help")[0] == 0


def test_glob_passes_over_a_broken_plugin_and_says_so(distribution: Any, command: Any, runs: list[Any]) -> None:
    distribution("broken", "[framework.eviction]\nbroken = broken_glob:X\n", broken_glob="import not_there_at_all")
    status, _, err = command("-m", "run.progress=false", "+eviction=glob([lru,fifo,broken])", "backend=gather")
    assert status == 0, err
    assert [run["eviction"]["name"] for run in runs] == ["fifo", "lru"]
    assert err.startswith("skipped: eviction 'broken' (broken 1.5)"), err
    assert err.count("skipped: eviction 'broken'") == 1, err


def test_a_preset_folder_of_a_third_party_adds_choices(distribution: Any, command: Any, runs: list[Any]) -> None:
    site = distribution(
        "acme-hash", ENTRY + "[framework.conf]\nacme = acme_conf.presets\nlost = not.there\n", acme_hash=HASH
    )
    folder = site / "acme_conf" / "presets" / "hash"
    folder.mkdir(parents=True)
    (site / "acme_conf" / "__init__.py").write_text("raise RuntimeError('never imported')")
    (folder / "acme_strong.yaml").write_text("defaults: [acme, _self_]\nrounds: 99\n")
    status, _, err = command("+hash=acme_strong", "backend=gather")
    assert status == 0, err
    assert (runs[0]["hash"]["name"], runs[0]["hash"]["rounds"]) == ("acme", 99)
    assert "skipped: presets 'lost'" in err


def test_building_injects_what_the_constructor_names_and_nothing_else(acme: Path) -> None:
    built = registry.build("hash", "acme", {"rounds": 2, "weights": [3]}, {"block_size": 16, "num_blocks": 5})
    assert (built.rounds, built.weights, built.block_size) == (2, (3.0,), 16)


def test_an_error_of_ours_from_a_constructor_keeps_its_type_and_gains_the_name(distribution: Any) -> None:
    text = """
    from framework.errors import InvalidArgument
    from framework.interfaces.hash import DigestScheme
    class X(DigestScheme):
        def __init__(self): raise InvalidArgument("too small")
        def digest(self, data): return data
    """
    distribution("picky", "[framework.hash]\npicky = picky:X\n", picky=text)
    with pytest.raises(FrameworkError, match=r"^hash 'picky': too small$"):
        registry.build("hash", "picky")


def test_nothing_installed_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.registry.lookup.entries", lambda kind: [])
    with pytest.raises(UnknownPlugin, match=r"pip install -e \."):
        registry.find("allocator", "prefix")
