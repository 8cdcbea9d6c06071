// SHA-256 (FIPS 180-4) of short messages, with the processor's SHA instructions where it has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hash_list.hpp"

namespace native {

/// Names the blocks of one prompt: SHA-256(tag, parent's 32 bytes, tokens as little-endian int32), chained.
/// Bit-identical to framework.interfaces.hash.DigestScheme over hashlib.sha256.
class Sha256Hasher final : public ChainHasher {
public:
    explicit Sha256Hasher(size_t block_size);
    void append(const BlockHash &root, const int32_t *tokens, size_t count, std::vector<BlockHash> &out) override;
    size_t digest_bytes() const override { return BlockHash::kNear; }

private:
    size_t token_bytes_;
    std::vector<uint8_t> message_;
};

} // namespace native
