"""Every code that an InvariantViolation prints has a section in docs/invariants.md, and every section is printed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from framework.errors import InvariantViolation

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "invariants.md").read_text()
SOURCES = [
    path
    for folder in ("framework", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "tests" not in path.relative_to(ROOT).parts and "build" not in path.relative_to(ROOT).parts
]
CODE = re.compile(r"\b([A-Z]\d+): ")


def texts(tree: ast.AST) -> list[str]:
    """The literal text of every string and f-string."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def printed() -> set[str]:
    return {
        code
        for path in SOURCES
        if "InvariantViolation" in (text := path.read_text()) or "faults" in text
        for literal in texts(ast.parse(text))
        for code in CODE.findall(literal)
    }


def test_every_code_is_defined_and_every_definition_is_printed() -> None:
    defined = set(re.findall(r"^### ([A-Z]\d+)$", PAGE, re.MULTILINE))
    assert len(defined) >= 12, defined
    assert printed() == defined, f"only one of page and source has {sorted(printed() ^ defined)}"


def test_every_raise_names_a_code() -> None:
    """The text is a literal with a code, or is joined from findings that have one each."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                if name == "InvariantViolation":
                    said = " ".join(texts(node.exc))
                    assert CODE.search(said) or "; " in said, (
                        f"{path}:{node.lineno} says {said!r} and names no invariant"
                    )


@pytest.mark.parametrize("text", ["PrefixCow: I20: a; I5: b; I20: c"])
def test_a_violation_says_where_its_codes_are_defined(text: str) -> None:
    said = str(InvariantViolation(text))
    assert said == f"{text} (see docs/invariants.md#i20, docs/invariants.md#i5)"
    assert str(InvariantViolation("no code")) == "no code"
