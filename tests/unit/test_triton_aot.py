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

import pytest

from framework_builtin.backend.triton_kernels.aot import Resources, Variant, as_dict, shipped_variants
from framework_builtin.backend.triton_kernels.configs import ARCHS, arch_of, kind_of, padded_dim
from framework_builtin.backend.triton_kernels.screen import problems, read_table

triton = pytest.importorskip("triton", reason="triton is not installed")

VARIANTS = {variant.name: variant for variant in shipped_variants()}
COVERING = [
    "sm_80/decode/float32/d64",
    "sm_80/prefill/bfloat16/d128",
    "sm_90/decode/bfloat16/d128",
    "sm_90/decode/bfloat16+float8_e4m3fn/d128",
    "sm_90/prefill/bfloat16/d128",
    "sm_90/plan_splits",
    "sm_90/merge_splits",
    "sm_90/write_kv",  # bf16, and e4m3 quantised on the way
    "sm_90/copy_blocks",
    "sm_100/decode/bfloat16/d128",
    "sm_100/prefill/bfloat16/d64",
    "gfx942/decode/bfloat16/d256",
]
"""Each chip, each kernel and each way of storing KV once."""


def screen(names: list[str], folder: Path) -> dict[str, Resources]:
    """Compile the named variants in a fresh process with an empty cache, two at a time."""
    code = (
        "import json, sys\n"
        "from framework_builtin.backend.triton_kernels.aot import shipped_variants, as_dict\n"
        "from framework_builtin.backend.triton_kernels.screen import compile_all\n"
        "if __name__ == '__main__':\n"
        "    wanted = json.load(sys.stdin)\n"
        "    jobs = [(v, None) for v in shipped_variants() if v.name in wanted]\n"
        "    found = {job[0].name: result for job, result in compile_all(jobs)}\n"
        "    plain = {name: r if isinstance(r, str) else as_dict(r) for name, r in found.items()}\n"
        "    json.dump(plain, sys.stdout)\n"
    )
    script = folder / "screen_some.py"
    script.write_text(code)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, str(script)],
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


def judge(found: dict[str, Resources]) -> None:
    """Fit to ship, and as the committed table says where the compiler is the one that made it."""
    unfit = {name: reasons for name, got in found.items() if (reasons := problems(VARIANTS[name], got))}
    assert not unfit, f"unfit to ship: {unfit}"
    version, table = read_table()
    if version != triton.__version__:
        return  # another compiler allots registers otherwise; the gate above holds for it too
    changed = {name: (as_dict(table[name]), as_dict(got)) for name, got in found.items() if table[name] != got}
    assert not changed, (
        f"resources differ from resources.json (committed, now): {changed}; if that is meant, run "
        "python -m framework_builtin.backend.triton_kernels.screen --update"
    )


def test_a_covering_set_of_configurations_compiles_without_spills(tmp_path: Path) -> None:
    names = [name for name in VARIANTS if name.startswith(tuple(f"{prefix}/" for prefix in COVERING))]
    assert len(names) >= len(COVERING), f"COVERING names what is not shipped: {names}"
    judge(screen(names, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_shipped_configuration_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    judge(screen([name for name in VARIANTS if name.startswith(f"{arch}/")], tmp_path))


def test_the_resource_table_has_exactly_the_shipped_configurations_and_all_are_fit() -> None:
    _, table = read_table()
    assert sorted(table) == sorted(VARIANTS), sorted(set(table) ^ set(VARIANTS))
    unfit = {name: reasons for name, got in table.items() if (reasons := problems(VARIANTS[name], got))}
    assert not unfit, unfit


def test_the_gate_refuses_spills_excess_shared_memory_and_lost_matrix_instructions() -> None:
    name = next(name for name in VARIANTS if name.startswith("sm_90/prefill/bfloat16/d128/"))
    variant: Variant = VARIANTS[name]
    good = read_table()[1][name]
    assert not problems(variant, good), problems(variant, good)
    for bad, word in (
        (replace(good, spills=4), "spills"),
        (replace(good, shared_bytes=300_000), "shared memory"),
        (replace(good, matrix_instructions="HMMA"), "instead of HGMMA"),
        (replace(good, async_loads=0), "asynchronous"),
        ("CompilationError: no", "does not compile"),
    ):
        assert any(word in reason for reason in problems(variant, bad)), (bad, problems(variant, bad))


def test_every_head_dim_and_dtype_has_a_row_on_every_chip() -> None:
    for name, arch in ARCHS.items():
        for head_dim in (16, 46, 64, 96, 128, 192, 256):
            for dtype, kv_dtype in (("float32", None), ("float16", None), ("bfloat16", "float8_e4m3fn")):
                key = (kind_of(dtype, kv_dtype), padded_dim(head_dim))
                assert key in arch.decode, f"{name} has no decode row for {key}"
                assert key in arch.prefill, f"{name} has no prefill row for {key}"


def test_a_capability_takes_the_newest_row_that_it_can_run() -> None:
    found = {capability: arch_of(*capability) for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))}
    assert list(found.values()) == ["sm_80", "sm_80", "sm_80", "sm_90", "sm_100", "sm_80"], found
