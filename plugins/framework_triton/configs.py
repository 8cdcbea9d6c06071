"""Tile shapes by chip and head size: an explicit table, screened ahead of time; nothing is tuned at run time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from framework.errors import InvalidArgument
from framework.interfaces.backend import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The tile of an attention kernel.

    Attributes:
        m: query rows (token x head); of decode query heads, at most: larger groups are cut into blocks, as with 128
            the registers spill.
        n: tokens of context.
        max_registers: of a thread, on NVIDIA's chips. NOTE: 0 leaves it to ptxas, which may spill a few of them to fit
            one more program on a multiprocessor: 2 of 128 at head dim 256 under triton 3.6. Given that limit, it
            spills none and takes 109.
    """

    m: int
    n: int
    num_warps: int = 4
    num_stages: int = 2
    max_registers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchConfig:
    """What a chip runs.

    Attributes:
        shared_bytes: shared memory one program may use.
        native_fp8: the chip converts e4m3 itself.
        decode, prefill: by (kind, padded head dim); the kinds are `kind_of`'s, "unaligned" of head dims that are no
            multiple of 16, and "latent" of latent caches.
        items_per_sm: programs of the decode grid for each multiprocessor; 0: rows are never split.
        chunks_per_sm: programs of the prefill grid that a multiprocessor runs; with fewer the context is split.
        min_split_tokens: a split is at least this long.
        halve_when_biased: prefill takes half as many context tokens a tile, at least 16, under a soft cap or ALiBi,
            whose arithmetic would spill.
        biased_registers: `max_registers` of prefill under a soft cap or ALiBi, by (kind, padded head dim): where ptxas
            would spill to fit one more program on a multiprocessor.
    """

    target: tuple[str, int, int]
    shared_bytes: int
    native_fp8: bool
    decode: dict[tuple[str, int], Tiles]
    prefill: dict[tuple[str, int], Tiles]
    items_per_sm: int = 4
    chunks_per_sm: int = 1
    min_split_tokens: int = 128
    halve_when_biased: bool = False
    biased_registers: dict[tuple[str, int], int] = field(default_factory=dict)


# In a paged loop Triton divides num_stages by the depth of the indirection (page id, then page): 3 keeps one K/V tile
# in flight, 5 two. M 128 needs 8 warps; with 4 it spills. fp32 products are exact (no tensor cores) and take registers.
_DECODE = {
    ("half", 64): Tiles(m=64, n=128, num_warps=4, num_stages=3),
    ("half", 128): Tiles(m=64, n=64, num_warps=4, num_stages=3),
    ("half", 256): Tiles(m=64, n=32, num_warps=8, num_stages=3, max_registers=128),
    ("fp8", 64): Tiles(m=64, n=128, num_warps=4, num_stages=3),
    ("fp8", 128): Tiles(m=64, n=64, num_warps=4, num_stages=3),
    ("fp8", 256): Tiles(m=64, n=32, num_warps=4, num_stages=3),
    ("int8", 64): Tiles(m=16, n=128, num_warps=4, num_stages=3, max_registers=255),
    ("int8", 128): Tiles(m=16, n=64, num_warps=4, num_stages=3, max_registers=255),
    ("int8", 256): Tiles(m=16, n=32, num_warps=8, num_stages=3, max_registers=255),
    ("float", 64): Tiles(m=64, n=32, num_warps=8, num_stages=2),
    ("float", 128): Tiles(m=64, n=16, num_warps=4, num_stages=2),
    ("float", 256): Tiles(m=64, n=16, num_warps=4, num_stages=2),
}
_PREFILL = {
    ("half", 64): Tiles(m=128, n=64, num_warps=8, num_stages=3),
    ("half", 128): Tiles(m=128, n=64, num_warps=8, num_stages=3),
    ("half", 256): Tiles(m=64, n=32, num_warps=8, num_stages=3),
    ("fp8", 64): Tiles(m=128, n=64, num_warps=8, num_stages=3),
    ("fp8", 128): Tiles(m=128, n=64, num_warps=8, num_stages=3),
    ("fp8", 256): Tiles(m=64, n=32, num_warps=8, num_stages=3),
    ("int8", 64): Tiles(m=128, n=32, num_warps=8, num_stages=3, max_registers=255),
    ("int8", 128): Tiles(m=64, n=32, num_warps=8, num_stages=3, max_registers=255),
    ("int8", 256): Tiles(m=64, n=16, num_warps=8, num_stages=3, max_registers=255),
    ("float", 64): Tiles(m=32, n=16, num_warps=8, num_stages=2),  # 32x32: groups of 2 spill
    ("float", 128): Tiles(m=32, n=16, num_warps=8, num_stages=2),
    ("float", 256): Tiles(m=16, n=32, num_warps=8, num_stages=2),
}
# fp32 queries over bytes: a pipelined loop keeps whole tiles, widened, in registers and spills thousands.
_FEW_ROWS = Tiles(m=16, n=16, num_warps=8, num_stages=1, max_registers=255)
_DECODE |= {("float_bytes", dim): _FEW_ROWS for dim in (64, 128, 256)}
_PREFILL |= {
    ("float_bytes", 64): _FEW_ROWS,
    ("float_bytes", 128): _FEW_ROWS,
    ("float_bytes", 256): replace(_FEW_ROWS, m=32),
}
# Head dims that are no multiple of 16: every element is loaded by itself, and its address takes registers.
_FEW_WARPS = replace(_FEW_ROWS, num_warps=4)
_DECODE |= {("unaligned", 64): _FEW_WARPS, ("unaligned", 128): _FEW_ROWS, ("unaligned", 256): _FEW_ROWS}
_PREFILL |= {("unaligned", 64): _FEW_WARPS, ("unaligned", 128): _FEW_ROWS, ("unaligned", 256): _FEW_WARPS}
# Of a latent cache a tile of rows is K and V, and serves all latents. By registers alone: with 64 query rows, which
# sm_90's HGMMA asks for, their sums of 512 elements spill (18 to 374 under triton 3.9).
_DECODE[("latent", 512)] = Tiles(m=16, n=32, num_warps=8, num_stages=3)
_PREFILL[("latent", 512)] = Tiles(m=32, n=32, num_warps=8, num_stages=2)
_KIB = 1024

