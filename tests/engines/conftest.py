"""Tests of the real engines: skipped, with the reason, where their packages are not installed."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def pytest_ignore_collect() -> bool | None:
    """Nothing here is collected without vLLM and what its scheduler imports; KVLAB_ENGINES=1 makes that an error."""
    needed = ("vllm", "msgspec", "zmq", "xgrammar")
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if not lacking:
        return None
    if os.environ.get("KVLAB_ENGINES") == "1":
        raise pytest.UsageError(f"KVLAB_ENGINES=1 asks for the real engines, but {lacking} are missing: make engines")
    return True
