// The inner loops, compiled once for each instruction set: VARIANT names the namespace, LANES the floats of a vector.
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "attention.hpp"

namespace native::VARIANT {
namespace {

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t IntVec __attribute__((vector_size(4 * LANES)));
typedef uint16_t HalfVec __attribute__((vector_size(2 * LANES)));
typedef uint8_t ByteVec __attribute__((vector_size(LANES)));
typedef int8_t SignedVec __attribute__((vector_size(LANES)));
typedef uint32_t WordVec __attribute__((vector_size(4 * LANES)));

constexpr float kNone = -std::numeric_limits<float>::infinity();

inline Vec load(const float *at) {
    Vec out;
    std::memcpy(&out, at, sizeof out);
    return out;
}
struct Bf16 {
    uint16_t bits;
};
struct F16 {
    uint16_t bits;
};
inline Vec load(const Bf16 *at) { // bfloat16 is the upper half of a float
    HalfVec half;
    std::memcpy(&half, at, sizeof half);
    const WordVec words = __builtin_convertvector(half, WordVec) << 16;
    Vec out;
    std::memcpy(&out, &words, sizeof out);
    return out;
}
/// Exponent and mantissa move to their places in a float, whose exponent is then 112 too small: a product mends it,
/// and makes subnormals normal. Infinities and NaN get the float's exponent by hand.
inline Vec load(const F16 *at) {
    HalfVec half;
    std::memcpy(&half, at, sizeof half);
    const WordVec words = __builtin_convertvector(half, WordVec), magnitude = (words & 0x7FFF) << 13;
    Vec scaled;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    scaled *= 0x1p112f;
    WordVec bits;
    std::memcpy(&bits, &scaled, sizeof bits);
    const WordVec special = (WordVec)(magnitude >= 0x0F800000u) & 0x7F800000u;
    bits |= special | (words & 0x8000) << 16;
    Vec out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
struct E4m3 {
    uint8_t bits;
};
struct I8 {
    int8_t value;
};
/// Bytes as words, zeros or the sign above them. Compilers make many instructions of what is one.
inline WordVec zero_extended(const uint8_t *at) {
#if LANES == 16 && defined(__AVX512F__)
    return (WordVec)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
#elif LANES == 8 && defined(__AVX2__)
    return (WordVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)));
#else
    ByteVec byte;
    std::memcpy(&byte, at, sizeof byte);
    return __builtin_convertvector(byte, WordVec);
#endif
}
inline IntVec sign_extended(const int8_t *at) {
#if LANES == 16 && defined(__AVX512F__)
    return (IntVec)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
#elif LANES == 8 && defined(__AVX2__)
    return (IntVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)));
#else
    SignedVec byte;
    std::memcpy(&byte, at, sizeof byte);
    return __builtin_convertvector(byte, IntVec);
