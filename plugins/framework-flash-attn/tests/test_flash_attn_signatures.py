"""The stand-ins take what the real functions take, read from installed sources; nothing is imported."""

from __future__ import annotations

import ast
import inspect
from importlib import metadata
from pathlib import Path

import pytest
import stand_ins
import torch

REAL = [
    ("flash-attn", "flash_attn/flash_attn_interface.py", "flash_attn_with_kvcache", stand_ins.with_kvcache_2),
    ("flash-attn", "flash_attn/flash_attn_interface.py", "flash_attn_varlen_func", stand_ins.varlen_2),
    ("flash_attn_3", "flash_attn_interface.py", "flash_attn_with_kvcache", stand_ins.with_kvcache_3),
    ("flash_attn_3", "flash_attn_interface.py", "get_scheduler_metadata", stand_ins.get_scheduler_metadata),
    ("flash-attn-4", "flash_attn/cute/interface.py", "flash_attn_varlen_func", stand_ins.varlen_4),
]


def source_of(distribution: str, path: str) -> Path:
    """Where an installed distribution keeps the file; skips where it is not installed."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    for file in files:
        if file.as_posix() == path:
            return Path(str(file.locate()))
    pytest.skip(f"{distribution} {metadata.version(distribution)} has no {path}")


def value_of(default: ast.expr) -> object:
    """A default as a Python value; torch's dtypes too."""
    if isinstance(default, ast.Attribute):
        return getattr(torch, default.attr)
    return ast.literal_eval(default)


def parameters(function: ast.FunctionDef) -> dict[str, object]:
    """Each parameter's default as a Python value; `inspect.Parameter.empty` where it has none."""
    arguments = function.args.posonlyargs + function.args.args
    found: dict[str, object] = {argument.arg: inspect.Parameter.empty for argument in arguments}
    for argument, default in zip(reversed(arguments), reversed(function.args.defaults), strict=False):
        found[argument.arg] = value_of(default)
    for argument, keyword in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        found[argument.arg] = inspect.Parameter.empty if keyword is None else value_of(keyword)
    return found


@pytest.mark.parametrize(
    ("distribution", "path", "name", "stand_in"), REAL, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_stand_in_takes_no_argument_that_the_real_function_lacks(distribution, path, name, stand_in):
    tree = ast.parse(source_of(distribution, path).read_text(encoding="utf-8"))
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    real = parameters(function)
    for parameter in inspect.signature(stand_in).parameters.values():
        assert parameter.name in real, f"{distribution}'s {name} takes no {parameter.name}: {sorted(real)}"
        if parameter.default is not parameter.empty:
            assert real[parameter.name] == parameter.default, f"{parameter.name} = {real[parameter.name]!r}"
