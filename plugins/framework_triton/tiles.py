"""What both attention kernels do with a tile of K and V, in functions that are put into the kernels."""

# mypy: ignore-errors
# Kernel code is a language of its own: its arguments are pointers or compile-time constants, and mypy knows neither.
# Shapes: I work items (of the interpreter's decode)  M query rows  N tokens of context a tile  D head dim, padded

import triton.language as tl
from triton.runtime.jit import JITFunction


class Inlined(JITFunction):
    """A function that kernels call: the compiler puts it into the kernel, the interpreter calls it as plain Python.

    NOTE: not `triton.jit`. That decides once for the process whether it compiles or interprets, and its interpreted
    functions patch the whole language again at every call.
    """

    def __call__(self, *args, **constants):
        return self.fn(*args, **constants)


@Inlined
def first_seen(position, window, SPAN: tl.constexpr):
    """The first token that a query at this position reads: SPAN 0, all; 1, a window; 2, chunks of `window` tokens."""
    first = position * 0
    if SPAN == 1:
        first = tl.maximum(position - window + 1, 0)
    if SPAN == 2:
        first = tl.maximum(position, 0) // window * window
    return first


@Inlined
def page_and_slot(
    table,  # pointer to the row's page ids; (I, 1) of them where BY_TILE is not set
    tile,  # first token of the tile
    position,  # of the tile's tokens in their row
    inside,  # whether they are read
    stop,  # end of the tokens that are read
    PAGE: tl.constexpr,
    N: tl.constexpr,
    BY_TILE: tl.constexpr,  # one row's tile: (N,); else (I, N)
):
    """Page ids, int64, and slots in the pages: one load a page where pages and tiles fit each other, else a token."""
    n = tl.arange(0, N)
    if BY_TILE and PAGE % N == 0:
        page = tl.broadcast_to(tl.load(table + tile // PAGE).to(tl.int64), (N,))
        slot = tile % PAGE + n
    elif BY_TILE and N % PAGE == 0:
        index = tile // PAGE + tl.arange(0, N // PAGE)
        page = tl.load(table + index, mask=index * PAGE < stop, other=0).to(tl.int64)
        # One id a slot before any stride: a reshape of offsets hides their divisibility from triton 3.5 to 3.7.
        page = tl.reshape(tl.broadcast_to(page[:, None], (N // PAGE, PAGE)), (N,))
        slot = n % PAGE
    else:
        page = tl.load(table + position // PAGE, mask=inside, other=0).to(tl.int64)
        slot = position % PAGE
    return page, slot


@Inlined
def rope_scores(
    q_rope,  # (M, R), or (I, M, R): what is rotated of the queries
    k_tokens,  # pointers to the tokens' rows of K, (1, N) or (I, 1, N)
    inside,  # of them, which are read
    HEAD_DIM: tl.constexpr,  # of the latents before what is rotated
    ROPE: tl.constexpr,
    R: tl.constexpr,
    STORED: tl.constexpr,
    UPCAST: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """The products of queries and keys that a latent cache's rotated elements add to the scores."""
    r = tl.arange(0, R)
    r_k = r[:, None] if ITEMS == 1 else r[None, :, None]
    k_rope = tl.load(k_tokens + HEAD_DIM + r_k, mask=inside & (r_k < ROPE), other=0)
    return tl.dot(q_rope, as_queries(k_rope, q_rope, STORED, UPCAST), input_precision="ieee")


@Inlined
def as_queries(stored, q, STORED: tl.constexpr, UPCAST: tl.constexpr):
    """K or V as loaded, in the dtype of q; the scales are left to the caller. STORED, UPCAST: as the kernels'."""
    if STORED == 1:
        bits = stored.to(tl.uint16)
        stored = ((((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0).to(q.dtype)
    elif STORED == 2:
        stored = stored.to(tl.float8e4nv, bitcast=True).to(q.dtype)
    elif STORED == 3:
        stored = stored.to(tl.int8, bitcast=True).to(q.dtype)
    elif UPCAST:
        stored = stored.to(tl.float32)
    return stored


@Inlined
def int8_values(stored, scale, q):
    """V of an int8 pool times its scales, in float32 before it is rounded to the dtype of q.

    A weight times a scale may be too small for float16, so V's scales go to V; K's go to the scores.
    """
    return (stored.to(tl.int8, bitcast=True).to(tl.float32) * scale).to(q.dtype)


@Inlined
def soft_capped(score, cap_scale):
    """tanh(score) * cap_scale: its series where 1 - e^-2x would cancel, the exponential elsewhere."""
    size = tl.abs(score)
    square = score * score
    decay = tl.exp2(size * -2.8853900817779268)
    large = (1.0 - decay) / (1.0 + decay)
    series = 0.021869488536155202 + square * -0.008863235529902197
    series = -0.05396825396825397 + square * series
    series = -0.3333333333333333 + square * (0.13333333333333333 + square * series)
    series = score * (1.0 + square * series)
    return tl.where(size < 0.3, series, tl.where(score < 0, -large, large)) * cap_scale
