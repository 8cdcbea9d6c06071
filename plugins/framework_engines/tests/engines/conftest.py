"""Tests of the real engines, for `make engines` alone: importing vLLM takes half a minute and warns a lot."""

from __future__ import annotations

import importlib.util
import os

import pytest

NEEDED = ("vllm", "msgspec", "zmq", "xgrammar")


def pytest_ignore_collect() -> bool | None:
    """Nothing here is collected without KVLAB_ENGINES=1, which makes a missing package an error."""
    if os.environ.get("KVLAB_ENGINES") != "1":
        return True
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        raise pytest.UsageError(f"KVLAB_ENGINES=1 asks for the real engines, but {lacking} are missing: make engines")
    return None
