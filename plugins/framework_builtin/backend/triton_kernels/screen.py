"""Screen of tile shapes for absent chips: compiles the shipped table, or candidates, and prints what each takes.

    python -m framework_builtin.backend.triton_kernels.screen                        # the shipped table, all chips
    python -m framework_builtin.backend.triton_kernels.screen --check                # the same as resources.json?
    python -m framework_builtin.backend.triton_kernels.screen --update               # and write resources.json
    python -m framework_builtin.backend.triton_kernels.screen --wide                 # other groups, features and pages
    python -m framework_builtin.backend.triton_kernels.screen --arch sm_90 --kernel prefill --head-dim 128 \\
        --tiles 128x64 128x128 --warps 4 8 --stages 3 5                              # candidates

A candidate is fit when nothing spills and its shared memory is within the chip's. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from framework.interfaces.backend import AttentionSpec
from framework_builtin.backend.triton_kernels.aot import Resources, as_dict, compile_variant
from framework_builtin.backend.triton_kernels.configs import (
    ARCHS,
    ArchConfig,
    DecodeConfig,
    PrefillConfig,
    is_aligned,
    kind_of,
    padded_dim,
)
from framework_builtin.backend.triton_kernels.variants import Variant, shipped_variants, wide_variants

TABLE = Path(__file__).with_name("resources.json")
DIGESTS = Path(__file__).with_name("compiled_from.json")
"""Version of triton -> chip -> digest of the sources it compiled the chip's part of the table from, by `--update`."""
_COMPILED_FROM = (
    "configs.py", "decode.py", "kernels.py", "launch.py", "operands.py", "plan.py", "prefill.py", "steps.py",
    "store.py", "tiles.py", "variants.py", "writes.py",
)  # fmt: skip
Job = tuple[Variant, ArchConfig | None]
"""What is compiled, and the chip's row of the table with a candidate in it; None: the table's own."""


def shipped(names: Collection[str] | None = None, archs: tuple[str, ...] = tuple(ARCHS)) -> list[Job]:
    """The table's configurations for some chips, all or those named."""
    return [(variant, None) for variant in shipped_variants(archs) if names is None or variant.name in names]


def compile_all(jobs: Iterable[Job], num_processes: int = 2) -> Iterator[tuple[Job, Resources | str]]:
    """Each job with what it takes, or with the compiler's last line where it fails; in the order given.

    One process: this one.
    """
    jobs = list(jobs)
    if num_processes == 1:
        yield from ((job, _compile(job)) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from zip(jobs, pool.map(_compile, jobs), strict=True)


def _compile(job: Job) -> Resources | str:
    variant, arch = job
    try:
        return compile_variant(variant, arch)
    except Exception as error:  # a candidate may fail in any way a compiler can; the table shows how
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"


def problems(variant: Variant, found: Resources | str) -> list[str]:
    """Why a configuration must not ship; empty when it may."""
    if isinstance(found, str):
        return [f"does not compile: {found}"]
    arch = ARCHS[variant.arch]
    reasons = []
    if found.spills:
        reasons.append(f"{found.spills} spills")
    if found.shared_bytes > arch.shared_bytes:
        reasons.append(f"{found.shared_bytes} bytes of shared memory, the chip has {arch.shared_bytes}")
    piped = is_aligned(variant.spec.head_dim) and kind_of(variant.spec.dtype, variant.spec.kv_dtype) != "float_bytes"
    if variant.kernel == "prefill" and variant.spec.dtype != "float32" and is_aligned(variant.spec.head_dim):
        wanted = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "MFMA"}[variant.arch]
        if found.matrix_instructions != wanted:
            reasons.append(f"uses {found.matrix_instructions or 'no matrix instruction'} instead of {wanted}")
    if piped and variant.kernel in ("decode", "prefill") and variant.arch.startswith("sm_") and not found.async_loads:
        reasons.append("no asynchronous load")
    return reasons


def candidates(args: argparse.Namespace) -> Iterator[Job]:
    """The cross product of the tiles, warps and stages asked for; a decode tile's M is at most the group's rows."""
    spec = AttentionSpec(
        num_heads=4 * args.group,
        num_kv_heads=4,
        head_dim=args.head_dim,
        dtype=args.dtype,
        block_size=args.block_size,
        kv_dtype=args.kv_dtype,
    )
    for arch, tile, warps, stages in itertools.product(args.arch, args.tiles, args.warps, args.stages):
        m, n = (int(part) for part in tile.split("x"))
        key = (kind_of(spec.dtype, spec.kv_dtype), padded_dim(spec.head_dim))
        variant, row = Variant(arch, args.kernel, spec, split=args.split or args.kernel == "decode"), ARCHS[arch]
        if args.kernel == "decode":
            tiles = DecodeConfig(block_n=n, num_warps=warps, num_stages=stages, max_m=m)
            yield variant, replace(row, decode=row.decode | {key: tiles})
        else:
            chunk = PrefillConfig(block_m=m, block_n=n, num_warps=warps, num_stages=stages)
            yield variant, replace(row, prefill=row.prefill | {key: chunk})


def read_table(version: str | None = None, path: Path = TABLE) -> tuple[str, dict[str, Resources]]:
    """The committed resources of each shipped kernel, by name, as one version of triton compiles them.

    Args:
        version: of triton; None: the newest in the table.

    Returns:
        The version, and an empty table where it has none of that version.
    """
    content = json.loads(path.read_text())
    version = version or max(content, key=Version)
    return version, {name: Resources(**found) for name, found in content.get(version, {}).items()}