#endif
}
/// As F16: exponent and mantissa to their places, 120 made up for by a product. There is no infinity, one NaN a sign.
inline Vec load(const E4m3 *at) {
    const WordVec words = zero_extended(&at->bits), magnitude = (words & 0x7F) << 20;
    Vec scaled;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    scaled *= 0x1p120f;
    WordVec bits;
    std::memcpy(&bits, &scaled, sizeof bits);
    bits |= ((WordVec)(magnitude == 0x07F00000u) & 0x7FC00000u) | (words & 0x80) << 24;
    Vec out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
inline Vec load(const I8 *at) { return __builtin_convertvector(sign_extended(&at->value), Vec); }
inline void store(float *at, Vec value) { std::memcpy(at, &value, sizeof value); }
inline float one(const float *at) { return *at; }
inline float one(const Bf16 *at) {
    const uint32_t word = static_cast<uint32_t>(at->bits) << 16;
    float out;
    std::memcpy(&out, &word, sizeof out);
    return out;
}
inline float one(const F16 *at) {
    const uint32_t magnitude = (at->bits & 0x7FFFu) << 13;
    float out;
    std::memcpy(&out, &magnitude, sizeof out);
    out *= 0x1p112f;
    uint32_t word;
    std::memcpy(&word, &out, sizeof word);
    word |= (magnitude >= 0x0F800000u ? 0x7F800000u : 0u) | (at->bits & 0x8000u) << 16;
    std::memcpy(&out, &word, sizeof out);
    return out;
}
inline float one(const E4m3 *at) {
    const uint32_t magnitude = (at->bits & 0x7Fu) << 20;
    float out;
    std::memcpy(&out, &magnitude, sizeof out);
    out *= 0x1p120f;
    uint32_t word;
    std::memcpy(&word, &out, sizeof word);
    word |= (magnitude == 0x07F00000u ? 0x7FC00000u : 0u) | (at->bits & 0x80u) << 24;
    std::memcpy(&out, &word, sizeof out);
    return out;
}
inline float one(const I8 *at) { return at->value; }
inline void put(float *at, float value) { *at = value; }
inline void put(Bf16 *at, float value) { // round to nearest even
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    at->bits = std::isnan(value) ? 0x7FC0 : static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}
inline void put(F16 *at, float value) { // round to nearest even, infinity from 65520 on
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000);
    const float magnitude = std::fabs(value);
    uint32_t bits;
    if (std::isnan(value)) {
        bits = 0x7E00;
    } else if (magnitude >= 65520.0f) {
        bits = 0x7C00;
    } else if (magnitude < 0x1p-14f) { // subnormal: adding 2^-1 leaves units of 2^-24 in the mantissa, rounded
        const float shifted = magnitude + 0.5f;
        std::memcpy(&bits, &shifted, sizeof bits);
        bits -= 0x3F000000u;
    } else {
        std::memcpy(&bits, &magnitude, sizeof bits);
        bits = (bits - (112u << 23) + 0xFFF + (bits >> 13 & 1)) >> 13;
    }
    at->bits = static_cast<uint16_t>(sign | bits);
}

inline float sum(Vec value) {
#if LANES == 16
    typedef float Half __attribute__((vector_size(32)));
    const Half half = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
    typedef float Quarter __attribute__((vector_size(16)));
    const Quarter four = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif LANES == 8
    typedef float Quarter __attribute__((vector_size(16)));
    const Quarter four =
        __builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7);
#else
    const Vec four = value;
#endif
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/// e^x for x <= 0, to 2 ulp; 0 below -87. Cody-Waite reduction and the degree-6 polynomial of Cephes expf.
inline Vec exponential(Vec x) {
    const IntVec gone = x < -87.0f;
    const Vec bounded = gone ? Vec{} - 87.0f : x;
    const Vec magic = Vec{} + 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = bounded * 1.44269504088896341f + magic;
    const Vec n = shifted - magic;
    const Vec r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = Vec{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const IntVec exponent = (__builtin_convertvector(n, IntVec) + 127) << 23;
    Vec power;
    std::memcpy(&power, &exponent, sizeof power);
    const Vec result = p * power;
    return gone ? Vec{} : result;
}

/// tanh x, to 2e-7 absolute: its odd Taylor series of degree 7 below 1/8, (1 - e^-2|x|) / (1 + e^-2|x|) elsewhere.
inline Vec hyperbolic_tangent(Vec x) {
    const Vec size = x < 0.0f ? -x : x, decay = exponential(size * -2.0f), square = x * x;
    const Vec far = (1.0f - decay) / (1.0f + decay);
    const Vec near = x * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 - square * (17.0f / 315))));
    return size < 0.125f ? near : x < 0.0f ? -far : far;
}

/// Floats of `count` keys or values, one after another.
template <class T> void widen(const T *from, int64_t stride, int count, int dim, float *to) {
    for (int t = 0; t < count; ++t, from += stride, to += dim) {
        int d = 0;
        for (; d + LANES <= dim; d += LANES) store(to + d, load(from + d));
        for (; d < dim; ++d) to[d] = one(from + d);
    }
}

