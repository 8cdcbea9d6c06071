"""Chunks of queries against their paged context, ragged rows packed into one launch.

A program takes BLOCK_Q query tokens of a row and all query heads of one kv head (or as many as fit), packed into the M
rows of a tile. The row a program belongs to is searched on the device, so that the grid depends on shapes only. Where
tiles are too few to fill the device, as for a short chunk behind a long prefix, the context is cut into splits of
`split_len` tokens, whose outputs `decode.merge_splits` adds.
"""

# mypy: ignore-errors
# Kernel code is a language of its own: its arguments are pointers or compile-time constants, and mypy knows neither.
# Shapes: T query tokens  B rows  H query heads  K kv heads  D head dim, padded  M query token x head of a tile
#         N tokens of context a tile

import triton.language as tl

from framework_triton.tiles import (
    Inlined,
    as_queries,
    first_seen,
    int8_values,
    page_and_slot,
    rope_scores,
    soft_capped,
)


@Inlined
def _row_of(tile, base, STARTS, first_row, num_rows, num_steps, BLOCK_Q: tl.constexpr):
    """The row, counted from `first_row`, that a tile of queries belongs to; `base`: that row's first query."""
    # Row r's tiles begin at (its first query) // BLOCK_Q + r: each row is given one tile more than it may need.
    low = tile * 0
    high = low + num_rows
    for _ in range(num_steps):
        middle = (low + high) // 2
        begins = (tl.load(STARTS + first_row + middle) - base) // BLOCK_Q + middle
        low = tl.where(begins <= tile, middle, low)
        high = tl.where(begins <= tile, high, middle)
    return low


@Inlined
def _plain_tokens(first_position, stop, window, N: tl.constexpr, SPAN: tl.constexpr):
    """The first token that a tile of queries reads, and where tiles end that every query sees whole: no mask is needed.

    A window or a chunk needs masks throughout.
    """
    start = stop * 0
    if SPAN:
        start = first_seen(first_position, window, SPAN) // N * N
    plain_stop = start
    if not SPAN:
        plain_stop = tl.maximum(first_position + 1, 0) // N * N
    return start, plain_stop


