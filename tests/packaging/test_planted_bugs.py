"""Every bug of planted_bugs.toml can be planted: its text is in its file once, and its tests exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def test_each_bug_has_its_text_once_and_tests_that_exist(repository: Path) -> None:
    data, wrong = tomllib.loads((repository / "tests" / "planted_bugs.toml").read_text()), []
    for group in data["group"]:
        text = (repository / group["file"]).read_text()
        wrong += [(name, text.count(old)) for name, old, _ in group["bugs"] if text.count(old) != 1]
        for test in group.get("tests") or data["tests"][group["area"]]:
            path, _, function = test.partition("::")
            source = (repository / path).read_text() if (repository / path).is_file() else ""
            if not re.search(rf"\bdef {function.partition('[')[0]}", source):
                wrong.append((test, "no such test"))
    assert wrong == [], "tests/planted_bugs.py says what a bug of it is"
