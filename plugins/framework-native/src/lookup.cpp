// Hashing and finding the full blocks of a prompt without waiting for memory.
#include "allocator.hpp"

namespace native {
namespace {

constexpr size_t kSlice = 8; // hashes made in one go

} // namespace

/// The leading contents of `tokens` below `limit`, from `blocks.size()` on, that are remembered; `trail` is the last one
/// found.
void Core::recall(int32_t anchor, const Tokens &tokens, size_t limit, Trail &trail, std::vector<BlockHash> &list,
                  Blocks &blocks) {
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
            list.push_back(pool_->block_hash[block]);
            blocks.push_back(block);
            trail = {recall_->digest_at(place), place};
        }
    }
}

/// Hash every full block and find the leading ones that may be shared. SHA-256 on a chain leaves most of the processor
/// idle: in its shadow, what `allocate` and `commit` will read of the next victims is fetched.
void Core::hash_and_find(const Root &root, const Tokens &tokens, std::vector<BlockHash> &list, Blocks &blocks) {
    const auto size = static_cast<size_t>(options_.block_size), full = static_cast<size_t>(tokens.size()) / size;
    const size_t limit = tokens.size() > 0 ? static_cast<size_t>(tokens.size() - 1) / size : 0;
    list.reserve(full);
    blocks.reserve(limit);
    Trail trail{static_cast<uint64_t>(root.anchor), Recall::kNone};
    bool open = true; // whether all contents so far were found
    Blocks victims;
    while (list.size() < full) {
        const size_t before = list.size();
        if (open) recall(root.anchor, tokens, limit, trail, list, blocks);
        const size_t start = list.size(), stop = std::min(full, start + (start > before ? 1 : kSlice));
        if (start == stop) break;
        const BlockHash parent = start > 0 ? list.back() : root.block_hash; // a copy: the list may move
        hash_more(parent, tokens, static_cast<int64_t>(start), static_cast<int64_t>(stop), list);
        if (open) {
            const Blocks more = index_->find({root.anchor, blocks.empty() ? 0 : blocks.back()}, list.data() + start,
                                              tokens.data() + start * size, std::min(stop, limit) - start);
            for (size_t at = 0; at < more.size(); ++at) {
                const int32_t *content = tokens.data() + (start + at) * size;
                const uint64_t digest = recall_->digest(trail.digest, content);
                const size_t place = recall_->keep(digest, blocks.empty() ? root.anchor : blocks.back(), content, more[at]);
                recall_->follow(trail.place, place);
                trail = {digest, place};
                blocks.push_back(more[at]);
            }
            open = blocks.size() == stop;
            if (!open) {
                const size_t need = static_cast<size_t>(tokens.size() + size - 1) / size - blocks.size();
                victims = policy_->likely(need - std::min(need, pool_->free.size()));
                cache_->fetched = !victims.empty();
            }
        }
        if (open) continue;
        const size_t passed = start - std::min(start, blocks.size());
        const size_t before_that = passed - std::min(passed, kSlice), last = victims.size();
        if (passed < last) index_->fetch(victims.data() + passed, std::min(kSlice, last - passed));
        if (before_that < last) index_->fetch_more(victims.data() + before_that, std::min(passed, last) - before_that);
        index_->fetch(list.data() + start, stop - start);
    }
}

} // namespace native