def prefill(
    Q,
    K,
    V,
    OUT,
    LSE,  # (T, H) float32 or None
    TABLES,
    LENS,
    SINKS,
    SLOPES,
    K_SCALE,
    V_SCALE,
    STARTS,
    PART,  # (splits, tokens of the chunks, H, HEAD_DIM) float32, not divided; or None where the context is not split
    PART_SUMS,  # (splits, tokens of the chunks, H, 2) float32: largest logit in base 2, sum of exponentials below it
    first_row,
    num_rows,
    num_tokens,  # of the chunks
    num_steps,  # of the search: 2 ** num_steps >= num_rows
    split_len,  # tokens of context, a multiple of N
    score_scale,
    cap_scale,
    window,
    table_stride,
    q_stride_t,
    q_stride_h,
    k_stride_b,
    k_stride_s,
    k_stride_h,
    v_stride_b,
    v_stride_s,
    v_stride_h,
    scale_stride_b,  # of K_SCALE and of V_SCALE where each token and head has a scale
    scale_stride_s,
    scale_stride_h,
    out_stride_t,
    out_stride_h,
    lse_stride_t,
    lse_stride_h,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,  # of at most M query heads each, that a group is cut into
    HEAD_DIM: tl.constexpr,
    ROPE: tl.constexpr,  # as in decode, and the next two
    R: tl.constexpr,
    LATENT: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    SPAN: tl.constexpr,
    HAS_CAP: tl.constexpr,
    STORED: tl.constexpr,  # as in decode
    UPCAST: tl.constexpr,
):
    """One tile of queries a program; the rows are `first_row` .. `first_row + num_rows - 1`."""
    tile = tl.program_id(0)
    HEADS: tl.constexpr = GROUP if HEAD_BLOCKS == 1 else M
    kv_head = (tl.program_id(1) // HEAD_BLOCKS).to(tl.int64)
    first_head = tl.program_id(1) % HEAD_BLOCKS * HEADS
    base = tl.load(STARTS + first_row)
    low = _row_of(tile, base, STARTS, first_row, num_rows, num_steps, BLOCK_Q)
    row = (first_row + low).to(tl.int64)
    begin = tl.load(STARTS + row)
    num_queries = tl.load(STARTS + row + 1) - begin
    tiles = (num_queries + BLOCK_Q - 1) // BLOCK_Q
    index = tile - ((begin - base) // BLOCK_Q + low)
    if index >= tiles:
        return
    index = tiles - 1 - index  # the last tile sees most context: heavy tiles first
    context = tl.load(LENS + row)

    m = tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    token = index * BLOCK_Q + m // HEADS
    head = kv_head * GROUP + first_head + m % HEADS
    live = (m < BLOCK_Q * HEADS) & (token < num_queries)
    if HEAD_BLOCKS > 1:
        live = live & (first_head + m % HEADS < GROUP)
    query_position = context - num_queries + token
    query = (begin + token).to(tl.int64)
    q_offset = (query * q_stride_t + head * q_stride_h)[:, None] + d[None, :]
    q = tl.load(Q + q_offset, mask=live[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    if ROPE:
        r = tl.arange(0, R)
        q_rope_offset = (query * q_stride_t + head * q_stride_h)[:, None] + HEAD_DIM + r[None, :]
        q_rope = tl.load(Q + q_rope_offset, mask=live[:, None] & (r < ROPE)[None, :], other=0.0)
        if UPCAST:
            q_rope = q_rope.to(tl.float32)
    scale = score_scale
    if K_SCALE is not None and STORED != 3:
        scale = score_scale * tl.load(K_SCALE + kv_head)
    if SLOPES is not None:
        slope = tl.load(SLOPES + head, mask=live, other=0.0) * 1.4426950408889634
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.full((M,), 0.0, tl.float32)
    acc = tl.full((M, D), 0.0, tl.float32)
    if SINKS is not None:
        has_sink = live
        if PART is not None:
            # A condition on the program becomes a number of rows: the interpreter makes integers of its broadcast.
            has_sink = live & (m < tl.where(tl.program_id(2) == 0, M, 0))
        top = tl.load(SINKS + head, mask=has_sink, other=float("-inf")) * 1.4426950408889634
        total = tl.where(has_sink, 1.0, 0.0)

    first_position = context - num_queries + index * BLOCK_Q
    stop = tl.minimum(context, first_position + BLOCK_Q)
    start, plain_stop = _plain_tokens(first_position, stop, window, N, SPAN)
    if PART is not None:
        start = tl.maximum(start, tl.program_id(2) * split_len)
        stop = tl.minimum(stop, (tl.program_id(2) + 1) * split_len)
        plain_stop = tl.minimum(tl.maximum(plain_stop, start), stop)
    for phase in tl.static_range(2):
        if phase == 0:
            phase_start = start
            phase_stop = plain_stop
        else:
            phase_start = plain_stop
            phase_stop = stop
        for tile_start in range(phase_start, phase_stop, N):
            position = tile_start + n
            inside = position < stop
            page, slot = page_and_slot(
                TABLES + row * table_stride, tile_start, position, inside, stop, PAGE, N, BY_TILE=True
            )
            k_tokens = K + (page * k_stride_b + slot * k_stride_s + kv_head * k_stride_h)[None, :]
            k_at = k_tokens + d[:, None]
            v_at = V + (page * v_stride_b + slot * v_stride_s + kv_head * v_stride_h)[:, None] + d[None, :]
            if phase == 1:
                k = tl.load(k_at, mask=inside[None, :] & (d < HEAD_DIM)[:, None], other=0)
            elif HEAD_DIM == D:
                k = tl.load(k_at)
            else:
                k = tl.load(k_at, mask=(d < HEAD_DIM)[:, None], other=0)
            if LATENT:
                v = tl.trans(k)
            elif phase == 1:
                v = tl.load(v_at, mask=inside[:, None] & (d < HEAD_DIM)[None, :], other=0)
            elif HEAD_DIM == D:
                v = tl.load(v_at)
            else:
                v = tl.load(v_at, mask=(d < HEAD_DIM)[None, :], other=0)
            key_scale = scale
            if STORED == 3:
                scale_offset = page * scale_stride_b + slot * scale_stride_s + kv_head * scale_stride_h
                key_scale = score_scale * tl.load(K_SCALE + scale_offset, mask=inside, other=0.0)[None, :]
                v_scale = tl.load(V_SCALE + scale_offset, mask=inside, other=0.0)[:, None]
            k = as_queries(k, q, STORED, UPCAST)
            v = int8_values(v, v_scale, q) if STORED == 3 else as_queries(v, q, STORED, UPCAST)
            score = tl.dot(q, k, input_precision="ieee")
            if ROPE:
                score = score + rope_scores(q_rope, k_tokens, inside[None, :], HEAD_DIM, ROPE, R, STORED, UPCAST, 1)
            score = score * key_scale
            if HAS_CAP:
                score = soft_capped(score, cap_scale)
            if SLOPES is not None:
                score = score + slope[:, None] * (position[None, :] - query_position[:, None]).to(tl.float32)
            if phase == 1:
                seen = position[None, :] <= query_position[:, None]
                if SPAN:
                    seen = seen & (position[None, :] >= first_seen(query_position, window, SPAN)[:, None])
                score = tl.where(seen & inside[None, :], score, float("-inf"))
            new_top = tl.maximum(top, tl.reduce(score, 1, tl.standard._elementwise_max))
            finite = new_top
            if phase == 1:
                finite = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = tl.exp2(top - finite)
            weight = tl.exp2(score - finite[:, None])
            total = total * shrink + tl.reduce(weight, 1, tl.standard._sum_combine)
            acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            top = new_top

    if SINKS is not None:
        total = tl.where(query_position >= 0, total, 0.0)
    some = total > 0.0
    safe_total = tl.where(some, total, 1.0)
    if V_SCALE is not None and STORED != 3:
        acc = acc * tl.load(V_SCALE + kv_head)
    kept = live[:, None] & (d < HEAD_DIM)[None, :]
    if PART is not None:
        part = (tl.program_id(2).to(tl.int64) * num_tokens + query - base) * (NUM_KV_HEADS * GROUP) + head
        tl.store(PART + part[:, None] * HEAD_DIM + d[None, :], acc, mask=kept)
        tl.store(PART_SUMS + part * 2, top, mask=live)
        tl.store(PART_SUMS + part * 2 + 1, total, mask=live)
    else:
        target = OUT + (query * out_stride_t + head * out_stride_h)[:, None] + d[None, :]
        tl.store(target, (acc / safe_total[:, None]).to(OUT.dtype.element_ty), mask=kept)
        if LSE is not None:
            lse = tl.where(some, (top + tl.log2(safe_total)) * 0.6931471805599453, float("-inf"))
            tl.store(LSE + query * lse_stride_t + head * lse_stride_h, lse, mask=live)
