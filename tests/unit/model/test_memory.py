"""How much memory a device has free."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from framework.model.memory import free_bytes


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what Linux says of a process")
def test_a_limit_of_the_process_is_what_it_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    before = free_bytes("cpu")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (used + 2**28, resource.RLIM_INFINITY))
    assert free_bytes("cpu") <= 2**28 < before
