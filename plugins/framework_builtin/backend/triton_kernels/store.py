"""Writes into the pool: new tokens' K and V to their slots, and whole blocks to other blocks."""

# mypy: ignore-errors
# Kernel code is a language of its own: its arguments are pointers or compile-time constants, and mypy knows neither.
# Shapes: T new tokens  K kv heads  D head dim  E elements of a token's K heads, padded  TOKENS of one program

import triton.language as tl


def write_kv(
    K_NEW,
    V_NEW,
    K,
    V,
    SLOTS,  # (T,) int64; negative ones are skipped
    K_SCALE,
    V_SCALE,
    num_tokens,
    new_k_stride_t,
    new_k_stride_h,
    new_v_stride_t,
    new_v_stride_h,
    k_stride_b,
    k_stride_s,
    k_stride_h,
    v_stride_b,
    v_stride_s,
    v_stride_h,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    E: tl.constexpr,
    TOKENS: tl.constexpr,
    QUANTISE: tl.constexpr,  # to e4m3, stored as bytes
):
    """K and V of TOKENS tokens, all heads, in one pass."""
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    slot = tl.load(SLOTS + token, mask=token < num_tokens, other=-1)
    element = tl.arange(0, E)
    head = (element // HEAD_DIM)[None, :]
    d = (element % HEAD_DIM)[None, :]
    wanted = (slot >= 0)[:, None] & (element < NUM_KV_HEADS * HEAD_DIM)[None, :]
    block = (slot // PAGE)[:, None]
    offset = (slot % PAGE)[:, None]
    token = token[:, None]
    k = tl.load(K_NEW + token * new_k_stride_t + head * new_k_stride_h + d, mask=wanted, other=0)
    v = tl.load(V_NEW + token * new_v_stride_t + head * new_v_stride_h + d, mask=wanted, other=0)
    if QUANTISE:
        of_head = element < NUM_KV_HEADS * HEAD_DIM
        k_scale = tl.load(K_SCALE + element // HEAD_DIM, mask=of_head, other=1.0)[None, :]
        v_scale = tl.load(V_SCALE + element // HEAD_DIM, mask=of_head, other=1.0)[None, :]
        k = tl.minimum(tl.maximum(k.to(tl.float32) / k_scale, -448.0), 448.0)
        v = tl.minimum(tl.maximum(v.to(tl.float32) / v_scale, -448.0), 448.0)
        k = k.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        v = v.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    tl.store(K + block * k_stride_b + offset * k_stride_s + head * k_stride_h + d, k, mask=wanted)
    tl.store(V + block * v_stride_b + offset * v_stride_s + head * v_stride_h + d, v, mask=wanted)


def copy_blocks(
    K,  # as bytes, words or anything else of one element size
    V,
    COPIES,  # (n, 2) int64
    num_copies,
    k_stride_b,
    v_stride_b,
    NUM_ELEMENTS: tl.constexpr,
    E: tl.constexpr,
):
    """One slice of every block a program, through all copies in order: chains a->b, b->c need no synchronisation."""
    element = tl.program_id(0) * E + tl.arange(0, E)
    wanted = element < NUM_ELEMENTS
    for copy in range(num_copies):
        source = tl.load(COPIES + copy * 2)
        destination = tl.load(COPIES + copy * 2 + 1)
        k = tl.load(K + source * k_stride_b + element, mask=wanted, other=0)
        v = tl.load(V + source * v_stride_b + element, mask=wanted, other=0)
        tl.store(K + destination * k_stride_b + element, k, mask=wanted)
        tl.store(V + destination * v_stride_b + element, v, mask=wanted)
