"""Every shipped tile configuration compiles for chips that are not here, without spills and within their shared memory.

The screen runs in a process of its own: this one may have been started with TRITON_INTERPRET set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.interfaces.backend import AttentionSpec
from framework_builtin.backend.triton_kernels import screen as screening
from framework_builtin.backend.triton_kernels.aot import Resources
from framework_builtin.backend.triton_kernels.configs import ARCHS, arch_of, kind_of, padded_dim, prefill_tiles
from framework_builtin.backend.triton_kernels.screen import problems
from framework_builtin.backend.triton_kernels.variants import Variant, shipped_variants

triton = pytest.importorskip("triton", reason="triton is not installed")

VARIANTS = {variant.name: variant for variant in shipped_variants()}
GOOD = Resources(
    registers=128, spills=0, stack_bytes=0, shared_bytes=40_000, matrix_instructions="HGMMA", async_loads=8
)
_ONE_EACH = {(variant.arch, variant.kernel): variant.name for variant in VARIANTS.values()}
GROUPS = {
    "one of each kernel": list(_ONE_EACH.values()),
    **{f"{arch}, {share + 1} of 4": [name for name in VARIANTS if name.startswith(arch)][share::4]
       for arch in ARCHS for share in range(4)},
}  # fmt: skip


def compiled(names: list[str], folder: Path) -> dict[str, Resources]:
    """Compile the named variants in one fresh process with an empty cache; pytest -n runs several of them."""
    code = (
        "import json, sys\n"
        "from framework_builtin.backend.triton_kernels.aot import as_dict\n"
        "from framework_builtin.backend.triton_kernels.screen import compile_all\n"
        "from framework_builtin.backend.triton_kernels.variants import shipped_variants\n"
        "names = json.load(sys.stdin)\n"
        "wanted = [variant for variant in shipped_variants() if variant.name in names]\n"
        "found = {variant.name: result for variant, result in compile_all(wanted, 1)}\n"
        "json.dump({name: r if isinstance(r, str) else as_dict(r) for name, r in found.items()}, sys.stdout)\n"
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
    found = json.loads(done.stdout)
    failed = {name: value for name, value in found.items() if isinstance(value, str)}
    assert not failed, f"these do not compile: {failed}"
    assert sorted(found) == sorted(names), f"asked for {names}, got {sorted(found)}"
    return {name: Resources(**value) for name, value in found.items()}


@pytest.mark.parametrize(
    "names",
    [pytest.param(names, marks=[pytest.mark.slow] * (" of 4" in group), id=group) for group, names in GROUPS.items()],
)
def test_every_shipped_configuration_compiles_without_spills(names: list[str], tmp_path: Path) -> None:
    found = compiled(names, tmp_path)
    unfit = {name: reasons for name, got in found.items() if (reasons := problems(VARIANTS[name], got))}
    assert not unfit, f"unfit to ship: {unfit}"


def test_the_gate_refuses_spills_excess_shared_memory_and_lost_matrix_instructions() -> None:
    name = next(name for name in VARIANTS if name.startswith("sm_90/prefill/bfloat16/d128/"))
    variant: Variant = VARIANTS[name]
    assert not problems(variant, GOOD), problems(variant, GOOD)
    for bad, word in (
        (replace(GOOD, spills=4), "spills"),
        (replace(GOOD, shared_bytes=300_000), "shared memory"),
        (replace(GOOD, matrix_instructions="HMMA"), "instead of HGMMA"),
        (replace(GOOD, async_loads=0), "asynchronous"),
        ("CompilationError: no", "does not compile"),
    ):
        assert any(word in reason for reason in problems(variant, bad)), (bad, problems(variant, bad))


def test_a_screen_takes_descriptors_where_a_page_holds_their_tile() -> None:
    from framework_builtin.backend.triton import TritonBackend

    def names(block_size: int, **arguments: bool) -> list[str]:
        spec = AttentionSpec(
            num_heads=32, num_kv_heads=4, head_dim=128, dtype="bfloat16", block_size=block_size, layout="NHD"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(screening, "compile_all", lambda variants: [(variant, GOOD) for variant in variants])
            found = TritonBackend(**arguments).screen(spec, "sm_90")
        assert found is not None
        return [kernel.name.split("/group8/")[1] for kernel in found]

    assert names(128, tma=True) == ["page128", "page128/unsplit/tma"]
    assert names(16, tma=True) == names(16) == ["page16", "page16/unsplit"]


def test_every_head_dim_and_dtype_has_a_row_on_every_chip() -> None:
    for name, arch in ARCHS.items():
        for head_dim in (16, 46, 64, 96, 128, 192, 256):
            for dtype, kv_dtype in (
                ("float32", None), ("float16", None), ("bfloat16", "float8_e4m3fn"), ("bfloat16", "int8")
            ):  # fmt: skip
                key = (kind_of(dtype, kv_dtype), padded_dim(head_dim))
                assert key in arch.decode, f"{name} has no decode row for {key}"
                assert key in arch.prefill, f"{name} has no prefill row for {key}"


def test_prefill_has_another_limit_of_registers_under_a_soft_cap_or_alibi_where_the_table_says_so() -> None:
    def limit(chip: str, **changes: Any) -> int:
        base: dict[str, Any] = {
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 64,
            "dtype": "bfloat16",
            "block_size": 16,
        }
        return prefill_tiles(
            ARCHS[chip], AttentionSpec(**(base | {"kv_dtype": "float8_e4m3fn"} | changes))
        ).max_registers

    assert (limit("sm_80"), limit("sm_80", soft_cap=20.0), limit("sm_80", alibi=True)) == (0, 255, 255)
    assert limit("sm_80", kv_dtype=None, soft_cap=20.0) == limit("sm_90", soft_cap=20.0) == 0
    assert limit("sm_80", dtype="float32", kv_dtype=None, alibi=True) == 128
    unaligned = {"dtype": "float32", "kv_dtype": None, "head_dim": 58}
    assert limit("sm_80", **unaligned, alibi=True) == limit("sm_80", **unaligned) == 255, "such tiles have their own"


def test_a_capability_takes_the_newest_row_that_it_can_run() -> None:
    found = {capability: arch_of(*capability) for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))}
    assert list(found.values()) == ["sm_80", "sm_80", "sm_80", "sm_90", "sm_90", "sm_80"], found


def test_launches_of_any_batch_compile_no_further_kernel() -> None:
    """Triton's own key of a launch (types, alignment, integers equal to 1, constants) over batches of all sizes.

    In a process of its own, without TRITON_INTERPRET; nothing is compiled or launched.
    """
    code = (
        "import itertools, json, numpy as np, torch\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import make_backend\n"
        "from triton.runtime.jit import JITFunction, create_function_from_signature\n"
        "from framework.interfaces.backend import AttentionSpec\n"
        "from framework.testing.attention_cases import Case, build_problem\n"
        "from framework_builtin.backend.triton_kernels import launch\n"
        "from framework_builtin.backend.triton_kernels.configs import ARCHS\n"
        "from framework_builtin.backend.triton_kernels.kernels import compiled\n"
        "backend = make_backend(GPUTarget('cuda', 90, 32))\n"
        "keys = {}\n"
        "class Launch:\n"
        "    def __init__(self, function): self.kernel = compiled(function)\n"
        "    def __getitem__(self, grid): return self.start\n"
        "    def start(self, *args, **constants):\n"
        "        bind = create_function_from_signature(self.kernel.signature, self.kernel.params, backend)\n"
        "        _, specialization, options = bind(*args, debug=False, **constants)\n"
        "        key = str((specialization, options))\n"
        "        keys.setdefault(self.kernel.fn.__name__, {}).setdefault(key, len(keys))\n"
        "spec = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64, dtype='bfloat16', block_size=16)\n"
        "launcher = launch.Launcher(spec, 'cpu', arch=ARCHS['sm_90'], num_sms=132, split_tokens=None, wrap=Launch)\n"
        "rows = {'decode': [1, 2, 7, 16, 33, 64], 'chunk': [1, 2, 3, 16]}\n"
        "for context in (17, 600, 4000, 4096):\n"
        "    for kind, counts in rows.items():\n"
        "        for count in (count for count in counts if count * context < 70_000):\n"
        "            queries = (1,) * count if kind == 'decode' else (min(context, 16 + count),) * count\n"
        "            problem = build_problem(Case(spec, (context,) * count, queries))\n"
        "            out = torch.empty_like(problem.q)\n"
        "            launcher.attend(problem.q, problem.pool, launcher.plan(problem.batch), out, None)\n"
        "            tokens = len(problem.q)\n"
        "            new = torch.zeros(tokens, 2, 64, dtype=torch.bfloat16)\n"
        "            launcher.write(problem.pool, new, new, torch.zeros(tokens, dtype=torch.int64))\n"
        "            launcher.copy_blocks(problem.pool, torch.zeros(count, 2, dtype=torch.int64), ordered=True)\n"
        "print(json.dumps({name: len(found) for name, found in keys.items()}))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    # decode and prefill with and without splits, merging of decode rows and of chunks.
    most = {"plan_splits": 1, "decode": 2, "prefill": 2, "merge_splits": 2, "write_kv": 1, "copy_blocks": 1}
    assert found == most, f"kernels that batches of all sizes compile: {found}, expected {most}"