def write_table(rows: dict[str, Resources], archs: Collection[str] = (), path: Path = TABLE) -> None:
    """Put rows into what the committed table says of the installed version of triton.

    Args:
        archs: chips that `rows` has whole: what the table has of them beside is dropped.
    """
    content = json.loads(path.read_text())
    found = {name: row for name, row in content.get(triton_version(), {}).items() if name.split("/")[0] not in archs}
    found |= {name: as_dict(row) for name, row in rows.items()}
    order = {variant.name: at for at, variant in enumerate(shipped_variants())}
    content[triton_version()] = {name: found[name] for name in sorted(found, key=lambda name: order.get(name, -1))}
    path.write_text(json.dumps(content, indent=1) + "\n")


def sources_digest() -> str:
    """SHA-256 of all that decides what the shipped table compiles to, but for the compiler."""
    digest = hashlib.sha256()
    for name in _COMPILED_FROM:
        digest.update(name.encode() + b"\0" + TABLE.with_name(name).read_bytes() + b"\0")
    return digest.hexdigest()


def is_as_compiled(version: str, arch: str) -> bool:
    """Whether this version of triton compiled all that the committed table has of a chip from just these sources."""
    return _digests().get(version, {}).get(arch) == sources_digest()


def write_digests(archs: Iterable[str]) -> None:
    """Note that the installed version of triton compiled these chips' part of the table from just these sources."""
    content, digest = _digests(), sources_digest()
    content.setdefault(triton_version(), {}).update(dict.fromkeys(archs, digest))
    DIGESTS.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _digests() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    return found


def differences(found: dict[str, Resources], *, whole: bool) -> list[str]:
    """What is otherwise than in the committed table, a line each; with `whole`, what is in one of both only, too.

    Empty where the table has nothing of the installed triton: each version allots registers otherwise.
    """
    _, table = read_table(triton_version())
    if not table:
        return []
    lines = [
        f"{name}: {as_dict(table[name])} committed, {as_dict(got)} now"
        for name, got in found.items()
        if name in table and table[name] != got
    ]
    return lines + ([f"{name}: in one of both only" for name in sorted(set(table) ^ set(found))] if whole else [])


def _print(job: Job, found: Resources | str) -> None:
    variant, arch = job
    tile = "" if arch is None else f" {_tile(variant, arch)}"
    reasons = problems(variant, found)
    numbers = "" if isinstance(found, str) else " ".join(f"{name}={value}" for name, value in as_dict(found).items())
    sys.stdout.write(f"{variant.name}{tile}: {numbers} {'UNFIT: ' + '; '.join(reasons) if reasons else 'fit'}\n")
    sys.stdout.flush()


def _tile(variant: Variant, arch: ArchConfig) -> str:
    key = (kind_of(variant.spec.dtype, variant.spec.kv_dtype), padded_dim(variant.spec.head_dim))
    chosen = arch.decode[key] if variant.kernel == "decode" else arch.prefill[key]
    rows = chosen.max_m if isinstance(chosen, DecodeConfig) else chosen.block_m
    return f"{rows}x{chosen.block_n} {chosen.num_warps} warps {chosen.num_stages} stages"


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when something is unfit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=list(ARCHS), choices=list(ARCHS))
    parser.add_argument("--update", action="store_true", help="write resources.json (shipped table)")
    parser.add_argument("--check", action="store_true", help="fail where resources.json says otherwise (shipped table)")
    parser.add_argument("--wide", action="store_true", help="what users may select beyond the shipped table's variants")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="of the shipped table, only the names that contain this")
    parser.add_argument("--kernel", choices=["decode", "prefill"], default="decode")
    parser.add_argument("--tiles", nargs="+", default=[], help="candidates, M x N, such as 128x64")
    parser.add_argument("--warps", nargs="+", type=int, default=[4])
    parser.add_argument("--stages", nargs="+", type=int, default=[3])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--group", type=int, default=8, help="query heads a kv head")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--kv-dtype", default=None, choices=["float8_e4m3fn", "int8"])
    parser.add_argument("--split", action="store_true", help="prefill candidates whose context is split")
    args = parser.parse_args(arguments)
    if args.wide and (args.update or args.check):
        parser.error("--wide is not what resources.json holds: without --update and --check")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: unset it, the interpreter compiles nothing")
    start, cpu = time.perf_counter(), _cpu_s()
    archs = tuple(args.arch)
    table = [(variant, None) for variant in wide_variants(archs)] if args.wide else shipped(archs=archs)
    jobs = list(candidates(args)) if args.tiles else [job for job in table if args.only in job[0].name]
    rows, unfit = {}, 0
    for job, found in compile_all(jobs, args.jobs):
        _print(job, found)
        unfit += bool(problems(job[0], found))
        if isinstance(found, Resources):
            rows[job[0].name] = found
    whole = len(args.arch) == len(ARCHS) and not args.only
    failed = {job[0].arch for job in jobs if job[0].name not in rows}
    changed = differences(rows, whole=whole) if args.check and not args.tiles else []
    if args.update and not args.tiles:
        complete = [] if args.only else [arch for arch in args.arch if arch not in failed]
        write_table(rows, complete)
        if not unfit:
            write_digests(complete)
    sys.stdout.writelines(f"changed: {line}\n" for line in changed)
    sys.stdout.write(
        f"{len(jobs)} kernels, {unfit} unfit, {len(changed)} otherwise than resources.json; "
        f"{time.perf_counter() - start:.0f} s, {_cpu_s() - cpu:.0f} s of CPU in {args.jobs} processes\n"
    )
    return int(unfit > 0 or bool(changed))


def triton_version() -> str:
    """The installed triton's."""
    import triton

    return str(triton.__version__)


def _cpu_s() -> float:
    """User and system seconds of this process and its ended children."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
