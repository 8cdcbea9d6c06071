"""A package of features can be deleted: the core's tests need none, and pyproject.toml is whole without its lines."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from without_packages import CORE, ELSEWHERE, packages, remove, with_dependents


def test_the_core_s_tests_import_no_package_and_no_helper_of_its_tests(repository: Path) -> None:
    features = set(packages()) - CORE
    helpers = {path.stem for path in repository.glob("plugins/framework_*/tests/*.py")} - {"conftest"}
    wrong = []
    for path in sorted((repository / "tests").rglob("*.py")):
        name = path.relative_to(repository).as_posix()
        imported = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        found = imported & (features | helpers)
        if found and not name.startswith(tuple(ELSEWHERE)):
            wrong.append((name, sorted(found)))
    assert wrong == [], "move these tests to the package, or import it in the test, with pytest.importorskip"


@pytest.mark.parametrize("name", sorted(set(packages()) - CORE))
def test_nothing_names_a_package_that_is_deleted(name: str, repository: Path, tmp_path: Path) -> None:
    gone = with_dependents({name})
    for one in gone:
        (tmp_path / "plugins" / one).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text((repository / "pyproject.toml").read_text())
    remove(gone, tmp_path)
    text = (tmp_path / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["name"] == "kvcache-framework"
    assert [line for line in text.splitlines() if re.search(rf"\b({'|'.join(gone)})\b", line)] == []
