"""A laboratory for KV-cache and paged-attention research. Importing it loads neither torch nor Hydra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["LLM", "Sampling", "__version__"]

__version__ = "0.1.0"


_PLACES = {"LLM": "framework.llm", "Sampling": "framework.sampling"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'framework' has no attribute {name!r}")
