"""A laboratory for KV-cache and paged-attention research. Importing it loads neither torch nor Hydra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.llm import LLM as LLM
    from framework.sampling import Sampling as Sampling

__all__ = ["LLM", "Sampling", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from framework.llm import LLM

        return LLM
    if name == "Sampling":
        from framework.sampling import Sampling

        return Sampling
    raise AttributeError(f"module 'framework' has no attribute {name!r}")
