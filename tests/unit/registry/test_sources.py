"""A class is described from its source, which is not run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from framework.registry.lookup import Plugin
from framework.registry.sources import Source, first_sentence, read_source


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Evicts the oldest. Then more.", "Evicts the oldest."),
        ("Evicts\n    the oldest. Then more.", "Evicts the oldest."),
        ("No full stop\n\nA second paragraph.", "No full stop"),
        ("Names of 16 bytes, e.g. XXH3. Fast.", "Names of 16 bytes, e.g. XXH3."),
        ("vLLM V0's block manager, version 0.6. Then more.", "vLLM V0's block manager, version 0.6."),
        ("", ""),
    ],
)
def test_the_first_sentence_is_whole(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


SOURCE = '''
raise RuntimeError("the source is read, not run")
class Base:
    def __init__(self, depth: int, *, seed: int = 0, weight: float = 1.0, **rest) -> None: ...
class Mine(Base):
    """Mine. Not theirs."""
'''


def test_options_come_from_the_nearest_constructor_and_leave_out_what_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "described_plugin.py").write_text(SOURCE)
    (tmp_path / "describing_plugin.py").write_text("from described_plugin import Mine as Theirs\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    expected = Source("Mine.", ("depth", "weight=1.0"))
    for value in ("described_plugin:Mine", "describing_plugin:Theirs", f"{tmp_path}/described_plugin.py:Mine"):
        assert read_source(Plugin("eviction", "mine", value, "x", "1")) == expected, value
    assert read_source(Plugin("eviction", "mine", "not_there_at_all:Mine", "x", "1")) == Source()


def test_a_declared_setting_shows_its_default_alone(tmp_path: Path) -> None:
    fields = "    size: int = Field(8, ge=1)\n    path: str = Field(description='a file')\n"
    (tmp_path / "one.py").write_text(f"class Mine(Options):\n{fields}")
    found = read_source(Plugin("mode", "mine", f"{tmp_path}/one.py:Mine", "x", "1"))
    assert found.options == ("size=8", "path")


def test_a_class_within_a_function_is_found(tmp_path: Path) -> None:
    inner = '    class Mine:\n        """Mine. Text."""\n        def __init__(self, k=1): ...\n'
    (tmp_path / "odd.py").write_text(f"def make():\n{inner}    return Mine\n")
    assert read_source(Plugin("eviction", "mine", f"{tmp_path}/odd.py:Mine", "x", "1")) == Source("Mine.", ("k=1",))
