#include "sha256.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace native {
namespace {

constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t *at) {
    return uint32_t(at[0]) << 24 | uint32_t(at[1]) << 16 | uint32_t(at[2]) << 8 | at[3];
}

uint32_t rotate(uint32_t value, int by) { return value >> by | value << (32 - by); }

void compress_plain(uint32_t *state, const uint8_t *data, size_t chunks) {
    uint32_t w[64];
    for (; chunks > 0; --chunks, data += 64) {
        for (int i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
        for (int i = 16; i < 64; ++i) {
            const uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
            const uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int i = 0; i < 64; ++i) {
            const uint32_t one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
            const uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#if defined(__x86_64__)
#define SHA_TARGET __attribute__((target("sha,sse4.1,ssse3")))

/// The state as the instructions want it: words a, b, e, f and c, d, g, h.
struct State {
    __m128i abef, cdgh;
};

SHA_TARGET inline __m128i load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }

SHA_TARGET inline __m128i swapped(__m128i bytes) {
    return _mm_shuffle_epi8(bytes, _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll));
}

SHA_TARGET inline State packed(const uint32_t *state) {
    const __m128i abcd = _mm_shuffle_epi32(load(state), 0xB1), efgh = _mm_shuffle_epi32(load(state + 4), 0x1B);
    return {_mm_alignr_epi8(abcd, efgh, 8), _mm_blend_epi16(efgh, abcd, 0xF0)};
}

/// Words a to d and e to h.
SHA_TARGET inline void unpack(State state, __m128i &first, __m128i &second) {
    const __m128i feba = _mm_shuffle_epi32(state.abef, 0x1B), dchg = _mm_shuffle_epi32(state.cdgh, 0xB1);
    first = _mm_blend_epi16(feba, dchg, 0xF0);
    second = _mm_alignr_epi8(dchg, feba, 8);
}

// Four rounds a step; w[i % 4] holds message words 4i to 4i + 3. Source: Intel, "New Instructions Supporting the
// Secure Hash Algorithm on Intel Architecture Processors", 2013.
SHA_TARGET inline State rounds(State state, __m128i *w) {
    __m128i abef = state.abef, cdgh = state.cdgh;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
        __m128i &now = w[i & 3];
        if (i >= 4) {
            const __m128i tail = _mm_alignr_epi8(w[(i - 1) & 3], w[(i - 2) & 3], 4);
            now = _mm_sha256msg1_epu32(now, w[(i - 3) & 3]);
            now = _mm_sha256msg2_epu32(_mm_add_epi32(now, tail), w[(i - 1) & 3]);
        }
        __m128i sum = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i *>(kRound + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
        sum = _mm_shuffle_epi32(sum, 0x0E);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
    }
    return {_mm_add_epi32(abef, state.abef), _mm_add_epi32(cdgh, state.cdgh)};
}

SHA_TARGET inline State compressed(State state, const uint8_t *data, size_t chunks) {
    for (; chunks > 0; --chunks, data += 64) {
        __m128i w[4];
        for (int i = 0; i < 4; ++i) w[i] = swapped(load(data + 16 * i));
        state = rounds(state, w);
    }
    return state;
}

SHA_TARGET void compress_sha(uint32_t *state, const uint8_t *data, size_t chunks) {
    __m128i first, second;
    unpack(compressed(packed(state), data, chunks), first, second);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(state), first);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(state + 4), second);
}

/// A chain over blocks of 16 tokens. Messages never leave the registers: a parent's hash written to memory one byte off and
/// read back would stall every block.
SHA_TARGET void chain_sha_16(uint8_t tag_byte, const uint8_t *parent, const uint8_t *tokens, size_t count, uint8_t *out,
                             size_t stride) {
    const __m128i tag = _mm_insert_epi8(_mm_setzero_si128(), tag_byte, 15);
    const __m128i end = _mm_insert_epi8(_mm_setzero_si128(), int(0x80), 0);
    const __m128i bits = _mm_set_epi32(8 * (33 + 64), 0, 0, 0); // of the message
    __m128i low = load(parent), high = load(parent + 16);
    const State start = packed(kStart);
    for (; count > 0; --count, tokens += 64, out += stride) {
        const __m128i t0 = load(tokens), t1 = load(tokens + 16), t2 = load(tokens + 32), t3 = load(tokens + 48);
        __m128i w[4] = {swapped(_mm_alignr_epi8(low, tag, 15)), swapped(_mm_alignr_epi8(high, low, 15)),
                        swapped(_mm_alignr_epi8(t0, high, 15)), swapped(_mm_alignr_epi8(t1, t0, 15))};
        __m128i x[4] = {swapped(_mm_alignr_epi8(t2, t1, 15)), swapped(_mm_alignr_epi8(t3, t2, 15)),
                        swapped(_mm_alignr_epi8(end, t3, 15)), bits};
        const State state = rounds(rounds(start, w), x);
        unpack(state, low, high);
        low = swapped(low);
        high = swapped(high);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out), low);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + 16), high);
    }
}

bool has_sha() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (b >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1");
}
#else
bool has_sha() { return false; }
void compress_sha(uint32_t *state, const uint8_t *data, size_t chunks) { compress_plain(state, data, chunks); }
void chain_sha_16(uint8_t, const uint8_t *, const uint8_t *, size_t, uint8_t *, size_t) {}
#endif

const bool kHasSha = has_sha();

} // namespace

Sha256Hasher::Sha256Hasher(size_t block_size) : token_bytes_(4 * block_size) {
    const size_t size = 33 + token_bytes_;
    message_.resize((size + 9 + 63) / 64 * 64);
    message_[0] = 1; // the block tag
    message_[size] = 0x80;
    const uint64_t bits = 8 * static_cast<uint64_t>(size);
    for (int i = 0; i < 8; ++i) message_[message_.size() - 1 - i] = static_cast<uint8_t>(bits >> 8 * i);
}

void Sha256Hasher::append(const BlockHash &root, const int32_t *tokens, size_t count, std::vector<BlockHash> &out) {
    const size_t before = out.size();
    for (size_t at = 0; at < count; ++at) out.emplace_back().digest();
    const auto *parent = reinterpret_cast<const uint8_t *>((before > 0 ? out[before - 1] : root).data());
    const auto *bytes = reinterpret_cast<const uint8_t *>(tokens);
    num_hashed += static_cast<int64_t>(count);
    if (kHasSha && token_bytes_ == 64) {
        chain_sha_16(message_[0], parent, bytes, count, out[before].digest(), sizeof(BlockHash));
        return;
    }
    for (size_t at = before; at < out.size(); ++at, bytes += token_bytes_) {
        std::memcpy(message_.data() + 1, parent, 32);
        std::memcpy(message_.data() + 33, bytes, token_bytes_); // little-endian hosts only, as pyproject says
        uint32_t state[8];
        std::memcpy(state, kStart, sizeof state);
        (kHasSha ? compress_sha : compress_plain)(state, message_.data(), message_.size() / 64);
        uint8_t *to = out[at].digest();
        for (int i = 0; i < 8; ++i) {
            const uint32_t word = __builtin_bswap32(state[i]);
            std::memcpy(to + 4 * i, &word, 4);
        }
        parent = to;
    }
}

} // namespace native