ARCHS: dict[str, ArchConfig] = {
    "sm_80": ArchConfig(
        target=("cuda", 80, 32),
        shared_bytes=99 * _KIB,  # the chip has 163; 8.6, 8.9 and 12.x, which share the row, have 99
        native_fp8=False,
        decode=_DECODE
        | {
            ("half", 128): Tiles(m=32, n=64, num_warps=4, num_stages=3),
            ("float", 64): Tiles(m=64, n=16, num_warps=8, num_stages=2),  # 32: head dim 48, pages of 3 spill
            ("float", 256): Tiles(m=64, n=16, num_warps=8, num_stages=2),
        },
        prefill=_PREFILL
        | {
            ("half", 128): Tiles(m=128, n=32, num_warps=8, num_stages=3),
            ("fp8", 128): Tiles(m=128, n=32, num_warps=8, num_stages=3),
            ("fp8", 256): Tiles(m=32, n=32, num_warps=8, num_stages=3),
            ("int8", 256): Tiles(m=32, n=16, num_warps=8, num_stages=3, max_registers=255),
            ("float", 128): Tiles(m=16, n=16, num_warps=4, num_stages=3),
        },
        halve_when_biased=True,
        biased_registers={("fp8", 64): 255, ("fp8", 256): 255, ("float", 64): 128},
    ),
    "sm_90": ArchConfig(
        target=("cuda", 90, 32),
        shared_bytes=227 * _KIB,
        native_fp8=True,
        decode=_DECODE,
        prefill=_PREFILL
        | {
            ("fp8", 256): Tiles(m=64, n=16, num_warps=8, num_stages=3),
            # With a limit of 255 ptxas uses them all and, split over the context, spills 10 under triton 3.9.
            ("int8", 256): Tiles(m=64, n=16, num_warps=8, num_stages=3),
            ("float", 128): Tiles(m=16, n=16, num_warps=8, num_stages=2),
            ("float", 256): Tiles(m=16, n=16, num_warps=4, num_stages=3),
        },
    ),
}
"""Shipped configurations. A test compiles each, without a spill."""


def kind_of(dtype: str, kv_dtype: str | None) -> str:
    """For half-precision queries "half", over e4m3 "fp8", over int8 "int8"; for float32 "float" and "float_bytes"."""
    if dtype == "float32":
        return "float" if kv_dtype in (None, dtype) else "float_bytes"
    if kv_dtype in (None, dtype):
        return "half"
    return "int8" if kv_dtype == "int8" else "fp8"


def decode_tiles(arch: ArchConfig, spec: AttentionSpec) -> Tiles:
    """The tiles that decode a spec."""
    return arch.decode[_row_of(spec)]


def prefill_tiles(arch: ArchConfig, spec: AttentionSpec) -> Tiles:
    """The tiles of a spec's chunks."""
    row = _row_of(spec)
    if is_biased(spec) and row in arch.biased_registers:
        return replace(arch.prefill[row], max_registers=arch.biased_registers[row])
    return arch.prefill[row]


def _row_of(spec: AttentionSpec) -> tuple[str, int]:
    if spec.latent_dim is not None:
        return "latent", 512
    kind = kind_of(spec.dtype, spec.kv_dtype) if spec.head_dim % 16 == 0 else "unaligned"
    return kind, padded_dim(spec.head_dim)


def is_biased(spec: AttentionSpec) -> bool:
    """Whether scores are changed one by one before the softmax, which takes registers."""
    return spec.soft_cap is not None or spec.alibi


def padded_dim(head_dim: int) -> int:
    """The tile's head dim: the next of 64, 128, 256, the sizes that the table has, and 512, of latents."""
    for dim in (64, 128, 256, 512):
        if head_dim <= dim:
            return dim
    raise InvalidArgument(f"head dim {head_dim} is above 512, the largest tile")


def arch_of(major: int, minor: int) -> str:
    """The table's row for a CUDA compute capability: the newest that is not newer.

    10.x takes sm_90's row. 12.x (consumer Blackwell) has neither wgmma nor tcgen05 and little shared memory: sm_80's.
    """
    capability = 10 * major + minor
    known = [name for name in ARCHS if name.startswith("sm_") and int(name[3:]) <= capability]
    if not known:
        raise InvalidArgument(f"compute capability {major}.{minor} is older than 8.0, the oldest in the table")
    return "sm_80" if major >= 12 else max(known, key=lambda name: int(name[3:]))