/// Scores of `count` keys for every query row: out[r * kChunk + t] = q_r . k_t. The query rows are scaled already.
template <int D, class T>
void scores(const float *q, int rows, int dim_, const T *k, int64_t stride, int count, int64_t ahead, float *out) {
    const int dim = D ? D : dim_;
    for (int t = 0; t < count; ++t) {
        const T *key = k + t * stride;
        if (ahead)
            for (int d = 0; d < dim; d += 64 / static_cast<int>(sizeof(T))) __builtin_prefetch(key + ahead + d, 0, 2);
        for (int r = 0; r < rows; ++r) {
            const float *row = q + r * dim;
            Vec a{}, b{};
            int d = 0;
            for (; d + 2 * LANES <= dim; d += 2 * LANES) {
                a += load(row + d) * load(key + d);
                b += load(row + d + LANES) * load(key + d + LANES);
            }
            for (; d + LANES <= dim; d += LANES) a += load(row + d) * load(key + d);
            float rest = 0.0f;
            for (; d < dim; ++d) rest += row[d] * one(key + d);
            out[r * kChunk + t] = sum(a + b) + rest;
        }
    }
}

/// sums_r = sums_r * shrink_r + weights_r . v, each row's accumulators in registers, 8 vectors at a time.
template <int D, class T>
void gather(const float *weights, const float *shrink, int rows, int dim_, const T *v, int64_t stride, int count,
            int64_t ahead, float *sums) {
    const int dim = D ? D : dim_;
    constexpr int kWide = 8;
    if (ahead)
        for (int t = 0; t < count; ++t)
            for (int d = 0; d < dim; d += 64 / static_cast<int>(sizeof(T)))
                __builtin_prefetch(v + t * stride + ahead + d, 0, 2);
    for (int r = 0; r < rows; ++r) {
        float *row = sums + r * dim;
        const float *weight = weights + r * kChunk;
        const float shrunk = shrink != nullptr ? shrink[r] : 1.0f;
        int d = 0;
        for (; d + kWide * LANES <= dim; d += kWide * LANES) {
            Vec acc[kWide];
            for (int i = 0; i < kWide; ++i) acc[i] = load(row + d + i * LANES) * shrunk;
            for (int t = 0; t < count; ++t) {
                const T *value = v + t * stride + d;
                for (int i = 0; i < kWide; ++i) acc[i] += weight[t] * load(value + i * LANES);
            }
            for (int i = 0; i < kWide; ++i) store(row + d + i * LANES, acc[i]);
        }
        for (; d + LANES <= dim; d += LANES) {
            Vec acc = load(row + d) * shrunk;
            for (int t = 0; t < count; ++t) acc += weight[t] * load(v + t * stride + d);
            store(row + d, acc);
        }
        for (; d < dim; ++d) {
            float acc = row[d] * shrunk;
            for (int t = 0; t < count; ++t) acc += weight[t] * one(v + t * stride + d);
            row[d] = acc;
        }
    }
}

struct Scratch {
    float *q, *sums, *scores, *maxima, *denominators, *shrink;
    float *wide; // (kChunk, head_dim), or null where nothing is widened
};

Scratch lay_out(const Shape &shape, int64_t rows, float *at) {
    const int64_t width = rows * shape.head_dim;
    return {at, at + width, at + 2 * width, at + 2 * width + rows * kChunk, at + 2 * width + rows * (kChunk + 1),
            at + 2 * width + rows * (kChunk + 2),
            widens(shape, rows) ? at + 2 * width + rows * (kChunk + 3) : nullptr};
}

/// The rows of one tile: row r is head `head + r % group` of query `r / group`.
struct Tile {
    int rows, group, head;
    const Query *queries;
};

/// Everything between a dot product and a softmax: soft cap, ALiBi, causal and window masks.
void shape_scores(const Shape &shape, const Call &call, const Tile &tile, int key, int count, float *scores) {
    for (int r = 0; r < tile.rows; ++r) {
        float *row = scores + r * kChunk;
        const int position = tile.queries[r / tile.group].position;
        if (shape.soft_cap != 0.0f)
            for (int t = 0; t < count; t += LANES) // a row has kChunk places: what lies past count is masked below
                store(row + t, shape.soft_cap * hyperbolic_tangent(load(row + t) / shape.soft_cap));
        if (call.slopes != nullptr) {
            const float slope = call.slopes[tile.head + r % tile.group];
            for (int t = 0; t < count; ++t) row[t] += slope * static_cast<float>(key + t - position);
        }
        for (int t = position + 1 > key ? position + 1 - key : 0; t < count; ++t) row[t] = kNone;
        if (shape.window != 0)
            for (int t = 0; t < count && key + t <= position - shape.window; ++t) row[t] = kNone;
        for (int t = count; t % LANES != 0; ++t) row[t] = kNone;
    }
}

