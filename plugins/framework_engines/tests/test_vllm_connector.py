"""What vLLM is to name our classes with; and what they and their tests' stand-ins take for granted of it.

vLLM's files are read, not imported: `pip install --no-deps vllm` is enough.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine_stand_ins import FreeQueue
from installed_engines import installed

from framework.errors import ConfigError, FrameworkError, UnknownPlugin, Unsupported
from framework_engines import vllm_connector, vllm_scheduling, vllm_trace
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


def test_options_are_read() -> None:
    assert vllm_connector.options_of({}) == ("lru", 0, "seconds")
    assert vllm_connector.options_of({"eviction": None, "clock": "steps"}) == (None, 0, "steps"), "vLLM's own order"
    assert vllm_trace.options_of({"path": "a.jsonl"}) == (Path("a.jsonl"), None, False)
    assert vllm_trace.options_of({"path": "a", "steps": "b"}) == (Path("a"), Path("b"), False)
    plugin, clock = vllm_scheduling.options_of({"scheduling": "longest_prefix", "another platform's": 1})
    assert (type(plugin).__name__, clock) == ("LongestPrefix", "seconds")
    chosen = {"name": "shortest_rest", "max_wait_s": 3.0}
    plugin, clock = vllm_scheduling.options_of({"scheduling": chosen, "scheduling_clock": "steps"})
    assert (plugin.max_wait_s, clock) == (3.0, "steps")


@pytest.mark.parametrize(
    ("module", "options", "error", "says"),
    [
        (vllm_connector, {"eviction": "lruu"}, UnknownPlugin, "lruu"),
        (vllm_connector, {"policy": "lru"}, ConfigError, "found policy"),
        (vllm_connector, {"clock": "hours"}, ConfigError, "found 'hours'"),
        (vllm_connector, {"seed": "1"}, ConfigError, "found '1'"),
        *((vllm_trace, extra, ConfigError, "name a new file")
          for extra in ({}, {"path": 3}, {"path": ""}, {"path": "a", "steps": None})),
        (vllm_trace, {"path": "a", "tokens": 1}, ConfigError, "true or false, found 1"),
        (vllm_trace, {"path": "a", "salt": "b"}, ConfigError, r"'tokens'.*found salt"),
        (vllm_scheduling, {}, ConfigError, r"additional_config, which names none; --additional-config"),
        (vllm_scheduling, {"scheduling": "fcfs", "scheduling_clock": "hours"}, ConfigError,
         "scheduling_clock is one of seconds, steps, found 'hours'"),
        (vllm_scheduling, {"scheduling": "lpm"}, UnknownPlugin, "no scheduling named 'lpm'"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(
    module: Any, options: dict[str, Any], error: type[FrameworkError], says: str
) -> None:
    with pytest.raises(error, match=says):
        module.options_of(options)


@pytest.mark.parametrize(
    ("module", "name", "says"),
    [
        (vllm_connector, "PolicyConnector", r"pip install vllm==0\.33\.0"),
        (vllm_trace, "TraceConnector", r"pip install vllm==0\.33\.0"),
        (vllm_scheduling, "OrderedScheduler", "vLLM cannot be imported"),
    ],
)
def test_a_class_is_named_that_needs_vllm_and_no_other(module: Any, name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=f"it offers {name}"):
        module.Other
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(Unsupported, match=says):
            getattr(module, name)
        assert "vllm" not in sys.modules
