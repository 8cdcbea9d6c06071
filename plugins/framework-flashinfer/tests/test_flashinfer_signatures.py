"""FlashInfer's wrappers take what we pass, read from the installed source; nothing is imported."""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

import pytest

SHARED = ["num_qo_heads", "num_kv_heads", "page_size", "window_left", "logits_soft_cap", "sm_scale"]
SHARED += ["q_data_type", "kv_data_type"]
PASSED = [
    ("decode", "BatchDecodeWithPagedKVCacheWrapper", "__init__", ["kv_layout", "use_tensor_cores"]),
    ("decode", "BatchDecodeWithPagedKVCacheWrapper", "plan", ["head_dim", *SHARED]),
    ("decode", "BatchDecodeWithPagedKVCacheWrapper", "run", ["q", "paged_kv_cache", "out", "return_lse"]),
    ("prefill", "BatchPrefillWithPagedKVCacheWrapper", "__init__", ["kv_layout"]),
    ("prefill", "BatchPrefillWithPagedKVCacheWrapper", "plan", ["causal", "head_dim_qk", *SHARED]),
    ("prefill", "BatchPrefillWithPagedKVCacheWrapper", "run", ["q", "paged_kv_cache", "out", "return_lse"]),
]


def wrapper(module: str, name: str) -> ast.ClassDef:
    """The class as the installed distribution wrote it; skips where it is not installed."""
    try:
        files = metadata.files("flashinfer-python") or []
    except metadata.PackageNotFoundError:
        pytest.skip("flashinfer-python is not installed")
    [path] = [file for file in files if file.as_posix() == f"flashinfer/{module}.py"]
    tree = ast.parse(Path(str(path.locate())).read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


@pytest.mark.parametrize(
    ("module", "name", "method", "passed"), PASSED, ids=lambda value: value if type(value) is str else ""
)
def test_a_wrapper_takes_what_the_backend_passes(module, name, method, passed):
    """`plan` of decode hands keywords on to `_plan_impl`: both count."""
    methods = [node for node in wrapper(module, name).body if isinstance(node, ast.FunctionDef)]
    taken = {
        argument.arg
        for node in methods
        if node.name in {method, f"_{method}_impl"}
        for argument in node.args.args + node.args.kwonlyargs
    }
    assert set(passed) <= taken, f"{name}.{method} takes no {sorted(set(passed) - taken)}"
