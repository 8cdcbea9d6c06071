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
template <class T> inline float one(const T *at) {
    T lanes[LANES];
    for (T &lane : lanes) lane = *at;
    return load(lanes)[0];
}
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

/// The transpose of LANES vectors: log2(LANES) times, the two halves are zipped.
inline void transpose(Vec *tile) {
#if LANES == 16
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif
    Vec zipped[LANES];
    for (int width = LANES; width > 1; width /= 2) {
        for (int i = 0; i < LANES / 2; ++i) {
            zipped[2 * i] = LOW(tile[i], tile[i + LANES / 2]);
            zipped[2 * i + 1] = HIGH(tile[i], tile[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; ++i) tile[i] = zipped[i];
    }
#undef LOW
#undef HIGH
}

/// `count` keys side by side: to[d * kPitch + t] is number d of the key at offsets[t]. Up to LANES - 1 places after them
/// become 0.
template <int D, class T> void transpose_keys(const T *from, const int64_t *offsets, int count, int dim_, float *to) {
    const int dim = D ? D : dim_;
    for (int t = 0; t < count; t += LANES) {
        int d = 0;
        for (; d + LANES <= dim; d += LANES) {
            Vec tile[LANES];
            for (int i = 0; i < LANES; ++i) tile[i] = t + i < count ? load(from + offsets[t + i] + d) : Vec{};
            transpose(tile);
            for (int i = 0; i < LANES; ++i) store(to + (d + i) * kPitch + t, tile[i]);
        }
        for (; d < dim; ++d)
            for (int i = 0; i < LANES; ++i) to[d * kPitch + t + i] = t + i < count ? one(from + offsets[t + i] + d) : 0.0f;
    }
}

/// Floats of `count` keys or values, `pitch` of them from one to the next.
template <class T> void widen(const T *from, const int64_t *offsets, int count, int dim, int pitch, float *to) {
    for (int t = 0; t < count; ++t, to += pitch) {
        const T *value = from + offsets[t];
        int d = 0;
        for (; d + LANES <= dim; d += LANES) store(to + d, load(value + d));
        for (; d < dim; ++d) to[d] = one(value + d);
    }
}

constexpr int kRows = LANES == 16 ? 4 : 2; // query rows whose scores or sums are held in registers
constexpr int kWide = 4;                   // and vectors of keys or of a value for each of them

/// Per lane, a query row times a key; both in `dim` numbers, of which those past the last whole vector are left out.
template <int D, class T> inline Vec products(const float *row, const T *key, int dim_) {
    const int dim = D ? D : dim_;
    Vec a{}, b{};
    int d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
        a += load(row + d) * load(key + d);
        b += load(row + d + LANES) * load(key + d + LANES);
    }
    for (; d + LANES <= dim; d += LANES) a += load(row + d) * load(key + d);
    return a + b;
}

/// The `sum` of each of LANES vectors, in the same order: a key's score does not depend on how many come at once.
inline Vec sums_of(Vec *tile) {
    transpose(tile);
    for (int half = LANES / 2; half >= 4; half /= 2)
        for (int i = 0; i < half; ++i) tile[i] += tile[i + half];
    return (tile[0] + tile[2]) + (tile[1] + tile[3]);
}

/// Scores of `count` keys for every query row: out[r * kChunk + t] = q_r . k_t. The query rows are scaled already.
template <int D, class T> void scores(const float *q, int rows, int dim_, const T *k, int64_t stride, int count, float *out) {
    const int dim = D ? D : dim_;
    int t = 0;
    for (; D % LANES == 0 && D != 0 && t + LANES <= count; t += LANES)
        for (int r = 0; r < rows; ++r) {
            Vec tile[LANES];
            for (int i = 0; i < LANES; ++i) tile[i] = products<D>(q + r * dim, k + (t + i) * stride, dim);
            store(out + r * kChunk + t, sums_of(tile));
        }
    for (; t < count; ++t) {
        const T *key = k + t * stride;
        for (int r = 0; r < rows; ++r) {
            const float *row = q + r * dim;
            float rest = 0.0f;
            for (int d = dim / LANES * LANES; d < dim; ++d) rest += row[d] * one(key + d);
            out[r * kChunk + t] = sum(products<D>(row, key, dim)) + rest;
        }
    }
}

/// Numbers [from, to) of the products of kWide * LANES transposed keys, from key `t` on, and query rows from `r` on, R at
/// a time; added to what `out` has of the numbers before.
template <int R>
void add_products(const float *q, int r, int rows, int dim, const float *keys, int t, int from, int to, float *out) {
    for (; r + R <= rows; r += R) {
        Vec acc[R][kWide] = {};
        for (int i = 0; from != 0 && i < R; ++i)
            for (int v = 0; v < kWide; ++v) acc[i][v] = load(out + (r + i) * kChunk + t + v * LANES);
        for (int d = from; d < to; ++d) {
            Vec key[kWide];
            for (int v = 0; v < kWide; ++v) key[v] = load(keys + d * kPitch + t + v * LANES);
            for (int i = 0; i < R; ++i)
                for (int v = 0; v < kWide; ++v) acc[i][v] += q[(r + i) * dim + d] * key[v];
        }
        for (int i = 0; i < R; ++i)
            for (int v = 0; v < kWide; ++v) store(out + (r + i) * kChunk + t + v * LANES, acc[i][v]);
    }
    if constexpr (R > 1) add_products<R / 2>(q, r, rows, dim, keys, t, from, to, out);
}

/// The scores of a chunk's keys, transposed, for every query row.
void scores_of_transposed(const float *q, int rows, int dim, const float *keys, float *out) {
    for (int t = 0; t < kChunk; t += kWide * LANES)
        for (int from = 0; from < dim; from += kDepth)
            add_products<kRows>(q, 0, rows, dim, keys, t, from, from + kDepth < dim ? from + kDepth : dim, out);
}

/// sums_r = sums_r * shrink_r + weights_r . v for query rows from `r` on, R at a time, and W vectors from number `d` on.
template <int R, int W, class T>
void gather_rows(const float *weights, const float *shrink, int r, int rows, int dim, const T *v, int64_t stride, int count,
                 int d, float *sums) {
    for (; r + R <= rows; r += R) {
        Vec acc[R][W];
        for (int i = 0; i < R; ++i)
            for (int w = 0; w < W; ++w)
                acc[i][w] = load(sums + (r + i) * dim + d + w * LANES) * (shrink != nullptr ? shrink[r + i] : 1.0f);
        for (int t = 0; t < count; ++t) {
            Vec value[W];
            for (int w = 0; w < W; ++w) value[w] = load(v + t * stride + d + w * LANES);
            for (int i = 0; i < R; ++i)
                for (int w = 0; w < W; ++w) acc[i][w] += weights[(r + i) * kChunk + t] * value[w];
        }
        for (int i = 0; i < R; ++i)
            for (int w = 0; w < W; ++w) store(sums + (r + i) * dim + d + w * LANES, acc[i][w]);
    }
    if constexpr (R > 1) gather_rows<R / 2, W>(weights, shrink, r, rows, dim, v, stride, count, d, sums);
}

/// The same for all numbers of the head.
template <int D, class T>
void gather(const float *weights, const float *shrink, int rows, int dim_, const T *v, int64_t stride, int count, float *sums) {
    const int dim = D ? D : dim_;
    int d = 0;
    for (; d + kWide * LANES <= dim; d += kWide * LANES)
        gather_rows<kRows, kWide>(weights, shrink, 0, rows, dim, v, stride, count, d, sums);
    for (; d + LANES <= dim; d += LANES) gather_rows<kRows, 1>(weights, shrink, 0, rows, dim, v, stride, count, d, sums);
    for (; d < dim; ++d)
        for (int r = 0; r < rows; ++r) {
            float acc = sums[r * dim + d] * (shrink != nullptr ? shrink[r] : 1.0f);
            for (int t = 0; t < count; ++t) acc += weights[r * kChunk + t] * one(v + t * stride + d);
            sums[r * dim + d] = acc;
        }
}

struct Scratch {
    float *q, *sums, *scores, *maxima, *denominators, *shrink;
};

Scratch lay_out(const Shape &shape, int64_t rows, float *at) {
    float *sums = at + rows * shape.head_dim, *scores = sums + rows * shape.value_dim;
    return {at, sums, scores, scores + rows * kChunk, scores + rows * (kChunk + 1), scores + rows * (kChunk + 2)};
}

/// Up to kChunk keys of a row, and where they lie: each segment in one block, `at` its first key's number in the chunk.
struct Segment {
    int64_t block, offset; // of its first key in the pool, elements
    int slot, at, count;
};
struct Chunk {
    int key, count, num_segments;
    Segment segments[kChunk];
    int64_t offsets[kChunk]; // of each key
};

Chunk chunk_at(const Shape &shape, const Strides &kv, const int32_t *table, int key, int end) {
    Chunk chunk{key, end - key < kChunk ? end - key : kChunk, 0, {}, {}};
    for (int at = 0, count; at < chunk.count; at += count) {
        const int slot = (key + at) % shape.block_size, left = chunk.count - at;
        const int64_t block = table[(key + at) / shape.block_size];
        count = shape.block_size - slot < left ? shape.block_size - slot : left;
        const int64_t offset = block * kv.outer + slot * kv.token;
        chunk.segments[chunk.num_segments++] = {block, offset, slot, at, count};
        for (int t = 0; t < count; ++t) chunk.offsets[at + t] = offset + t * kv.token;
    }
    return chunk;
}

/// The rows of one tile: row r is head `head + r % group` of query `r / group`.
struct Tile {
    int rows, group, head;
    const Query *queries;
};

/// Everything between a dot product and a softmax: soft cap, ALiBi, causal, window and span masks.
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
        for (int t = 0, first = shape.first(position); t < count && key + t < first; ++t) row[t] = kNone;
        for (int t = count; t % LANES != 0; ++t) row[t] = kNone;
    }
}