/// Scores become weights relative to the running maximum; `shrink` is what older sums are worth now.
void soften(const Tile &tile, int count, const Scratch &scratch) {
    for (int r = 0; r < tile.rows; ++r) {
        float *row = scratch.scores + r * kChunk;
        float most = scratch.maxima[r];
        for (int t = 0; t < count; ++t) most = row[t] > most ? row[t] : most;
        if (most == kNone) { // nothing seen yet: no key of this chunk either
            scratch.shrink[r] = 0.0f;
            for (int t = 0; t < count; ++t) row[t] = 0.0f;
            continue;
        }
        Vec total{};
        for (int t = 0; t < count; t += LANES) {
            const Vec weight = exponential(load(row + t) - most);
            store(row + t, weight);
            total += weight;
        }
        scratch.shrink[r] = exponential(Vec{} + (scratch.maxima[r] - most))[0];
        scratch.denominators[r] = scratch.denominators[r] * scratch.shrink[r] + sum(total);
        scratch.maxima[r] = most;
    }
}

template <class T> void load_queries_as(const Shape &shape, const Call &call, const Tile &tile, float *q) {
    for (int r = 0; r < tile.rows; ++r) {
        const T *from = static_cast<const T *>(call.q) + tile.queries[r / tile.group].token * call.q_strides.token +
                        (tile.head + r % tile.group) * call.q_strides.head;
        for (int d = 0; d < shape.head_dim; ++d) q[r * shape.head_dim + d] = one(from + d) * shape.scale;
    }
}

template <class T>
void finish_row_as(const Shape &shape, const Call &call, int64_t token, int head, float most, float total, const float *sums) {
    if (call.sinks != nullptr) {
        const float sink = call.sinks[head], top = sink > most ? sink : most;
        const float worth = most == kNone ? 0.0f : std::exp(most - top);
        const float denominator = total * worth + std::exp(sink - top);
        if (call.lse != nullptr) call.lse[token * shape.num_heads + head] = top + std::log(denominator);
        T *out = static_cast<T *>(call.out) + token * call.out_strides.token + head * call.out_strides.head;
        for (int d = 0; d < shape.head_dim; ++d) put(out + d, sums[d] * worth / denominator);
        return;
    }
    if (call.lse != nullptr) call.lse[token * shape.num_heads + head] = most + std::log(total);
    T *out = static_cast<T *>(call.out) + token * call.out_strides.token + head * call.out_strides.head;
    const float share = 1.0f / total;
    for (int d = 0; d < shape.head_dim; ++d) put(out + d, sums[d] * share);
}

/// The query rows of one kv head: where their state lies, and where they stand.
struct Head {
    Tile tile;
    Scratch scratch;
    int64_t offset; // of the kv head in the pool, elements
};

void load_queries(const Shape &shape, const Call &call, const Tile &tile, float *q) {
    if (shape.format == Format::bf16) return load_queries_as<Bf16>(shape, call, tile, q);
    if (shape.format == Format::f16) return load_queries_as<F16>(shape, call, tile, q);
    load_queries_as<float>(shape, call, tile, q);
}

void finish_row(const Shape &shape, const Call &call, int64_t token, int head, float most, float total, const float *sums) {
    if (shape.format == Format::bf16) return finish_row_as<Bf16>(shape, call, token, head, most, total, sums);
    if (shape.format == Format::f16) return finish_row_as<F16>(shape, call, token, head, most, total, sums);
    finish_row_as<float>(shape, call, token, head, most, total, sums);
}

