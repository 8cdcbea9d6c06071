"""docs/examples/small_engine.py is short, and counts what the framework's own replay counts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.errors import OutOfBlocks

PATH = Path(__file__).resolve().parents[2] / "docs" / "examples" / "small_engine.py"


@pytest.fixture(scope="module")
def small_engine() -> Any:
    spec = importlib.util.spec_from_file_location("small_engine", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for their module
    spec.loader.exec_module(module)
    return module


def test_it_stays_readable() -> None:
    assert PATH.read_text().count("\n") <= 200


@pytest.mark.parametrize("num_blocks", [40, 80])
@pytest.mark.parametrize(
    ("allocator", "eviction"),
    [("prefix_cow", "lru"), ("prefix_cow", "lhd"), ("prefix", "arc"), ("radix", "hazard"), ("naive", "lru")],
)
def test_it_counts_what_the_framework_counts(
    small_engine: Any, tmp_path: Path, allocator: str, eviction: str, num_blocks: int
) -> None:
    counts = small_engine.main([f"--allocator={allocator}", f"--eviction={eviction}", f"--num-blocks={num_blocks}"])
    result = run(
        {
            "mode": "replay",
            "workload": "system_prompts",
            "allocator": allocator,
            "eviction": eviction,
            "cache": {"num_blocks": num_blocks, "block_size": 16},
            "run": {"dir": str(tmp_path / "run"), "progress": False},
        }
    )
    assert counts == {name: result[name] for name in counts}
    assert counts["num_preemptions"] > 0
    assert (counts["hit_tokens"] > 0) == (counts["num_evictions"] > 0) == (allocator != "naive"), counts


def test_blocks_that_are_shared_wrongly_end_it(small_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_engine.Pool, "write", lambda pool, table, tokens, start: None)
    with pytest.raises(AssertionError, match="do not hold the context"):
        small_engine.main([])


def test_what_it_cannot_do_is_said(small_engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OutOfBlocks, match="needs more --num-blocks"):
        small_engine.main(["--num-blocks=10"])
    with pytest.raises(SystemExit):
        small_engine.main(["--eviction=belady"])
    assert "needs each block's next use" in capsys.readouterr().err
