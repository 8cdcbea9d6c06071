"""tests/unit mirrors the source: a folder for each package and for each kind of built-in plugin."""

from __future__ import annotations

from pathlib import Path


def packages(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_a_folder_of_unit_tests_is_named_after_what_it_tests(repository: Path) -> None:
    named = packages(repository / "framework") | packages(repository / "plugins" / "framework_builtin")
    folders = {path.parent.name for path in (repository / "tests" / "unit").glob("*/test_*.py")}
    assert folders <= named | {"experiments", "bench"}, folders - named


def test_a_unit_test_outside_the_folders_is_of_a_module_outside_the_packages(repository: Path) -> None:
    loose = {path.stem for path in (repository / "framework").glob("*.py")}
    tested = {path.stem.removeprefix("test_") for path in (repository / "tests" / "unit").glob("test_*.py")}
    assert tested <= loose, tested - loose
