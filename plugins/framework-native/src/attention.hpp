// Paged attention on the CPU: what a call needs, and who may compute it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace native {

/// How numbers are stored in q and out (the first three), and in the pool; sums are fp32 always.
enum class Format : int32_t { f32 = 0, bf16 = 1, f16 = 2, e4m3 = 3, i8 = 4 };

/// The model's attention and how the work is cut. Where a row is cut depends on it alone, and who else reads the same
/// keys changes no operation on its numbers, so that its output does not depend on its batch or the number of threads.
struct Shape {
    int32_t num_heads, num_kv_heads, head_dim, value_dim, block_size; // value_dim: numbers of V, and of a head's output
    bool latent; // V is the beginning of K: one row of the pool for all heads
    float scale, soft_cap; // soft_cap 0: none
    int32_t window, span;  // 0: none; of a span a query sees its own alone: `attention_chunk` of the contract
    Format format, kv_format;

    /// The first position that a query at this one sees.
    int32_t first(int32_t position) const {
        const int32_t seen = window != 0 && position >= window ? position + 1 - window : 0;
        return span != 0 && seen < position / span * span ? position / span * span : seen;
    }
};

struct Strides {
    int64_t outer, token, head; // elements; the last dimension is contiguous
};

/// One call's arrays; see framework.interfaces.backend for their meaning.
struct Call {
    const void *q;
    void *out;
    const void *k, *v;
    const float *sinks, *slopes; // (H,) or null
    float *lse;                  // (T, H) or null
    const int32_t *tables, *contexts, *starts;
    Strides q_strides, out_strides, kv_strides; // q, out: outer unused
    const float *k_scales, *v_scales;           // what stored numbers are multiplied by, or null
    Strides scale_strides;                      // 0 where one scale serves all blocks or tokens
    int64_t table_width;
};

/// One query of an item: its place in q and out, and in its sequence.
struct Query {
    int64_t token;
    int32_t position;
    int64_t partial; // where the partial result goes; -1: the item is all there is, finish it
};

/// Queries [first, last) of the call's list against keys [from, to) in the blocks of `row`, for kv heads
/// [head, head_end). The queries of decode rows that share these blocks stand side by side.
struct Item {
    int32_t row, from, to, head, head_end;
    size_t first, last;
    bool prompt; // queries of one row, not of decode rows
};

/// Partial results of split rows: (items, H, D) sums, and the maximum and denominator of each head.
struct Partials {
    float *sums, *maxima, *denominators;
};

using AttendItem = void (*)(const Shape &, const Call &, const Item &, const Query *, const Partials &, float *scratch);
using Combine = void (*)(const Shape &, const Call &, const Partials &, int32_t row, int64_t first, int64_t count);

struct Kernels {
    const char *name;
    AttendItem attend;
    Combine combine;
};

constexpr int32_t kTileRows = 96;   // query rows (queries x heads of a group) that share one pass over K and V
constexpr int32_t kChunk = 128;      // keys whose scores are computed before a softmax update
constexpr int32_t kApart = 16;       // floats between rows of a tile, so that they do not share the cache's sets
constexpr int32_t kPitch = kChunk + kApart; // floats from one number of transposed keys to the next
constexpr int32_t kDepth = 128;      // numbers of transposed keys that stay in the first cache for all query rows
constexpr int32_t kWidenRows = 2;   // query rows from which widening values once is cheaper than once a row
constexpr int32_t kMaxHeads = 64;   // kv heads of one item
constexpr int32_t kSplitTokens = 512; // context of one item of a decode row

inline int32_t tile_queries(const Shape &shape) {
    const int32_t group = shape.num_heads / shape.num_kv_heads;
    return group >= kTileRows ? 1 : kTileRows / group;
}

/// Scratch floats for one kv head of an item with this many query rows.
inline size_t scratch_of(const Shape &shape, int64_t rows) {
    return static_cast<size_t>(rows * (shape.head_dim + shape.value_dim + kChunk + 3) + 15) / 16 * 16;
}

/// Floats of a chunk's keys, transposed, or of its values, whichever are more.
inline size_t tile_floats(const Shape &shape) {
    const int32_t keys = shape.head_dim * kPitch, values = kChunk * (shape.value_dim + kApart);
    return static_cast<size_t>(keys > values ? keys : values);
}

/// Scratch floats that an item may need: a prefill item has one kv head, a decode item up to kMaxHeads.
inline size_t scratch_floats(const Shape &shape) {
    const int32_t group = shape.num_heads / shape.num_kv_heads;
    const int32_t heads = shape.num_kv_heads < kMaxHeads ? shape.num_kv_heads : kMaxHeads;
    const size_t decode = heads * scratch_of(shape, group), prefill = scratch_of(shape, tile_queries(shape) * group);
    const size_t most = decode > prefill ? decode : prefill; // whole cache lines, so that threads keep off each other's
    return (most + tile_floats(shape) + 15) / 16 * 16;
}

} // namespace native
