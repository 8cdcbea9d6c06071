"""Fill Triton's cache with every kernel that serving one shape of attention launches, on a machine without the GPU.

    python -m framework_builtin.backend.triton_kernels.precompile --target sm_90 --heads 32/8/128 --cache FOLDER
    TRITON_CACHE_DIR=FOLDER python -m framework.run backend=triton device=cuda ...       # compiles nothing

The kernels are those of the launches themselves, made over stand-ins on a driver without a device: same sources, types,
alignment, constants and options, so that a launch finds them under its own key. What is there already is not compiled
again. The key also names the version of triton and its compiler: fill the cache with the installation that will serve.
Several shapes (a model whose layers differ) are several calls with one folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from framework.errors import FrameworkError, InvalidArgument
from framework.interfaces.backend import AttentionSpec
from framework_builtin.backend.triton import TritonBackend
from framework_builtin.backend.triton_kernels.compiles import Compiles, counted
from framework_builtin.backend.triton_kernels.configs import chip
from framework_builtin.backend.triton_kernels.kernels import compiled
from framework_builtin.backend.triton_kernels.pretended import pretended

_SMS = {"sm_80": 108, "sm_90": 132}
"""Multiprocessors of the usual product of a chip."""


def precompile(
    spec: AttentionSpec,
    target: str,
    *,
    num_sms: int | None = None,
    max_rows: int = 256,
    tma: bool = False,
    shared_tokens: int | None = None,
    share: int = 0,
    shares: int = 1,
) -> Compiles:
    """Compile, into Triton's cache, the kernels that serving `spec` on `target` launches; here, or a share of them.

    Args:
        num_sms: multiprocessors of the device; None: of the chip's usual product.
        max_rows: requests decoded in one step, at most.
        tma, shared_tokens: as the backend's.
        share: of `shares` equal ones; each kernel is in one of them.

    Raises:
        InvalidArgument: an unknown target, or a spec that the backend refuses.
    """
    from framework_builtin.backend.triton_kernels import steps  # torch: what only starts processes goes without

    arch = chip(target)
    if reasons := TritonBackend(tma=tma).capabilities.reasons_against(spec, "cuda"):
        raise InvalidArgument(f"the triton backend does not serve this: {'; '.join(reasons)}")
    num_sms = num_sms or _SMS.get(target, 108)
    launcher = steps.launcher_for(spec, arch, _Compiler, num_sms=num_sms, tma=tma, shared_tokens=shared_tokens)
    with pretended(arch.target, arch.shared_bytes), _only_share(share, shares), counted() as counts:
        for step in steps.all_of(spec, arch, num_sms=num_sms, max_rows=max_rows, ropes=(None, "halves", "neighbours")):
            steps.run(step, launcher, spec)
    return counts


class _Compiler:
    """A kernel of which launches are compiled and not run."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._kernel = compiled(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *args, **constants: self._kernel.run(*args, grid=grid, warmup=True, **constants)


class _only_share:  # noqa: N801  (a context manager)
    """Within the block Triton compiles every n-th of the distinct kernels it is asked for."""

    def __init__(self, share: int, shares: int) -> None:
        self._share, self._shares = share, shares
        self._seen: dict[tuple[str, str], int] = {}

    def __enter__(self) -> None:
        from triton import knobs

        self._before = knobs.runtime.jit_cache_hook
        knobs.runtime.jit_cache_hook = self._skips

    def __exit__(self, *error: object) -> None:
        from triton import knobs

        knobs.runtime.jit_cache_hook = self._before

    def _skips(self, *, key: str, fn: Any, **facts: Any) -> bool:
        """Triton asks before each compile; True: leave this one out."""
        return self._seen.setdefault((fn.name, key), len(self._seen)) % self._shares != self._share


def main(arguments: list[str] | None = None) -> int:
    """The command line; 2 for what cannot be asked."""
    options = _parser().parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.stderr.write("TRITON_INTERPRET is set: unset it, the interpreter compiles nothing\n")
        return 2
    if options.cache is not None:
        os.environ["TRITON_CACHE_DIR"] = os.path.abspath(options.cache)
    start, names = time.perf_counter(), ("num_sms", "max_rows", "tma", "shared_tokens")
    common = {name: getattr(options, name) for name in names}
    try:
        spec = _spec(options)
        if options.jobs == 1:
            parts = [precompile(spec, options.target, **common)]
        else:
            with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
                shares = [
                    pool.submit(precompile, spec, options.target, **common, share=share, shares=options.jobs)
                    for share in range(options.jobs)
                ]
                parts = [share.result() for share in shares]
    except FrameworkError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    made, there = (sorted(name for part in parts for name in getattr(part, what)) for what in ("compiled", "found"))
    sys.stdout.write(
        f"{options.target}, heads {options.heads}: {len(made)} kernels compiled ({', '.join(made) or 'none'}), "
        f"{len(there)} there already; {time.perf_counter() - start:.0f} s in {options.jobs} processes\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="the chip: sm_80, sm_86, sm_90")
    parser.add_argument("--heads", required=True, help="query heads/kv heads/head dim, such as 32/8/128")
    parser.add_argument("--cache", help="folder to fill; without: TRITON_CACHE_DIR, or Triton's own")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--kv-dtype", choices=["float8_e4m3fn", "int8"], help="without: the dtype's own")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--layout", default="NHD", choices=["NHD", "HND"])
    parser.add_argument("--sliding-window", type=int, metavar="TOKENS")
    parser.add_argument("--soft-cap", type=float)
    parser.add_argument("--sinks", action="store_true")
    parser.add_argument("--alibi", action="store_true")
    parser.add_argument("--tma", action="store_true", help="prefill by tensor descriptors, as the backend's option")
    parser.add_argument("--shared-tokens", type=int, help="of a prefix that rows share, as the backend's option")
    parser.add_argument("--num-sms", type=int, help="multiprocessors; without: the usual product's")
    parser.add_argument("--max-rows", type=int, default=256, help="requests decoded in one step, at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    return parser


def _spec(options: argparse.Namespace) -> AttentionSpec:
    try:
        num_heads, num_kv_heads, head_dim = (int(part) for part in options.heads.split("/"))
    except ValueError:
        raise InvalidArgument(f"--heads {options.heads}: three numbers, such as 32/8/128") from None
    same = ("dtype", "kv_dtype", "block_size", "layout", "sliding_window", "soft_cap", "sinks", "alibi")
    chosen = {name: getattr(options, name) for name in same}
    return AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, **chosen)


if __name__ == "__main__":
    sys.exit(main())
