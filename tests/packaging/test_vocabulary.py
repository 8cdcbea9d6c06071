"""Retired words stay out of the repository: docs/glossary.md has the words to use instead."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RETIRED = ("strangers?", "courtes(y|ies)", "rungs?", "ladders?", "books", "data sheets?", "doors?", "hears", "told")
WORD = re.compile(rf"(?<![a-z])({'|'.join(RETIRED)})(?![a-z])", re.IGNORECASE)
BINARY = {".png", ".gz", ".zst", ".npz", ".safetensors"}
ALLOWED = ROOT / "tests" / "packaging" / "vocabulary_allowed.txt"
"""One path a line, then why the word is right there. A folder allows what lies in it."""


def allowed() -> dict[str, str]:
    lines = [line for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#")]
    return {path: why for path, _, why in (line.partition("  ") for line in lines)}


def sources() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: which files are the project's is not known")
    return [path for path in listed.stdout.splitlines() if Path(path).suffix not in BINARY and (ROOT / path).is_file()]


def found_in(path: str) -> list[str]:
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    named = [f"{path}: {match[0]}" for match in WORD.finditer(path)]
    return named + [f"{path}:{at}: {match[0]}" for at, line in enumerate(lines, 1) if (match := WORD.search(line))]


def questions() -> list[str]:
    trees = ((path, ast.parse((ROOT / path).read_text(encoding="utf-8"))) for path in sources() if path.endswith(".py"))
    summaries = ((path, (ast.get_docstring(tree) or "").partition("\n")[0]) for path, tree in trees)
    return [f"{path}: {summary}" for path, summary in summaries if "?" in summary]


def test_a_module_says_what_it_holds_and_asks_no_question() -> None:
    assert not questions()


def test_no_retired_word_is_used() -> None:
    permitted = allowed()
    places = [
        place
        for path in sources()
        if not any(path == entry or path.startswith(f"{entry}/") for entry in permitted)
        for place in found_in(path)
    ]
    assert not places, f"{len(places)} retired words; docs/glossary.md says what to write:\n" + "\n".join(places)


def test_every_exception_is_needed_and_has_a_reason() -> None:
    files = sources()
    for entry, why in allowed().items():
        under = [path for path in files if path == entry or path.startswith(f"{entry}/")]
        assert why.strip(), f"{entry} has no reason"
        assert any(found_in(path) for path in under), f"{entry} needs no exception any more: remove the line"


@pytest.mark.parametrize("text", ["A stranger's plugin", "the books are right", "a data sheet", "def is_told_to_end("])
def test_the_words_are_recognised(text: str) -> None:
    assert WORD.search(text)
    assert not WORD.search("bookshelf, scaffold, outdoors, rounding, toldo")
