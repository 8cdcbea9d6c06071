"""How much memory a device has free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMITED = """
import os, resource
from framework.model.memory import free_bytes

before = free_bytes("cpu")
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
print(before, free_bytes("cpu"))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what Linux says of a process")
def test_a_limit_of_the_process_is_what_it_has_free() -> None:
    said = subprocess.run([sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True).stdout
    before, limited = map(int, said.split())
    assert limited <= 2**28 < before
