"""The launch of a batch: tile shapes, grids and constants, from shapes and host bounds alone."""

# Shapes: T query tokens  B rows  H query heads  K kv heads  D head dim  S tokens a block  M blocks a table row

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from framework.interfaces.backend import AttentionSpec
from framework_triton.configs import ArchConfig, Tiles, decode_tiles, is_biased, padded_dim, prefill_tiles

LOG2_E = 1.4426950408889634
_INTERPRETED_ELEMENTS = 1 << 20  # of one K tile in the interpreter: 8 MiB of addresses
AS_QUERIES, E4M3_BY_BITS, E4M3_BY_CHIP, INT8 = range(4)
"""What a pool holds, and how the kernels read it: their constant STORED."""


def next_power(value: int) -> int:
    """The smallest power of 2 that is not below `value` (at least 1)."""
    return 1 << max(value - 1, 0).bit_length()


def next_size(value: int) -> int:
    """The smallest of 64, 256, 1024 and so on that is not below `value`: few sizes, few kernels to compile."""
    size = 64
    while size < value:
        size *= 4
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(Tiles):
    """Everything a decode or prefill kernel is specialised on, besides the spec.

    Attributes:
        d: elements of a head, padded.
        items: work items of one program.
        head_blocks: programs that share the query heads of a kv head, where they are more than fit the tile's M rows.
    """

    d: int
    items: int = 1
    head_blocks: int = 1