/// Scores become weights relative to the running maximum; `shrink` is what older sums are worth now.
void soften(const Tile &tile, int count, const Scratch &scratch) {
    for (int r = 0; r < tile.rows; ++r) {
        float *row = scratch.scores + r * kChunk;
        Vec tops = Vec{} + scratch.maxima[r];
        for (int t = 0; t < count; t += LANES) {
            const Vec next = load(row + t);
            tops = next > tops ? next : tops;
        }
        float most = tops[0];
        for (int i = 1; i < LANES; ++i) most = tops[i] > most ? tops[i] : most;
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
        int d = 0;
        for (; d + LANES <= shape.head_dim; d += LANES) store(q + r * shape.head_dim + d, load(from + d) * shape.scale);
        for (; d < shape.head_dim; ++d) q[r * shape.head_dim + d] = one(from + d) * shape.scale;
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
        for (int d = 0; d < shape.value_dim; ++d) put(out + d, sums[d] * worth / denominator);
        return;
    }
    if (call.lse != nullptr) call.lse[token * shape.num_heads + head] = most + std::log(total);
    T *out = static_cast<T *>(call.out) + token * call.out_strides.token + head * call.out_strides.head;
    const float share = 1.0f / total;
    for (int d = 0; d < shape.value_dim; ++d) put(out + d, sums[d] * share);
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

/// Multiply what stands for the chunk's keys by the scales of the keys or of the values.
void rescale(const Call &call, const float *scales, const Head &head, int kv_head, const Chunk &chunk) {
    if (scales == nullptr) return;
    for (int s = 0; s < chunk.num_segments; ++s) {
        const Segment &segment = chunk.segments[s];
        const float *from = scales + segment.block * call.scale_strides.outer + segment.slot * call.scale_strides.token +
                            kv_head * call.scale_strides.head;
        for (int r = 0; r < head.tile.rows; ++r)
            for (int t = 0; t < segment.count; ++t)
                head.scratch.scores[r * kChunk + segment.at + t] *= from[t * call.scale_strides.token];
    }
}

/// A chunk of keys and values for all heads of the item; `next` is the chunk after it. Memory is read in the order in
/// which it lies: with the heads of a token side by side (NHD) a few tokens at a time, else head by head. Where one head's
/// query rows are many (`tiled`), the whole chunk is transposed for its scores, then widened for the sums, so that the rows
/// share what was loaded. `wide` holds tile_floats: keys transposed or widened, later values widened.
template <int D, class T>
void attend_chunk(const Shape &shape, const Call &call, const Head *heads, int num_heads, const Chunk &chunk, const Chunk &next,
                  bool tiled, float *wide) {
    constexpr int kStep = LANES;
    const Strides &kv = call.kv_strides;
    const int rows = heads[0].tile.rows, group = heads[0].tile.group;
    const int step = num_heads > 1 && kv.head < kv.token ? kStep : kChunk;
    const bool widens = shape.kv_format != Format::f32 && rows >= kWidenRows;
    const auto each = [&](const void *pool, int dim, auto visit) {
        for (int s = 0; s < chunk.num_segments; ++s)
            for (int t = 0; t < chunk.segments[s].count; t += step) {
                const Segment &segment = chunk.segments[s];
                const int at = segment.at + t, count = step < segment.count - t ? step : segment.count - t;
                for (int h = 0; h < num_heads; ++h) {
                    const T *from = static_cast<const T *>(pool) + heads[h].offset;
                    for (int i = at + step; i < at + step + count; ++i) {
                        const int beyond = i - chunk.count;
                        if (beyond >= next.count) break;
                        const T *ahead = from + (beyond < 0 ? chunk.offsets[i] : next.offsets[beyond]);
                        for (int d = 0; d < dim; d += 64 / static_cast<int>(sizeof(T))) __builtin_prefetch(ahead + d, 0, 2);
                    }
                    visit(heads[h].scratch, from, at, count);
                }
            }
    };
    const T *keys = static_cast<const T *>(call.k) + heads[0].offset, *values = static_cast<const T *>(call.v) + heads[0].offset;
    if (tiled) {
        transpose_keys<D>(keys, chunk.offsets, chunk.count, shape.head_dim, wide);
        scores_of_transposed(heads[0].scratch.q, rows, shape.head_dim, wide, heads[0].scratch.scores);
    } else {
        each(call.k, shape.head_dim, [&](const Scratch &scratch, const T *from, int at, int count) {
            const int dim = shape.head_dim;
            float *out = scratch.scores + at;
            if (!widens) return scores<D>(scratch.q, rows, dim, from + chunk.offsets[at], kv.token, count, out);
            widen(from, chunk.offsets + at, count, dim, dim, wide);
            scores<D>(scratch.q, rows, dim, wide, dim, count, out);
        });
    }
    for (int h = 0; h < num_heads; ++h) {
        const int kv_head = heads[h].tile.head / group;
        rescale(call, call.k_scales, heads[h], kv_head, chunk);
        shape_scores(shape, call, heads[h].tile, chunk.key, chunk.count, heads[h].scratch.scores);
        soften(heads[h].tile, chunk.count, heads[h].scratch);
        rescale(call, call.v_scales, heads[h], kv_head, chunk);
    }
    const int dim = shape.value_dim;
    if (tiled) {
        const Scratch &scratch = heads[0].scratch;
        widen(values, chunk.offsets, chunk.count, dim, dim + kApart, wide);
        return gather<D>(scratch.scores, scratch.shrink, rows, dim, wide, dim + kApart, chunk.count, scratch.sums);
    }
    each(call.v, dim, [&](const Scratch &scratch, const T *from, int at, int count) {
        const float *weights = scratch.scores + at, *shrink = at == 0 ? scratch.shrink : nullptr;
        if (!widens) return gather<D>(weights, shrink, rows, dim, from + chunk.offsets[at], kv.token, count, scratch.sums);
        widen(from, chunk.offsets + at, count, dim, dim, wide);
        gather<D>(weights, shrink, rows, dim, wide, dim, count, scratch.sums);
    });
}

template <int D, class T>
void attend(const Shape &shape, const Call &call, const Item &item, const Query *queries, const Partials &partials,
            float *wide) {
    const int group = shape.num_heads / shape.num_kv_heads, rows = static_cast<int>(item.last - item.first) * group;
    const int32_t *table = call.tables + item.row * call.table_width;
    const int num_heads = item.head_end - item.head;
    Head heads[kMaxHeads];
    for (int h = 0; h < num_heads; ++h) {
        const int kv_head = item.head + h;
        heads[h] = {{rows, group, kv_head * group, queries + item.first},
                    lay_out(shape, rows, wide + tile_floats(shape) + h * scratch_of(shape, rows)),
                    kv_head * call.kv_strides.head};
        const Scratch &scratch = heads[h].scratch;
        load_queries(shape, call, heads[h].tile, scratch.q);
        std::memset(scratch.sums, 0, sizeof(float) * rows * shape.value_dim);
        for (int r = 0; r < rows; ++r) scratch.maxima[r] = kNone, scratch.denominators[r] = 0.0f;
    }
    Chunk chunks[2] = {chunk_at(shape, call.kv_strides, table, item.from, item.to)};
    for (int at = 0; chunks[at].count != 0; at ^= 1) {
        const Chunk &chunk = chunks[at], &next = chunks[at ^ 1];
        chunks[at ^ 1] = chunk_at(shape, call.kv_strides, table, chunk.key + chunk.count, item.to);
        attend_chunk<D, T>(shape, call, heads, num_heads, chunk, next, item.prompt || shape.latent, wide);
    }
    for (int h = 0; h < num_heads; ++h)
        for (int r = 0; r < rows; ++r) {
            const Scratch &scratch = heads[h].scratch;
            const Query &query = heads[h].tile.queries[r / group];
            const int head = heads[h].tile.head + r % group;
            const float *sums = scratch.sums + r * shape.value_dim;
            if (query.partial < 0) {
                finish_row(shape, call, query.token, head, scratch.maxima[r], scratch.denominators[r], sums);
                continue;
            }
            const int64_t place = query.partial * shape.num_heads + head;
            partials.maxima[place] = scratch.maxima[r];
            partials.denominators[place] = scratch.denominators[r];
            std::memcpy(partials.sums + place * shape.value_dim, sums, sizeof(float) * shape.value_dim);
        }
}

template <class T>
void attend_any(const Shape &shape, const Call &call, const Item &item, const Query *queries, const Partials &partials,
                float *memory) {
    if (shape.value_dim != shape.head_dim) return attend<0, T>(shape, call, item, queries, partials, memory);
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
        float *sums = partials.sums + place(0) * shape.value_dim;
        for (int64_t split = 0; split < count; ++split) {
            const float m = partials.maxima[place(split)], worth = m == kNone ? 0.0f : std::exp(m - most);
            total += worth * partials.denominators[place(split)];
            const float *other = partials.sums + place(split) * shape.value_dim;
            for (int d = 0; d < shape.value_dim; ++d) sums[d] = (split ? sums[d] : 0.0f) + worth * other[d];
        }
        finish_row(shape, call, call.starts[row], head, most, total, sums);
    }
}

} // namespace

extern const Kernels kernels;
const Kernels kernels{TEXT, attend_item, combine};

} // namespace native::VARIANT
