"""The notebooks of the documentation run from the first cell to the last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_committed_without_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], cell["id"]
            exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    assert type(names["figure"]).__name__ == "Figure"


def test_there_is_a_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["read_a_sweep"]