/// Multiply what stands for `count` keys from token `key` of a block on by the scales of the keys or of the values.
void rescale(const Call &call, const float *scales, const Head &head, int kv_head, int64_t block, int slot, int count) {
    if (scales == nullptr) return;
    const float *from = scales + block * call.scale_strides.outer + slot * call.scale_strides.token +
                        kv_head * call.scale_strides.head;
    for (int r = 0; r < head.tile.rows; ++r)
        for (int t = 0; t < count; ++t) head.scratch.scores[r * kChunk + t] *= from[t * call.scale_strides.token];
}

/// Up to kChunk keys of one block for all heads of the item. Memory is read in the order in which it lies: with the
/// heads of a token side by side (NHD) a few tokens at a time, else head by head; `ahead` leads from one such step to
/// the next, in the next block at the end.
template <int D, class T>
void attend_chunk(const Shape &shape, const Call &call, const Head *heads, int num_heads, int64_t block, int64_t next,
                  int key, int count) {
    constexpr int kStep = 4;
    const Strides &kv = call.kv_strides;
    const int64_t first = block * kv.outer + key % shape.block_size * kv.token;
    const int64_t jump = next >= 0 ? (next - block) * kv.outer - key % shape.block_size * kv.token : 0;
    const bool interleaved = kv.head < kv.token;
    const int step = interleaved ? kStep : count;
    const auto each = [&](auto visit) {
        for (int t = 0; t < count; t += step) {
            const int size = step < count - t ? step : count - t;
            const int64_t at = first + t * kv.token, onward = t + step < count ? step * kv.token : jump ? jump - t * kv.token : 0;
            for (int h = 0; h < num_heads; ++h) {
                const bool last = h + 1 == num_heads;
                const int64_t ahead = interleaved ? onward : !last ? kv.head : onward ? onward - h * kv.head : 0;
                visit(heads[h], t, size, at + heads[h].offset, ahead);
            }
        }
    };
    each([&](const Head &head, int t, int size, int64_t at, int64_t ahead) {
        const T *keys = static_cast<const T *>(call.k) + at;
        float *wide = head.scratch.wide, *out = head.scratch.scores + t;
        if (wide == nullptr)
            return scores<D>(head.scratch.q, head.tile.rows, shape.head_dim, keys, kv.token, size, ahead, out);
        widen(keys, kv.token, size, shape.head_dim, wide);
        scores<D>(head.scratch.q, head.tile.rows, shape.head_dim, wide, shape.head_dim, size, 0, out);
    });
    const int group = shape.num_heads / shape.num_kv_heads, slot = key % shape.block_size;
    for (int h = 0; h < num_heads; ++h) {
        const int kv_head = heads[h].tile.head / group;
        rescale(call, call.k_scales, heads[h], kv_head, block, slot, count);
        shape_scores(shape, call, heads[h].tile, key, count, heads[h].scratch.scores);
        soften(heads[h].tile, count, heads[h].scratch);
        rescale(call, call.v_scales, heads[h], kv_head, block, slot, count);
    }
    each([&](const Head &head, int t, int size, int64_t at, int64_t ahead) {
        const T *values = static_cast<const T *>(call.v) + at;
        const float *weights = head.scratch.scores + t, *shrink = t == 0 ? head.scratch.shrink : nullptr;
        float *wide = head.scratch.wide, *sums = head.scratch.sums;
        if (wide == nullptr)
            return gather<D>(weights, shrink, head.tile.rows, shape.head_dim, values, kv.token, size, ahead, sums);
        widen(values, kv.token, size, shape.head_dim, wide);
        gather<D>(weights, shrink, head.tile.rows, shape.head_dim, wide, shape.head_dim, size, 0, sums);
    });
}

