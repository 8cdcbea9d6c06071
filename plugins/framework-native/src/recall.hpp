// Blocks that held a content when it was last hit. Spares SHA-256 for prefixes that are hit again and again.
#pragma once

#include <algorithm>

#include "index.hpp"

namespace native {

/// A bounded memory of hits, oldest overwritten first: (the block above, tokens) -> block. An entry is believed only if
/// its tokens are equal and neither block was published anew since, so what it gives is exact; a block hash is then read
/// where the block keeps it. Contents that were never hit are not kept. Those of one prompt lie one after the other, so
/// that the next one is guessed and fetched before it is asked for.
class Recall {
public:
    static constexpr uint32_t kNone = UINT32_MAX;

    explicit Recall(const Pool &pool) : pool_(pool), width_(static_cast<size_t>(pool.block_size)) {
        const size_t room = kBytes * pool.size() / (sizeof(Entry) + 4 * width_);
        const size_t size = std::min<size_t>(std::max<size_t>(room, 64), kNone / 2);
        entries_.resize(size);
        tokens_.resize(size * width_);
    }

    /// Names a content below one of digest `above`; spreads, proves nothing.
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
    /// Where the content of this digest is kept, or kNone.
    size_t place(uint64_t digest) const noexcept {
        const int32_t found = ids_.find(digest, [&](int32_t id) { return entries_[id - 1].digest == digest; });
        return found != 0 ? static_cast<size_t>(found) - 1 : kNone;
    }
    /// Where the content lies that followed the one at `place` when it was last found there; kNone.
    size_t next(size_t place) const noexcept { return place != kNone ? entries_[place].next : kNone; }
    void follow(size_t place, size_t next) noexcept {
        if (place != kNone) entries_[place].next = static_cast<uint32_t>(next);
    }
    uint64_t digest_at(size_t place) const noexcept { return entries_[place].digest; }
    /// The entries from `place` on may be read soon.
    void fetch_from(size_t place, size_t count) const noexcept {
        for (size_t at = place; at < std::min(place + count, entries_.size()); ++at) {
            __builtin_prefetch(&entries_[at]);
            __builtin_prefetch(&tokens_[at * width_]);
        }
    }
    /// What its entry refers to is read next.
    void fetch(size_t place) const noexcept {
        __builtin_prefetch(&pool_.facts(entries_[place].block), 1);
        const auto *name = reinterpret_cast<const char *>(&pool_.block_hash[entries_[place].block]);
        __builtin_prefetch(name);
        __builtin_prefetch(name + sizeof(BlockHash) - 1);
    }
    /// The block of an entry, 0 when it does not hold. `above` is a block that holds the content above now, or an anchor.
    int32_t find(size_t place, int32_t above, const int32_t *tokens) const noexcept {
        if (place == kNone) return 0;
        const Entry &entry = entries_[place];
        const bool holds = entry.above == above && entry.above_since == since(above) &&
                           pool_.published(entry.block) && entry.since == since(entry.block) &&
                           equal(&tokens_[place * width_], tokens);
        return holds ? entry.block : 0;
    }
    /// Where it is kept from now on.
    size_t keep(uint64_t digest, int32_t above, const int32_t *tokens, int32_t block) {
        size_t at = place(digest);
        if (at == kNone) {
            at = last_ = (last_ + 1) % entries_.size();
            if (entries_[at].block != 0) ids_.remove(entries_[at].digest, static_cast<int32_t>(at) + 1);
            ids_.add(digest, static_cast<int32_t>(at) + 1);
        }
        entries_[at] = {digest, since(above), since(block), above, block, kNone};
        std::memcpy(&tokens_[at * width_], tokens, 4 * width_);
        return at;
    }

private:
    static constexpr size_t kBytes = 8; // a block of capacity: at 16 tokens, one content in twelve is kept
    struct Entry {
        uint64_t digest = 0;
        int64_t above_since = 0, since = 0; // the access that published them, other for each publication of a block
        int32_t above = 0, block = 0;
        uint32_t next = kNone; // a guess
    };

    static uint64_t mix(uint64_t a, uint64_t b) noexcept {
        const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15ull) * (b ^ 0xE7037ED1A0B428DBull);
        return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    bool equal(const int32_t *one, const int32_t *other) const noexcept {
        return std::memcmp(one, other, 4 * width_) == 0;
    }
    int64_t since(int32_t block) const noexcept { return block > 0 ? pool_.admitted[block] : 0; }

    const Pool &pool_;
    size_t width_, last_ = 0;
    IdSet ids_; // of the digests; an id is a place and 1
    std::vector<Entry, OnPages<Entry>> entries_;
    std::vector<int32_t, OnPages<int32_t>> tokens_;
};

} // namespace native
