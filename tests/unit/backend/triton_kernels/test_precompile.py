"""Kernels compiled ahead of time are the ones that launches look up: on a pretended chip serving compiles none.

What compiles runs in processes of its own: this one may have been started with TRITON_INTERPRET set.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.errors import InvalidArgument
from framework_builtin.backend.triton_kernels import decode, prefill, store
from framework_builtin.backend.triton_kernels.configs import ARCHS, chip
from framework_builtin.backend.triton_kernels.kernels import not_specialised
from framework_builtin.backend.triton_kernels.precompile import main

pytest.importorskip("triton", reason="triton is not installed")

COMMAND = [
    sys.executable, "-m", "framework_builtin.backend.triton_kernels.precompile", "--target", "sm_90",
    "--heads", "8/2/64", "--kv-dtype", "int8", "--max-rows", "80",
]  # fmt: skip

SERVE = """
import json, os, pathlib, shutil, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import test_triton_warm_up as served
from framework_builtin.backend.triton_kernels.compiles import counted
from framework_builtin.backend.triton_kernels.configs import ARCHS
from framework_builtin.backend.triton_kernels.kernels import compiled
from framework_builtin.backend.triton_kernels.pretended import pretended

class Launched:
    "Goes to Triton's own launcher, on a driver without a device; the outputs are zeros."
    keys = {}
    def __call__(self, function):
        kernel = compiled(function)
        names = list(kernel.signature.parameters)
        def start(grid):
            def launch(*args, **constants):
                kernel[grid](*args, **constants)
                for name, value in zip(names, args):
                    if name in ("OUT", "Q_OUT") and value is not None:
                        value.zero_()
            return launch
        return type("Kernel", (), {"__getitem__": lambda self, grid: start(grid)})()

def serve():
    arch = ARCHS["sm_90"]
    with pretended(arch.target, arch.shared_bytes) as driver, counted() as counts:
        llm, _ = served.make(warm_up=True, kv_dtype="int8")
        warm = len(counts.compiled) + len(counts.found)
        served.serve(llm, seed=1)
    return {"compiled": counts.compiled, "found": counts.found, "warm": warm, "launches": driver.num_launches}

served.Launches = Launched
found = [serve()]
for entry in {path.parent for path in pathlib.Path(os.environ["TRITON_CACHE_DIR"]).rglob("merge_splits.cubin")}:
    shutil.rmtree(entry)
found.append(serve())
print(json.dumps(found))
"""


def run(command: list[str], cache: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_serving_compiles_nothing_where_the_cache_was_filled_ahead(tmp_path: Path) -> None:
    """Warm-up and a hundred requests on what Triton takes for an H100; again with one kernel gone from the cache."""
    first = run(COMMAND, tmp_path)
    assert ", 0 there already" in first, first
    tests = Path(__file__).resolve().parents[1]
    filled, lacking = json.loads(run([sys.executable, "-c", SERVE, str(tests)], tmp_path).splitlines()[-1])
    assert filled["compiled"] == [], filled
    assert filled["warm"] == len(filled["found"]) >= 8, f"kernels were loaded after the warm-up: {filled}"
    assert filled["launches"] > 300, filled
    assert set(lacking["compiled"]) == {"merge_splits"}, f"what is missing must be compiled and counted: {lacking}"


def test_integers_that_differ_from_batch_to_batch_are_not_specialised_on() -> None:
    """Strides of tensors are all that is: they are a model's and a pool's."""
    for kernel in (decode.plan_splits, decode.decode, decode.merge_splits, prefill.prefill, store.write_kv,
                   store.copy_blocks):  # fmt: skip
        numbers = [name for name in inspect.signature(kernel).parameters if name.islower()]
        rest = set(numbers) - set(not_specialised(kernel)) - {"score_scale", "cap_scale"}
        assert all("_stride" in name for name in rest), f"{kernel.__name__}: {sorted(rest)}"
        assert not any(name.startswith(("table", "lse", "scale")) for name in rest), (
            f"{kernel.__name__}: {sorted(rest)}"
        )


def test_a_chip_beside_the_table_takes_its_row_and_its_own_name() -> None:
    assert chip("sm_90") is ARCHS["sm_90"]
    found = chip("sm_86")
    assert (found.target, found.decode) == (("cuda", 86, 32), ARCHS["sm_80"].decode)
    assert chip("sm_103").target == ("cuda", 103, 32)
    for unknown in ("sm_75", "sm_", "h100", "gfx90a"):
        with pytest.raises(InvalidArgument, match=r"no chip|older than"):
            chip(unknown)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "sm_75", "--heads", "8/2/64"], "older than 8.0"),
        (["--target", "sm_90", "--heads", "8/2"], "three numbers"),
        (["--target", "sm_90", "--heads", "8/3/64"], "not a multiple of 3 kv heads"),
        (["--target", "sm_90", "--heads", "8/2/257"], "head dim 257 is not supported"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_a_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main([*words, "--jobs", "1"]) == 2
    assert said in capsys.readouterr().err