def decode_shape(spec: AttentionSpec, arch: ArchConfig | None, num_rows: int, max_context: int) -> Shape:
    """Tiles of the decode kernel. Without an arch the interpreter's: few programs, each of many rows and heads.

    The interpreter's cost is per program and per tile, hardly per element.
    """
    group = spec.num_heads // spec.num_kv_heads
    if arch is not None:
        tiles = decode_tiles(arch, spec)
        return _chip_shape(spec, replace(tiles, m=min(max(next_power(group), 16), tiles.m)))
    dim = next_power(spec.value_dim)
    tokens = min(max(next_power(max_context), 16), 512, max(_INTERPRETED_ELEMENTS // dim, 16))
    items = max(min(next_power(num_rows * spec.num_kv_heads), _INTERPRETED_ELEMENTS // (tokens * dim)), 1)
    return Shape(m=next_power(group), n=tokens, d=dim, items=items)


def prefill_shape(spec: AttentionSpec, arch: ArchConfig | None, max_queries: int, max_context: int) -> Shape:
    """Tiles of the prefill kernel; without an arch the rows shrink to what the longest chunk fills."""
    if arch is not None:
        tiles = prefill_tiles(arch, spec)
        halved = arch.halve_when_biased and is_biased(spec)
        return _chip_shape(spec, replace(tiles, n=max(tiles.n // 2, 16)) if halved else tiles)
    group = spec.num_heads // spec.num_kv_heads
    rows = min(next_power(max(max_queries, 1) * group), 512)
    tokens = min(max(next_power(max_context), 16), 512)
    return Shape(m=max(rows, next_power(group)), n=tokens, d=next_power(spec.value_dim))


def _chip_shape(spec: AttentionSpec, tiles: Tiles) -> Shape:
    head_blocks = -(-(spec.num_heads // spec.num_kv_heads) // tiles.m)
    return Shape(**asdict(tiles), d=padded_dim(spec.value_dim), head_blocks=head_blocks)


_SPLIT_ROWS = 64  # of a tile that reads a part of the context: few queries, and registers for the partial output


def split_shape(spec: AttentionSpec, shape: Shape) -> Shape:
    """The prefill tile of programs that each read a part of the context."""
    rows = min(shape.m, _SPLIT_ROWS)
    return replace(shape, m=rows, head_blocks=-(-(spec.num_heads // spec.num_kv_heads) // rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShape:
    """The shape of a write: pairs a head, heads and tokens of one program, programs a token."""

    pairs: int
    heads: int
    tokens: int
    parts: int


def store_shape(spec: AttentionSpec, num_tokens: int, *, rotates: bool, interpreted: bool) -> StoreShape:
    """Tiles of the write kernel: 1024 elements of a token on a GPU; in the interpreter many whole tokens."""
    pairs = next_power(spec.head_dim // 2)
    most = next_power(max(spec.num_heads if rotates else 1, spec.num_kv_heads))
    heads = most if interpreted else min(max(512 // pairs, 1), most)
    tokens = min(next_power(num_tokens), max(_INTERPRETED_ELEMENTS // (2 * most * pairs), 1)) if interpreted else 1
    parts = 2 * -(-spec.num_kv_heads // heads) + (-(-spec.num_heads // heads) if rotates else 0)
    return StoreShape(pairs=pairs, heads=heads, tokens=tokens, parts=parts)


def feature_constants(spec: AttentionSpec, arch: ArchConfig | None) -> dict[str, int | bool]:
    """The constants that both attention kernels share."""
    return {
        "GROUP": spec.num_heads // spec.num_kv_heads,
        "HEAD_DIM": spec.value_dim,
        "ROPE": spec.head_dim - spec.value_dim,
        "R": max(next_power(spec.head_dim - spec.value_dim), 16),
        "LATENT": spec.latent_dim is not None,
        "PAGE": spec.block_size,
        "HAS_CAP": spec.soft_cap is not None,
        "STORED": _stored(spec, arch),
    }


def span(spec: AttentionSpec) -> tuple[int, int]:
    """What a query sees, as `tiles.first_seen` takes it: 0, all; 1, a window; 2, its chunk; and the tokens of these."""
    if spec.attention_chunk is not None:
        return 2, spec.attention_chunk
    return int(spec.sliding_window is not None), spec.sliding_window or 0


def _stored(spec: AttentionSpec, arch: ArchConfig | None) -> int:
    if spec.kv_dtype in (None, spec.dtype):
        return AS_QUERIES
    if spec.kv_dtype == "int8":
        return INT8
    return E4M3_BY_CHIP if arch is not None and arch.native_fp8 else E4M3_BY_BITS


def quantised(stored: int) -> int:
    """What the write kernel makes of new tokens, its constant QUANTISE: nothing (0), e4m3 (1) or int8 (2)."""
    return {AS_QUERIES: 0, INT8: 2}.get(stored, 1)


def scales(spec: AttentionSpec) -> tuple[float, float]:
    """What a raw score is multiplied by, and what the capped one is: base-2 logits come out."""
    if spec.soft_cap is None:
        return spec.softmax_scale * LOG2_E, 1.0
    return spec.softmax_scale / spec.soft_cap, spec.soft_cap * LOG2_E


@dataclass(frozen=True, slots=True)
class Split:
    """How a decode launch may cut its rows. As many `num_work` as rows means: nothing is split.

    Attributes:
        num_work: work items at most.
        share: of them run at once.
        num_choices: `num_work`, then `share` fewer each: the plan takes what ends first.
        min_tiles: of one piece.
    """

    num_work: int
    share: int
    num_choices: int
    min_tiles: int


_CHOICES = 4


def split_of(
    num_rows: int, max_context: int, block_n: int, share: int, min_split_tokens: int, split_tokens: int | None
) -> Split:
    """The bounds of a decode launch.

    Args:
        max_context: a bound, tokens. Where no context can fill two splits, none is planned for.
        share: work items that fill the device, each running once for every kv head; 0: do not split.
        min_split_tokens: a split by work is at least this long.
        split_tokens: cut every row at multiples of this many tokens instead of by what is left of the device.
    """
    if split_tokens is not None:
        tiles = max(split_tokens // block_n, 1)
        num_work = num_rows * max(-(-max_context // (tiles * block_n)) + 1, 1)
        return Split(num_work, num_work, 1, tiles)
    if share == 0 or max_context <= min_split_tokens:
        return Split(num_rows, num_rows, 1, 1)
    least = -(-num_rows // share) * share
    return Split(least + (_CHOICES - 1) * share, share, _CHOICES, max(min_split_tokens // block_n, 1))


def block_q(spec: AttentionSpec, shape: Shape) -> int:
    """Query tokens of one prefill tile."""
    return max(shape.m // (spec.num_heads // spec.num_kv_heads), 1)


def prefill_grid(spec: AttentionSpec, shape: Shape, num_tokens: int, num_rows: int) -> tuple[int, int]:
    """Programs over tiles of queries, each row having one more than it may need, and over blocks of heads."""
    return num_tokens // block_q(spec, shape) + num_rows, spec.num_kv_heads * shape.head_blocks


def chunk_split_len(
    grid: tuple[int, int], max_context: int, block_n: int, fill: int, min_split_tokens: int, split_tokens: int | None
) -> int:
    """Tokens of context that one program of a prefill launch reads; 0: all of them, nothing is split.

    Args:
        grid: of the launch without splits.
        max_context: a bound, tokens.
        fill: programs that fill the device; 0: do not split.
        min_split_tokens, split_tokens: as in `split_of`.
    """
    if split_tokens is not None:
        length = max(split_tokens // block_n, 1) * block_n
        return length if length < max_context else 0
    splits = min(fill // max(grid[0] * grid[1], 1), max_context // max(min_split_tokens, 1))
    return -(-max_context // splits // block_n) * block_n if splits > 1 else 0
