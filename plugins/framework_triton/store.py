"""Writes into the pool: new tokens' K and V to their slots, rotated on the way if asked; blocks to other blocks."""

# mypy: ignore-errors
# Kernel code is a language of its own: its arguments are pointers or compile-time constants, and mypy knows neither.
# Shapes: T new tokens  H query heads  K kv heads  D head dim  P rows of angles  E elements of a slice
#         M rows of a tile: TOKENS x HEADS x the two halves of a head; PAIRS its columns, D / 2 padded

import triton.language as tl


def write_kv(
    Q,  # (T, H, D), or None where nothing is rotated; then Q_OUT, COS, SIN are None as well
    K_NEW,
    V_NEW,
    Q_OUT,
    K,
    V,
    COS,  # (P, D / 2)
    SIN,
    POSITIONS,  # (T,) int64: a token's row of COS and SIN; None: its own
    SLOTS,  # (T,) int64; negative ones are skipped
    K_SCALE,
    V_SCALE,
    num_tokens,
    q_stride_t,
    q_stride_h,
    new_k_stride_t,
    new_k_stride_h,
    new_v_stride_t,
    new_v_stride_h,
    q_out_stride_t,
    q_out_stride_h,
    cos_stride,
    sin_stride,
    k_stride_b,
    k_stride_s,
    k_stride_h,
    v_stride_b,
    v_stride_s,
    v_stride_h,
    scale_stride_b,  # of K_SCALE and of V_SCALE where each token and head has a scale
    scale_stride_s,
    scale_stride_h,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    INTERLEAVED: tl.constexpr,  # a pair is (2i, 2i + 1) instead of (i, i + D / 2)
    QUANTISE: tl.constexpr,  # 0: not. 1: to e4m3, stored as bytes. 2: to int8, with a scale of each token and head
    UPCAST: tl.constexpr,  # the interpreter cuts float32 to bfloat16: round first
):
    """Some heads of q, of k or of v, of TOKENS tokens, a program: the second grid axis goes through all three."""
    HALF: tl.constexpr = HEAD_DIM // 2
    Q_PARTS: tl.constexpr = 0 if COS is None else (NUM_HEADS + HEADS - 1) // HEADS
    KV_PARTS: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    FIRST: tl.constexpr = 1 if COS is None else 0
    row = tl.arange(0, 2 * TOKENS * HEADS)
    pair = tl.arange(0, PAIRS)[None, :]
    half = (row % 2)[:, None]
    if INTERLEAVED:
        d = pair * 2 + half
        partner = pair * 2 + 1 - half
    else:
        d = half * HALF + pair
        partner = (1 - half) * HALF + pair
    token = (tl.program_id(0) * TOKENS + row // (2 * HEADS)).to(tl.int64)
    live = token < num_tokens
    slot = tl.load(SLOTS + token, mask=live, other=-1)
    block = (slot // PAGE)[:, None]
    offset = (slot % PAGE)[:, None]
    for piece in tl.static_range(FIRST, 3):
        if piece == 0:
            source = Q + token[:, None] * q_stride_t
            source_stride = q_stride_h
            target = Q_OUT + token[:, None] * q_out_stride_t
            target_stride = q_out_stride_h
            part = tl.program_id(1)
            parts = Q_PARTS
            num_heads = NUM_HEADS
            writes = live
        elif piece == 1:
            source = K_NEW + token[:, None] * new_k_stride_t
            source_stride = new_k_stride_h
            target = K + block * k_stride_b + offset * k_stride_s
            target_stride = k_stride_h
            part = tl.program_id(1) - Q_PARTS
            parts = KV_PARTS
            num_heads = NUM_KV_HEADS
            writes = slot >= 0
        else:
            source = V_NEW + token[:, None] * new_v_stride_t
            source_stride = new_v_stride_h
            target = V + block * v_stride_b + offset * v_stride_s
            target_stride = v_stride_h
            part = tl.program_id(1) - Q_PARTS - KV_PARTS
            parts = KV_PARTS
            num_heads = NUM_KV_HEADS
            writes = slot >= 0
        if (part >= 0) & (part < parts):
            head = part * HEADS + row // 2 % HEADS
            known = (writes & (head < num_heads))[:, None] & (pair < HALF)
            head_x = head[:, None]
            x = tl.load(source + head_x * source_stride + d, mask=known, other=0.0).to(tl.float32)
            if COS is not None and piece < 2:
                angle = token
                if POSITIONS is not None:
                    angle = tl.load(POSITIONS + token, mask=live, other=0)
                other = tl.load(source + head_x * source_stride + partner, mask=known, other=0.0).to(tl.float32)
                cos = tl.load(COS + angle[:, None] * cos_stride + pair, mask=known, other=0.0).to(tl.float32)
                sin = tl.load(SIN + angle[:, None] * sin_stride + pair, mask=known, other=0.0).to(tl.float32)
                x = x * cos + tl.where(half == 0, -other, other) * sin
            if QUANTISE == 2 and piece > 0:
                SCALE = K_SCALE if piece == 1 else V_SCALE
                # The two rows of a head share its largest magnitude, which becomes 127; what is not finite makes the
                # scale infinite over zeros. Adding 1.5 * 2^23 rounds to nearest even, and leaves the byte in the bits.
                size = tl.reduce(tl.where(x == x, tl.abs(x), float("inf")), 1, tl.standard._elementwise_max)
                size = tl.reduce(tl.reshape(size, (TOKENS * HEADS, 2)), 1, tl.standard._elementwise_max)
                size = tl.reshape(tl.broadcast_to(size[:, None], (TOKENS * HEADS, 2)), (2 * TOKENS * HEADS,))
                scale = size / 127.0
                scale_offset = slot // PAGE * scale_stride_b + slot % PAGE * scale_stride_s + head * scale_stride_h
                tl.store(SCALE + scale_offset, scale, mask=writes & (head < num_heads) & (row % 2 == 0))
                x = (
                    tl.where((size < float("inf"))[:, None], x, 0.0)
                    / tl.maximum(scale, 1.1754943508222875e-38)[:, None]
                )
                code = (tl.minimum(tl.maximum(x, -127.0), 127.0) + 12582912.0).to(tl.uint32, bitcast=True) & 0xFF
                tl.store(target + head_x * target_stride + d, code.to(tl.uint8), mask=known)
            elif QUANTISE == 1 and piece > 0:
                SCALE = K_SCALE if piece == 1 else V_SCALE
                if SCALE is not None:
                    x = x / tl.load(SCALE + head, mask=head < num_heads, other=1.0)[:, None]
                # To nearest, ties to even: by the bits from 2^-6 up, below it in units of 2^-9, which 2^14 has.
                size = tl.minimum(tl.abs(x), 448.0)
                bits = size.to(tl.uint32, bitcast=True)
                normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
                small = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
                code = tl.where(x == x, tl.where(size < 0.015625, small, normal), 0x7F)
                code = code | ((x.to(tl.uint32, bitcast=True) >> 24) & 0x80)
                tl.store(target + head_x * target_stride + d, code.to(tl.uint8), mask=known)
            else:
                if UPCAST:
                    bits = x.to(tl.uint32, bitcast=True)
                    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
                    x = bits.to(tl.float32, bitcast=True)
                tl.store(target + head_x * target_stride + d, x.to(target.dtype.element_ty), mask=known)


def copy_blocks(
    K,  # as bytes, words or anything else of one element size
    V,
    COPIES,  # (n, 2) int64
    num_copies,
    k_stride_b,
    v_stride_b,
    NUM_ELEMENTS: tl.constexpr,
    E: tl.constexpr,
    ORDERED: tl.constexpr,
):
    """One slice of a block a program.

    Ordered: that slice of every copy in turn, so that chains a->b, b->c need no synchronisation. Else the second grid
    axis is the copy: no destination is another copy's source.
    """
    element = tl.program_id(0) * E + tl.arange(0, E)
    wanted = element < NUM_ELEMENTS
    first = 0
    last = num_copies
    if not ORDERED:
        first = tl.program_id(1)
        last = first + 1
    for copy in range(first, last):
        source = tl.load(COPIES + copy * 2)
        destination = tl.load(COPIES + copy * 2 + 1)
        k = tl.load(K + source * k_stride_b + element, mask=wanted, other=0)
        v = tl.load(V + source * v_stride_b + element, mask=wanted, other=0)
        tl.store(K + destination * k_stride_b + element, k, mask=wanted)
        tl.store(V + destination * v_stride_b + element, v, mask=wanted)
