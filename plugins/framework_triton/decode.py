"""One query a row against its paged context, in splits of equal work.

The functions are kernels without a decorator: `kernels.compiled` and `kernels.interpreted` wrap them. What they call
is `Inlined`, since the interpreter would patch the language once more for each call of a jitted function.
"""

# mypy: ignore-errors
# Kernel code is a language of its own: its arguments are pointers or compile-time constants, and mypy knows neither.
# Shapes: B rows  W work items (a row's split)  H query heads  K kv heads  D head dim, padded to a power of 2
#         M query heads of one kv head, padded  N tokens a tile  I work items x kv heads of one program (1 on a GPU)

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


def plan_splits(
    LENS,  # (B,) int32
    WORK,  # (W, 4) int32 out: row or -1, first token, end token, splits of that row
    ROWS,  # (B, 2) int32 out: the row's first work item, its splits
    num_rows,
    num_work,
    num_at_once,  # work items that the device runs side by side
    num_choices,  # of a number of work items: num_work, then num_at_once fewer each
    window,
    min_tiles,
    num_steps,  # of the bisection: 2 ** num_steps is above the tiles of the longest row
    SPAN: tl.constexpr,
    N: tl.constexpr,
    B: tl.constexpr,
    W: tl.constexpr,
):
    """Cut all rows into pieces of at most so many tiles that they end first. One program.

    `num_at_once` pieces run at a time. For each choice of how many pieces there may be, the fewest tiles a piece that
    allow it; a piece costs a quarter of a tile beside its tiles. Source: the bisection is FlashInfer's
    (arXiv:2501.01005, section 3.3.1).
    """
    row = tl.arange(0, B)
    live = row < num_rows
    context = tl.load(LENS + row, mask=live, other=0)
    skipped = context * 0
    if SPAN:
        skipped = first_seen(context - 1, window, SPAN) // N
    tiles = tl.where(live, tl.maximum((context + N - 1) // N - skipped, 1), 0)
    least = min_tiles + tl.program_id(0)
    longest = tl.maximum(tl.reduce(tiles, 0, tl.standard._elementwise_max), least)
    most_tiles = longest
    cheapest = longest * 0 + 2147483647
    for choice in range(num_choices):
        low = least
        high = longest
        for _ in range(num_steps):
            middle = (low + high) // 2
            pieces = tl.reduce((tiles + middle - 1) // middle, 0, tl.standard._sum_combine)
            fits = pieces <= num_work - choice * num_at_once
            low = tl.where(fits, low, tl.minimum(middle + 1, high))
            high = tl.where(fits, middle, high)
        pieces = tl.reduce((tiles + high - 1) // high, 0, tl.standard._sum_combine)
        price = (pieces + num_at_once - 1) // num_at_once * (4 * high + 1)
        most_tiles = tl.where(price <= cheapest, high, most_tiles)
        cheapest = tl.minimum(price, cheapest)
    high = most_tiles
    splits = tl.maximum((tiles + high - 1) // high, 1)
    chunk = tl.maximum((tiles + splits - 1) // splits, 1)
    splits = (tiles + chunk - 1) // chunk
    first = tl.associative_scan(splits, 0, tl.standard._sum_combine) - splits
    tl.store(ROWS + row * 2, first, mask=live)
    tl.store(ROWS + row * 2 + 1, splits, mask=live)
    most = tl.reduce(splits, 0, tl.standard._elementwise_max)
    for split in range(most):
        has = split < splits
        item = WORK + (first + split) * 4
        start = (skipped + split * chunk) * N
        tl.store(item, row, mask=has)
        tl.store(item + 1, start, mask=has)
        tl.store(item + 2, tl.minimum(start + chunk * N, context), mask=has)
        tl.store(item + 3, splits, mask=has)
    total = tl.reduce(splits, 0, tl.standard._sum_combine)
    spare = tl.arange(0, W)
    tl.store(WORK + spare * 4, spare * 0 - 1, mask=(spare >= total) & (spare < num_work))


@Inlined
def _tokens_of(work, live, LENS, WORK, window, N: tl.constexpr, SPLIT: tl.constexpr, SPAN: tl.constexpr):
    """Work items: row, whether there is one, its context, first token and end of the part, splits of the row."""
    if SPLIT:
        row = tl.load(WORK + work * 4, mask=live, other=-1)
        live = live & (row >= 0)
        start = tl.load(WORK + work * 4 + 1, mask=live, other=0)
        stop = tl.load(WORK + work * 4 + 2, mask=live, other=0)
        splits = tl.load(WORK + work * 4 + 3, mask=live, other=1)
        row = tl.maximum(row, 0)
        context = tl.load(LENS + row, mask=live, other=0)
    else:
        row = tl.where(live, work, 0)
        context = tl.load(LENS + row, mask=live, other=0)
        stop = context
        start = context * 0
        if SPAN:
            start = first_seen(context - 1, window, SPAN) // N * N
        splits = context * 0 + 1
    return row, live, context, start, stop, splits


@Inlined
def _over_n(value, ITEMS: tl.constexpr):
    """An item's value, to be broadcast against (N,) or (I, N)."""
    return value if ITEMS == 1 else value[:, None]


@Inlined
def _over_x(value, ITEMS: tl.constexpr):
    """An item's value, to be broadcast against (M, D) or (I, M, D)."""
    return value if ITEMS == 1 else value[:, None, None]


def decode(
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
    WORK,
    PART,  # (parts, H, HEAD_DIM) float32: a split's own output, not divided by its sum
    PART_SUMS,  # (parts, H, 2) float32: a split's largest logit in base 2, and its sum of exponentials below that
    num_items,
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
    HEAD_BLOCKS: tl.constexpr,  # of M query heads each, that a group is cut into
    HEAD_DIM: tl.constexpr,
    ROPE: tl.constexpr,  # elements of a row behind its latent, padded to R; 0 where the cache is not latent
    R: tl.constexpr,
    LATENT: tl.constexpr,  # V is the latent: the tile of K
    PAGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    ITEMS: tl.constexpr,
    SPLIT: tl.constexpr,
    SPAN: tl.constexpr,
    HAS_CAP: tl.constexpr,
    STORED: tl.constexpr,  # 0: q's dtype. 1: e4m3, decoded by bit moves. 2: by the chip. 3: int8, a scale a token, head
    UPCAST: tl.constexpr,  # the interpreter's bfloat16 arithmetic works on raw bits: compute in float32 there
):
    """One work item and block of heads a program (`ITEMS` in the interpreter): softmax(q k) v over its tokens."""
    g = tl.arange(0, M)
    d = tl.arange(0, D)
    n = tl.arange(0, N)
    if ITEMS == 1:
        item = tl.program_id(0)
    else:
        item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    live = item < num_items
    kv_head = item // HEAD_BLOCKS % NUM_KV_HEADS
    first_head = item % HEAD_BLOCKS * M
    work = item // (HEAD_BLOCKS * NUM_KV_HEADS)
    row, live, context, start, stop, splits = _tokens_of(work, live, LENS, WORK, window, N, SPLIT, SPAN)
    lowest = start
    origin = context * 0
    if SPAN:
        origin = first_seen(context - 1, window, SPAN)
        lowest = tl.maximum(origin, start)
    # Conditions on an item become numbers of heads: the interpreter makes integers of a scalar comparison's broadcast.
    own_heads = tl.where(live, GROUP, 0)
    sole_heads = tl.where(splits == 1, own_heads, 0)
    first_heads = tl.where(start <= origin, own_heads, 0)
    row = row.to(tl.int64)
    kv_head = kv_head.to(tl.int64)

    # Names ending in _n broadcast against (N,) or (I, N), those in _x against (M, D) or (I, M, D).
    first = start if ITEMS == 1 else tl.reduce(start, 0, tl.standard._elementwise_min)
    last = stop if ITEMS == 1 else tl.reduce(stop, 0, tl.standard._elementwise_max)
    row_n = _over_n(row, ITEMS)
    head_n = _over_n(kv_head, ITEMS)
    lowest_n = _over_n(lowest, ITEMS)
    stop_n = _over_n(stop, ITEMS)
    context_n = _over_n(context, ITEMS)
    n_n = n if ITEMS == 1 else n[None, :]
    row_x = _over_x(row, ITEMS)
    head_x = _over_x(kv_head, ITEMS)
    own_heads_x = _over_x(own_heads, ITEMS)
    sole_heads_x = _over_x(sole_heads, ITEMS)
    first_heads_x = _over_x(first_heads, ITEMS)
    work_x = _over_x(work, ITEMS)
    context_x = _over_x(context, ITEMS)
    g_x = first_head + g[:, None] if ITEMS == 1 else first_head[:, None, None] + g[None, :, None]
    d_x = d[None, :] if ITEMS == 1 else d[None, None, :]

    own_x = g_x < own_heads_x
    q_head_x = head_x * GROUP + g_x
    q_offset = row_x * q_stride_t + q_head_x * q_stride_h + d_x
    q = tl.load(Q + q_offset, mask=own_x & (d_x < HEAD_DIM), other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    if ROPE:
        r = tl.arange(0, R)
        r_x = r[None, :] if ITEMS == 1 else r[None, None, :]
        q_rope_offset = row_x * q_stride_t + q_head_x * q_stride_h + HEAD_DIM + r_x
        q_rope = tl.load(Q + q_rope_offset, mask=own_x & (r_x < ROPE), other=0.0)
        if UPCAST:
            q_rope = q_rope.to(tl.float32)
    scale = score_scale
    if K_SCALE is not None and STORED != 3:
        scale = score_scale * tl.load(K_SCALE + head_x)
    if SLOPES is not None:
        slope = tl.load(SLOPES + q_head_x, mask=own_x, other=0.0) * 1.4426950408889634
    if SINKS is not None:
        # The sink joins a row's first split, as a key of that score and of value zero.
        is_first = g_x < first_heads_x
        sink = tl.load(SINKS + q_head_x, mask=is_first, other=float("-inf")) * 1.4426950408889634
        top = sink
        total = tl.where(is_first, 1.0, 0.0)
    else:
        top = tl.where(own_x, float("-inf"), float("-inf"))
        total = tl.where(own_x, 0.0, 0.0)
    acc = tl.where(own_x & (d_x < 0), 1.0, 0.0)

    for tile in range(first, last, N):
        position = tile + n_n
        inside = (position >= lowest_n) & (position < stop_n)
        page, slot = page_and_slot(
            TABLES + row_n * table_stride, tile, position, inside, stop, PAGE, N, BY_TILE=ITEMS == 1
        )
        # First the page, then the slot in it: of one sum of both ptxas keeps 64 bits a load, 139 registers where these
        # take 108 (triton 3.6, sm_90, head dim 128).
        k_page = K + tl.expand_dims(page * k_stride_b + head_n * k_stride_h, -2)
        v_page = V + tl.expand_dims(page * v_stride_b + head_n * v_stride_h, -1)
        k_slot = k_page + tl.expand_dims(slot * k_stride_s, -2)
        v_slot = v_page + tl.expand_dims(slot * v_stride_s, -1)
        d_k = tl.expand_dims(d, -1) if ITEMS == 1 else d[None, :, None]
        k_mask = tl.expand_dims(inside, -2)
        v_mask = tl.expand_dims(inside, -1)
        if HEAD_DIM != D:
            k_mask = k_mask & (d_k < HEAD_DIM)
            v_mask = v_mask & (d_x < HEAD_DIM)
        k = tl.load(k_slot + d_k, mask=k_mask, other=0)
        v = tl.trans(k) if LATENT else tl.load(v_slot + d_x, mask=v_mask, other=0)
        key_scale = scale
        if STORED == 3:
            # K's scales go to the scores, in float32.
            scale_offset = page * scale_stride_b + slot * scale_stride_s + head_n * scale_stride_h
            key_scale = score_scale * tl.expand_dims(tl.load(K_SCALE + scale_offset, mask=inside, other=0.0), -2)
            v_scale = tl.expand_dims(tl.load(V_SCALE + scale_offset, mask=inside, other=0.0), -1)
        k = as_queries(k, q, STORED, UPCAST)
        v = int8_values(v, v_scale, q) if STORED == 3 else as_queries(v, q, STORED, UPCAST)
        score = tl.dot(q, k, input_precision="ieee")
        if ROPE:
            seen = tl.expand_dims(inside, -2)
            score = score + rope_scores(q_rope, k_slot, seen, HEAD_DIM, ROPE, R, STORED, UPCAST, ITEMS)
        score = score * key_scale
        if HAS_CAP:
            score = soft_capped(score, cap_scale)
        if SLOPES is not None:
            behind = tl.expand_dims(position - context_n + 1, -2)
            score = score + slope * behind.to(tl.float32)
        score = tl.where(tl.expand_dims(inside, -2), score, float("-inf"))
        new_top = tl.maximum(top, tl.expand_dims(tl.reduce(score, -1, tl.standard._elementwise_max), -1))
        finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp2(top - finite)
        weight = tl.exp2(score - finite)
        total = total * shrink + tl.expand_dims(tl.reduce(weight, -1, tl.standard._sum_combine), -1)
        acc = acc * shrink + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = new_top

    if SINKS is not None:
        total = tl.where(context_x > 0, total, 0.0)
    some = total > 0.0
    safe_total = tl.where(some, total, 1.0)
    if V_SCALE is not None and STORED != 3:
        acc = acc * tl.load(V_SCALE + head_x)
    sole = g_x < sole_heads_x
    if SPLIT:
        # The largest logit and the sum stay apart: a log-sum-exp in float32 would round a large logit's sum away.
        part = work_x.to(tl.int64) * (NUM_KV_HEADS * GROUP) + q_head_x
        shared = own_x & (g_x >= sole_heads_x)
        tl.store(PART + part * HEAD_DIM + d_x, acc, mask=shared & (d_x < HEAD_DIM))
        tl.store(PART_SUMS + part * 2, top, mask=shared)
        tl.store(PART_SUMS + part * 2 + 1, total, mask=shared)
    target = OUT + row_x * out_stride_t + q_head_x * out_stride_h + d_x
    tl.store(target, (acc / safe_total).to(OUT.dtype.element_ty), mask=sole & (d_x < HEAD_DIM))
    if LSE is not None:
        lse = tl.where(some, (top + tl.log2(safe_total)) * 0.6931471805599453, float("-inf"))
        tl.store(LSE + row_x * lse_stride_t + q_head_x * lse_stride_h, lse, mask=sole)


def merge_splits(
    PART,
    PART_SUMS,
    ROWS,  # (B, 2) int32: see plan_splits; None: each has num_splits, num_rows apart
    OUT,
    LSE,
    first_row,  # the row of OUT and LSE that the first program writes
    num_rows,
    num_splits,
    out_stride_t,
    out_stride_h,
    lse_stride_t,
    lse_stride_h,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
):
    """Add a row's splits, for M heads, each rescaled to the largest logit, then divide. Rows of one split: nothing."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    if ROWS is None:
        first = row
        splits = num_splits
        step = num_rows
    else:
        first = tl.load(ROWS + row * 2).to(tl.int64)
        splits = tl.load(ROWS + row * 2 + 1)
        step = 1
    if splits > 1:
        known = head < NUM_HEADS
        both = known[:, None] & (d < HEAD_DIM)[None, :]
        top = tl.full((M,), float("-inf"), tl.float32)
        total = tl.full((M,), 0.0, tl.float32)
        acc = tl.full((M, D), 0.0, tl.float32)
        for split in range(splits):
            part = (first + split * step) * NUM_HEADS + head  # int64
            part_top = tl.load(PART_SUMS + part * 2, mask=known, other=float("-inf"))
            part_total = tl.load(PART_SUMS + part * 2 + 1, mask=known, other=0.0)
            value = tl.load(PART + part[:, None] * HEAD_DIM + d[None, :], mask=both, other=0.0)
            new_top = tl.maximum(top, part_top)
            finite = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = tl.exp2(top - finite)
            weight = tl.exp2(part_top - finite)
            total = total * shrink + part_total * weight
            acc = acc * shrink[:, None] + value * weight[:, None]
            top = new_top
        some = total > 0.0
        safe_total = tl.where(some, total, 1.0)
        target = OUT + (first_row + row) * out_stride_t + head[:, None] * out_stride_h + d[None, :]
        tl.store(target, (acc / safe_total[:, None]).to(OUT.dtype.element_ty), mask=both)
        if LSE is not None:
            lse = tl.where(some, (top + tl.log2(safe_total)) * 0.6931471805599453, float("-inf"))
            tl.store(LSE + (first_row + row) * lse_stride_t + head * lse_stride_h, lse, mask=known)