template <int D, class T>
void attend(const Shape &shape, const Call &call, const Item &item, const Query *queries, const Partials &partials,
            float *memory) {
    const int group = shape.num_heads / shape.num_kv_heads, rows = static_cast<int>(item.last - item.first) * group;
    const int32_t *table = call.tables + item.row * call.table_width;
    const int num_heads = item.head_end - item.head;
    Head heads[kMaxHeads];
    for (int h = 0; h < num_heads; ++h) {
        const int kv_head = item.head + h;
        heads[h] = {{rows, group, kv_head * group, queries + item.first},
                    lay_out(shape, rows, memory + h * scratch_of(shape, rows)),
                    kv_head * call.kv_strides.head};
        const Scratch &scratch = heads[h].scratch;
        load_queries(shape, call, heads[h].tile, scratch.q);
        std::memset(scratch.sums, 0, sizeof(float) * rows * shape.head_dim);
        for (int r = 0; r < rows; ++r) scratch.maxima[r] = kNone, scratch.denominators[r] = 0.0f;
    }
    for (int key = item.from; key < item.to;) {
        const int logical = key / shape.block_size;
        int count = (logical + 1) * shape.block_size - key;
        count = count < item.to - key ? count : item.to - key;
        count = count < kChunk ? count : kChunk;
        const bool more = (logical + 1) * shape.block_size < item.to;
        attend_chunk<D, T>(shape, call, heads, num_heads, table[logical], more ? table[logical + 1] : -1, key, count);
        key += count;
    }
    for (int h = 0; h < num_heads; ++h)
        for (int r = 0; r < rows; ++r) {
            const Scratch &scratch = heads[h].scratch;
            const Query &query = heads[h].tile.queries[r / group];
            const int head = heads[h].tile.head + r % group;
            const float *sums = scratch.sums + r * shape.head_dim;
            if (query.partial < 0) {
                finish_row(shape, call, query.token, head, scratch.maxima[r], scratch.denominators[r], sums);
                continue;
            }
            const int64_t place = query.partial * shape.num_heads + head;
            partials.maxima[place] = scratch.maxima[r];
            partials.denominators[place] = scratch.denominators[r];
            std::memcpy(partials.sums + place * shape.head_dim, sums, sizeof(float) * shape.head_dim);
        }
}

template <class T>
void attend_any(const Shape &shape, const Call &call, const Item &item, const Query *queries, const Partials &partials,
                float *memory) {
    if (shape.head_dim == 128) return attend<128, T>(shape, call, item, queries, partials, memory);
    if (shape.head_dim == 64) return attend<64, T>(shape, call, item, queries, partials, memory);
    attend<0, T>(shape, call, item, queries, partials, memory);
}

void attend_item(const Shape &shape, const Call &call, const Item &item, const Query *queries, const Partials &partials,
                 float *memory) {
    if (shape.kv_format == Format::bf16) return attend_any<Bf16>(shape, call, item, queries, partials, memory);
    if (shape.kv_format == Format::f16) return attend_any<F16>(shape, call, item, queries, partials, memory);
    if (shape.kv_format == Format::e4m3) return attend_any<E4m3>(shape, call, item, queries, partials, memory);
    if (shape.kv_format == Format::i8) return attend_any<I8>(shape, call, item, queries, partials, memory);
    attend_any<float>(shape, call, item, queries, partials, memory);
}

/// Merge a decode row's splits, in order. Source: flash-decoding, arXiv:2311.01282 section 3.
void combine(const Shape &shape, const Call &call, const Partials &partials, int32_t row, int64_t first, int64_t count) {
    for (int head = 0; head < shape.num_heads; ++head) {
        const auto place = [&](int64_t split) { return (first + split) * shape.num_heads + head; };
        float most = kNone, total = 0.0f;
        for (int64_t split = 0; split < count; ++split)
            most = partials.maxima[place(split)] > most ? partials.maxima[place(split)] : most;
        float *sums = partials.sums + place(0) * shape.head_dim;
        for (int64_t split = 0; split < count; ++split) {
            const float m = partials.maxima[place(split)], worth = m == kNone ? 0.0f : std::exp(m - most);
            total += worth * partials.denominators[place(split)];
            const float *other = partials.sums + place(split) * shape.head_dim;
            for (int d = 0; d < shape.head_dim; ++d) sums[d] = (split ? sums[d] : 0.0f) + worth * other[d];
        }
        finish_row(shape, call, call.starts[row], head, most, total, sums);
    }
}

} // namespace

extern const Kernels kernels;
const Kernels kernels{TEXT, attend_item, combine};

} // namespace native::VARIANT
