// Block hashes by XXH3, 128 bits, as framework.interfaces.hash.DigestScheme makes them over Python's xxhash.
#pragma once

#define XXH_INLINE_ALL
#include "third_party/xxhash.h" // Yann Collet's xxHash, BSD 2-Clause, as its Python package carries it

#include <vector>

#include "block_hash.hpp"

namespace native {

constexpr size_t kXxh3Bytes = 16;

/// Append the hashes of `count` blocks of `tokens`, each `token_bytes` long and after the one before; the first after
/// `parent` (16 bytes).
inline void chain_xxh3(const BlockHash &parent, const int32_t *tokens, size_t token_bytes, size_t count,
                       std::vector<BlockHash> &out) {
    std::vector<uint8_t> message(1 + kXxh3Bytes + token_bytes);
    message[0] = 1; // the block tag
    std::memcpy(message.data() + 1, parent.data(), kXxh3Bytes);
    const auto *bytes = reinterpret_cast<const uint8_t *>(tokens);
    for (size_t at = 0; at < count; ++at, bytes += token_bytes) {
        std::memcpy(message.data() + 1 + kXxh3Bytes, bytes, token_bytes); // little-endian hosts only
        XXH128_canonical_t digest;
        XXH128_canonicalFromHash(&digest, XXH3_128bits(message.data(), message.size()));
        out.emplace_back(digest.digest, kXxh3Bytes);
        std::memcpy(message.data() + 1, digest.digest, kXxh3Bytes);
    }
}

} // namespace native
