// Hashing and finding the full blocks of a prompt without waiting for memory.
#include "allocator.hpp"

namespace native {
namespace {

constexpr size_t kSlice = 4; // hashes made in one go

} // namespace

/// The leading contents of `tokens` below `limit`, from `blocks.size()` on, that are remembered; `digest` is that of
/// the last one found.
void Core::recall(int32_t anchor, const Tokens &tokens, size_t limit, uint64_t &digest, std::vector<BlockHash> &list,
                  Blocks &blocks) const {
    uint64_t digests[64];
    size_t width = 8;
    while (blocks.size() < limit) {
        const size_t start = blocks.size(), count = std::min(width, limit - start), size = pool_->block_size;
        uint64_t last = digest;
        for (size_t at = 0; at < count; ++at) { // all misses at once, not one after the other
            digests[at] = last = recall_->digest(last, tokens.data() + (start + at) * size);
            recall_->fetch_entries(last);
        }
        for (size_t at = 0; at < count; ++at) recall_->fetch_content(digests[at]);
        for (size_t at = 0; at < count; ++at) {
            const int32_t above = blocks.empty() ? anchor : blocks.back();
            const int32_t block = recall_->find(digests[at], above, tokens.data() + (start + at) * size);
            if (block == 0) return;
            list.push_back(pool_->block_hash[block]);
            blocks.push_back(block);
            digest = digests[at];
        }
        width = std::min<size_t>(2 * width, 64);
    }
}

/// Hash every full block and find the leading ones that may be shared. SHA-256 on a chain leaves most of the processor
/// idle: in its shadow, what `allocate` and `commit` will read of the next victims is fetched.
void Core::hash_and_find(const Root &root, const Tokens &tokens, std::vector<BlockHash> &list, Blocks &blocks) {
    const auto size = static_cast<size_t>(options_.block_size), full = static_cast<size_t>(tokens.size()) / size;
    const size_t limit = tokens.size() > 0 ? static_cast<size_t>(tokens.size() - 1) / size : 0;
    list.reserve(full);
    blocks.reserve(limit);
    auto digest = static_cast<uint64_t>(root.anchor);
    bool open = true; // whether all contents so far were found
    Blocks victims;
    while (list.size() < full) {
        const size_t before = list.size();
        if (open) recall(root.anchor, tokens, limit, digest, list, blocks);
        const size_t start = list.size(), stop = std::min(full, start + (start > before ? 1 : kSlice));
        if (start == stop) break;
        const BlockHash parent = start > 0 ? list.back() : root.block_hash; // a copy: the list may move
        hash_more(parent, tokens, static_cast<int64_t>(start), static_cast<int64_t>(stop), list);
        if (open) {
            const Blocks more = index_->find(root.anchor, list.data() + start, nullptr, std::min(stop, limit) - start);
            for (size_t at = 0; at < more.size(); ++at) {
                const int32_t *content = tokens.data() + (start + at) * size;
                digest = recall_->digest(digest, content);
                recall_->keep(digest, blocks.empty() ? root.anchor : blocks.back(), content, more[at]);
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
        for (size_t at = passed; at < std::min(passed + kSlice, victims.size()); ++at) index_->fetch(victims[at]);
        for (size_t at = passed - std::min(passed, kSlice); at < std::min(passed, victims.size()); ++at)
            index_->fetch_more(victims[at]);
        for (size_t at = start; at < stop; ++at) index_->fetch(list[at]);
    }
}

} // namespace native
