"""Values that runs of one folder share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.files.memo import remembered


def test_a_value_is_computed_once_for_the_same_facts(tmp_path: Path) -> None:
    asked: list[int] = []

    def compute() -> dict[str, Any]:
        asked.append(1)
        return {"hits": len(asked)}

    facts = {"sha256": "ab", "num_blocks": 8}
    assert [remembered(tmp_path / "s", facts, compute) for _ in range(3)] == [{"hits": 1}] * 3
    assert remembered(tmp_path / "s", {**facts, "num_blocks": 9}, compute) == {"hits": 2}
    assert remembered(None, facts, compute) == {"hits": 3}, "no folder, no memory"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"facts": {}, "value": 3}', '{"facts": {"a": 2}, "value": {}}'])
def test_a_damaged_or_foreign_entry_is_computed_anew(tmp_path: Path, text: str) -> None:
    remembered(tmp_path, {"a": 1}, lambda: {"x": 1})
    (entry,) = tmp_path.iterdir()
    entry.write_text(text)
    assert remembered(tmp_path, {"a": 1}, lambda: {"x": 2}) == {"x": 2}
    assert remembered(tmp_path, {"a": 1}, lambda: {"x": 3}) == {"x": 2}


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert remembered(tmp_path / "file", {"a": 1}, lambda: {"x": 1}) == {"x": 1}
