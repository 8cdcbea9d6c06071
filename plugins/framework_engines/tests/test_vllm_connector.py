"""What PolicyConnector and its tests' stand-ins take for granted of vLLM, compared with the sources where they lie.

The files are read, not imported: `pip install --no-deps vllm` is enough.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest
from engine_stand_ins import FreeQueue
from installed_engines import installed

from framework_engines.vllm_connector import _Methods

_QUEUE = "v1/core/kv_cache_utils.py", "FreeKVCacheBlockQueue"
_CONNECTOR = "distributed/kv_transfer/kv_connector/v1/base.py", "KVConnectorBase_V1"


@cache
def methods(file: str, name: str) -> dict[str, list[str]]:
    """The methods of a class of vLLM's, with their parameters but self."""
    tree = ast.parse((Path(installed("vllm")) / file).read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        node.name: [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)][1:]
        for node in found.body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("name", ["popleft", "popleft_n", "remove", "append_n", "prepend_n"])
def test_the_stand_in_of_the_queue_has_vllms_signatures(name: str) -> None:
    ours = list(inspect.signature(getattr(FreeQueue, name)).parameters)[1:]
    assert methods(*_QUEUE)[name] == ours


def test_the_queue_has_gained_no_method_that_ours_does_not_know() -> None:
    known = {*vars(FreeQueue), "append", "get_all_free_blocks", "iter_blocks_after"}
    assert not {name for name in methods(*_QUEUE) if not name.startswith("_")} - known


@pytest.mark.parametrize(
    "name", [name for name in vars(_Methods) if not name.startswith("_") and inspect.isfunction(vars(_Methods)[name])]
)
def test_a_method_of_the_connector_has_vllms_parameters(name: str) -> None:
    real = methods(*_CONNECTOR) | methods(_CONNECTOR[0], "SupportsHMA")
    assert name in real, f"vLLM's connectors have no {name}"
    ours = [
        parameter.name
        for parameter in list(inspect.signature(getattr(_Methods, name)).parameters.values())[1:]
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    assert ours == real[name]
