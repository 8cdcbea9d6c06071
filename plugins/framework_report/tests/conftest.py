"""A small sweep on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import make_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """See `make_sweep`."""
    return make_sweep(tmp_path)
