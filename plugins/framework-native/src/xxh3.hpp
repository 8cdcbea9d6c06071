// Block hashes by XXH3, 128 bits, as framework.interfaces.hash.DigestScheme makes them over Python's xxhash.
#pragma once

#define XXH_INLINE_ALL
#include "third_party/xxhash.h" // Yann Collet's xxHash, BSD 2-Clause, as its Python package carries it

#include <vector>

#include "hash_list.hpp"

namespace native {

constexpr size_t kXxh3Bytes = 16;

/// Names the blocks of one prompt, chained.
class Xxh3Hasher final : public ChainHasher {
public:
    explicit Xxh3Hasher(size_t block_size) : message_(1 + kXxh3Bytes + 4 * block_size), token_bytes_(4 * block_size) {
        message_[0] = 1; // the block tag
    }
    void append(const BlockHash &root, const int32_t *tokens, size_t count, std::vector<BlockHash> &out) override {
        const auto *bytes = reinterpret_cast<const uint8_t *>(tokens);
        std::memcpy(message_.data() + 1, (out.empty() ? root : out.back()).data(), kXxh3Bytes);
        for (size_t at = 0; at < count; ++at, bytes += token_bytes_) {
            std::memcpy(message_.data() + 1 + kXxh3Bytes, bytes, token_bytes_); // little-endian hosts only
            XXH128_canonical_t digest;
            XXH128_canonicalFromHash(&digest, XXH3_128bits(message_.data(), message_.size()));
            out.emplace_back(digest.digest, kXxh3Bytes);
            std::memcpy(message_.data() + 1, digest.digest, kXxh3Bytes);
        }
        num_hashed += static_cast<int64_t>(count);
    }
    size_t digest_bytes() const override { return kXxh3Bytes; }

private:
    std::vector<uint8_t> message_;
    size_t token_bytes_;
};

} // namespace native
