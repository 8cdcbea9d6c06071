"""Every shipped tile configuration compiles for chips that are not here, without spills and within their shared memory.

The screen runs in a process of its own: this one may have been started with TRITON_INTERPRET set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework_triton.configs import ARCHS, arch_of, kind_of
from framework_triton.variants import shipped_variants

triton = pytest.importorskip("triton", reason="triton is not installed")

VARIANTS = {variant.name: variant for variant in shipped_variants()}
_ONE_EACH = {(variant.arch, variant.kernel): variant.name for variant in VARIANTS.values()}
GROUPS = {
    "one of each kernel": list(_ONE_EACH.values()),
    **{f"{arch}, {share + 1} of 4": [name for name in VARIANTS if name.startswith(arch)][share::4]
       for arch in ARCHS for share in range(4)},
}  # fmt: skip


def compiled(names: list[str], folder: Path) -> dict[str, Any]:
    """Compile the named variants in one fresh process with an empty cache; pytest -n runs several of them."""
    code = (
        "import dataclasses, json, sys\n"
        "from framework_triton.aot import compile_variant\n"
        "from framework_triton.variants import shipped_variants\n"
        "names = json.load(sys.stdin)\n"
        "found = [compile_variant(variant) for variant in shipped_variants() if variant.name in names]\n"
        "json.dump({kernel.name: dataclasses.asdict(kernel) for kernel in found}, sys.stdout)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(names),
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert sorted(found) == sorted(names), f"asked for {names}, got {sorted(found)}"
    return found


@pytest.mark.parametrize(
    "names",
    [pytest.param(names, marks=[pytest.mark.slow] * (" of 4" in group), id=group) for group, names in GROUPS.items()],
)
def test_every_shipped_configuration_compiles_without_spills(names: list[str], tmp_path: Path) -> None:
    for name, kernel in compiled(names, tmp_path).items():
        variant = VARIANTS[name]
        spec, aligned = variant.spec, variant.spec.head_dim % 16 == 0
        assert kernel["spills"] == 0, kernel
        assert kernel["shared_bytes"] <= ARCHS[variant.arch].shared_bytes, kernel
        if variant.kernel == "prefill" and spec.dtype != "float32" and aligned:
            few_rows = variant.arch == "sm_80" or spec.latent_dim is not None
            assert kernel["matrix_instructions"] == ("HMMA" if few_rows else "HGMMA"), kernel
        if variant.kernel in ("decode", "prefill") and aligned and kind_of(spec.dtype, spec.kv_dtype) != "float_bytes":
            assert kernel["async_loads"] > 0, kernel


def test_a_capability_takes_the_newest_row_that_it_can_run() -> None:
    found = {capability: arch_of(*capability) for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))}
    assert list(found.values()) == ["sm_80", "sm_80", "sm_80", "sm_90", "sm_90", "sm_80"], found
