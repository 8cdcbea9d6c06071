"""Our policies and backends inside other people's engines; nothing of theirs is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.export.libcachesim import as_libcachesim as as_libcachesim
    from framework.export.sglang import as_sglang as as_sglang
    from framework.export.sglang import one_page_nodes as one_page_nodes
    from framework.export.transformers import register_transformers as register_transformers
    from framework.export.vllm import as_vllm as as_vllm

__all__ = ["as_libcachesim", "as_sglang", "as_vllm", "one_page_nodes", "register_transformers"]

_HOMES = {
    "as_libcachesim": "libcachesim",
    "as_sglang": "sglang",
    "as_vllm": "vllm",
    "one_page_nodes": "sglang",
    "register_transformers": "transformers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
