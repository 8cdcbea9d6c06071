// Blocks that held a content when it was last hit. Spares SHA-256 for prefixes that are hit again and again.
#pragma once

#include <algorithm>

#include "pool.hpp"

namespace native {

/// A bounded memory of hits, in sets of four: (the block above, tokens) -> block. An entry is believed only if its
/// tokens are equal and neither block was published anew since, so what it gives is exact; a block hash is then read where
/// the block keeps it. Contents that were never hit are not kept.
class Recall {
public:
    explicit Recall(const Pool &pool) : pool_(pool), width_(static_cast<size_t>(pool.block_size)) {
        const size_t room = kBytes * pool.size() / (sizeof(Entry) + 4 * width_);
        sets_ = std::max<size_t>(room / kWays, 16);
        const size_t size = sets_ * kWays;
        entries_.resize(size);
        tokens_.resize(size * width_);
    }

    /// Where to look for a content below one of digest `above`; spreads, proves nothing.
    uint64_t digest(uint64_t above, const int32_t *tokens) const noexcept {
        uint64_t sum = 0;
        size_t at = 0;
        for (; at + 4 <= width_; at += 4) { // the products do not wait for each other
            uint64_t words[2];
            std::memcpy(words, tokens + at, sizeof words);
            sum += mix(words[0] + at, words[1]);
        }
        for (; at < width_; ++at) sum += mix(static_cast<uint32_t>(tokens[at]) + at, at);
        return mix(above, sum);
    }
    void fetch_entries(uint64_t digest) const noexcept {
        __builtin_prefetch(&entries_[first(digest)]);
        __builtin_prefetch(&entries_[first(digest) + kWays - 1]);
    }
    void fetch_content(uint64_t digest) const noexcept {
        const size_t at = place(digest);
        if (at == kNone) return;
        __builtin_prefetch(&tokens_[at * width_]);
        __builtin_prefetch(&tokens_[at * width_ + width_ - 1]);
        __builtin_prefetch(&pool_.ref[entries_[at].block], 1);
        __builtin_prefetch(&pool_.block_hash[entries_[at].block]);
    }
    /// 0 when it is not remembered. `above` is a block that holds the content above now, or an anchor.
    int32_t find(uint64_t digest, int32_t above, const int32_t *tokens) const noexcept {
        const size_t at = place(digest);
        if (at == kNone) return 0;
        const Entry &entry = entries_[at];
        const bool holds = entry.above == above && entry.above_since == since(above) &&
                           pool_.published(entry.block) && entry.since == since(entry.block) &&
                           std::memcmp(&tokens_[at * width_], tokens, 4 * width_) == 0;
        return holds ? entry.block : 0;
    }
    void keep(uint64_t digest, int32_t above, const int32_t *tokens, int32_t block) noexcept {
        size_t at = place(digest);
        if (at == kNone) at = first(digest) + turn_++ % kWays;
        entries_[at] = {digest, since(above), since(block), above, block};
        std::memcpy(&tokens_[at * width_], tokens, 4 * width_);
    }

private:
    static constexpr size_t kWays = 4, kNone = SIZE_MAX;
    static constexpr size_t kBytes = 8; // a block of capacity: at 16 tokens, one content in twelve is kept
    struct Entry {
        uint64_t digest = 0;
        int64_t above_since = 0, since = 0; // the access that published them, other for each publication of a block
        int32_t above = 0, block = 0;
    };

    static uint64_t mix(uint64_t a, uint64_t b) noexcept {
        const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15ull) * (b ^ 0xE7037ED1A0B428DBull);
        return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    size_t first(uint64_t digest) const noexcept { return ((digest >> 32) * sets_ >> 32) * kWays; }
    size_t place(uint64_t digest) const noexcept {
        const size_t start = first(digest);
        for (size_t at = start; at < start + kWays; ++at)
            if (entries_[at].digest == digest && entries_[at].block != 0) return at;
        return kNone;
    }
    int64_t since(int32_t block) const noexcept { return block > 0 ? pool_.admitted[block] : 0; }

    const Pool &pool_;
    size_t width_, sets_;
    uint64_t turn_ = 0;
    std::vector<Entry> entries_;
    std::vector<int32_t> tokens_;
};

} // namespace native
