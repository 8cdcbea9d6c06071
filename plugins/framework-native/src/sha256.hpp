// SHA-256 (FIPS 180-4) of short messages, with the processor's SHA instructions where it has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hash_list.hpp"

namespace native {

/// Names the blocks of one prompt: SHA-256(tag, parent's 32 bytes, tokens as little-endian int32), chained.
/// Bit-identical to framework.interfaces.hash.DigestScheme over hashlib.sha256.
class BlockHasher {
public:
    explicit BlockHasher(size_t block_size);
    ~BlockHasher();
    BlockHasher(const BlockHasher &) = delete;
    BlockHasher &operator=(const BlockHasher &) = delete;

    /// Write the hash of `tokens` (block_size,) after `parent` (32 bytes) to `out` (32 bytes); they may alias.
    void hash(const uint8_t *parent, const int32_t *tokens, uint8_t *out);

    /// Hash `count` blocks of `tokens` (count * block_size,), each after the one before; the hashes to `out`, 32 bytes
    /// every `stride`.
    void chain(const uint8_t *parent, const int32_t *tokens, size_t count, uint8_t *out, size_t stride);

private:
    size_t token_bytes_, num_chunks_;
    uint8_t *message_;
};

/// BlockHasher as a hash scheme.
class Sha256Hasher final : public ChainHasher {
public:
    explicit Sha256Hasher(size_t block_size) : hasher_(block_size) {}
    void append(const BlockHash &root, const int32_t *tokens, size_t count, std::vector<BlockHash> &out) override {
        const size_t before = out.size();
        for (size_t at = 0; at < count; ++at) out.emplace_back().digest();
        const BlockHash &parent = before > 0 ? out[before - 1] : root;
        hasher_.chain(reinterpret_cast<const uint8_t *>(parent.data()), tokens, count, out[before].digest(), sizeof(BlockHash));
        num_hashed += static_cast<int64_t>(count);
    }
    size_t digest_bytes() const override { return BlockHash::kNear; }

private:
    BlockHasher hasher_;
};

/// Whether the SHA instructions are in use.
bool sha_instructions() noexcept;

} // namespace native
