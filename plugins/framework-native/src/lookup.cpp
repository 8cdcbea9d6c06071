// Hashing and finding the full blocks of a prompt without waiting for memory.
#include "allocator.hpp"

namespace native {
namespace {

constexpr size_t kSlice = 8; // blocks asked of the index in one go

} // namespace

/// The leading contents of `tokens` below `limit`, from `blocks.size()` on, that are remembered; `trail` is the last one
/// found.
void Core::recall(int32_t anchor, const Tokens &tokens, size_t limit, Trail &trail, HashList &list, Blocks &blocks) {
    constexpr size_t kAhead = 16;
    const size_t size = pool_->block_size;
    while (blocks.size() < limit) {
        size_t places[kAhead], count = 0;
        const size_t most = std::min(kAhead, limit - blocks.size());
        size_t guess = recall_->next(trail.place);
        if (guess != Recall::kNone) recall_->fetch_from(guess, 2 * kAhead);
        for (; guess != Recall::kNone && count < most; guess = recall_->next(guess)) {
            recall_->fetch(guess); // all misses at once, not one after the other
            places[count++] = guess;
        }
        if (count == 0) places[count++] = Recall::kNone;
        for (size_t at = 0; at < count; ++at) {
            const int32_t *content = tokens.data() + blocks.size() * size;
            const int32_t above = blocks.empty() ? anchor : blocks.back();
            size_t place = places[at];
            int32_t block = recall_->find(place, above, content);
            if (block == 0) { // the guess was wrong
                place = recall_->place(recall_->digest(trail.digest, content));
                block = recall_->find(place, above, content);
                if (block == 0) return;
                recall_->follow(trail.place, place);
                recall_->fetch_from(place, kAhead);
                at = count;
            }
            if (list.made() == blocks.size()) list.add(pool_->block_hash[block]);
            blocks.push_back(block);
            trail = {recall_->digest_at(place), place};
        }
    }
}

/// Remember these blocks, found below `blocks`, and append them.
void Core::remember(int32_t anchor, const Tokens &tokens, const Blocks &found, Trail &trail, Blocks &blocks) {
    for (int32_t block : found) {
        const int32_t *content = tokens.data() + blocks.size() * static_cast<size_t>(options_.block_size);
        const uint64_t digest = recall_->digest(trail.digest, content);
        const size_t place = recall_->keep(digest, blocks.empty() ? anchor : blocks.back(), content, block);
        recall_->follow(trail.place, place);
        trail = {digest, place};
        blocks.push_back(block);
    }
}

/// Find the leading full blocks that may be shared, and hash what that needs.
HashList Core::hash_and_find(const Root &root, const Tokens &tokens, Blocks &blocks) {
    const auto size = static_cast<size_t>(options_.block_size), full = static_cast<size_t>(tokens.size()) / size;
    const size_t limit = tokens.size() > 0 ? static_cast<size_t>(tokens.size() - 1) / size : 0;
    HashList list = HashList::of(root.block_hash, tokens.data(), full, size, hasher_);
    Trail trail{static_cast<uint64_t>(root.anchor), Recall::kNone};
    blocks.reserve(limit);
    while (blocks.size() < limit) {
        const size_t before = blocks.size();
        recall(root.anchor, tokens, limit, trail, list, blocks);
        const size_t start = blocks.size(), count = std::min(limit - start, start > before ? 1 : kSlice);
        const int32_t parent = start > 0 ? blocks.back() : 0;
        const Blocks found = index_->find({root.anchor, parent, list, start, tokens.data() + start * size, count});
        remember(root.anchor, tokens, found, trail, blocks);
        if (found.size() < count) break;
    }
    list.keep(tokens.data(), static_cast<size_t>(tokens.size()));
    return list;
}

} // namespace native
