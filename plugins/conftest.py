"""What tests of packages rely on: the fixtures of the core's tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1] / "tests"


def _fixtures(path: Path) -> dict[str, object]:
    spec = importlib.util.spec_from_file_location(f"kvlab_{path.parent.name}_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if hasattr(value, "_fixture_function_marker")}


globals().update(_fixtures(_TESTS / "conftest.py") | _fixtures(_TESTS / "cli" / "conftest.py"))
