// Which blocks are free, who refers to each, and what is known of each? The columns of framework.paged.pool.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "name.hpp"

namespace native {

using Blocks = std::vector<int32_t>;

/// One vector a fact, indexed by block id; entry 0 is the null block's. The free set is a stack, so that the block
/// handed out next is the one framework.paged.pool would.
struct Pool {
    Pool(int32_t count, int32_t tokens)
        : num_blocks(count), block_size(tokens), ref(size()), depth(size()), hits(size()), tenant(size()),
          children(size()), candidate(size()), admitted(size()), last_access(size()), priority(size()),
          next_use(size(), std::numeric_limits<double>::infinity()), key(size()) {
        free.reserve(count);
        for (int32_t block = count; block > 0; --block) free.push_back(block);
    }

    size_t size() const { return static_cast<size_t>(num_blocks) + 1; }
    int32_t cached() const { return num_blocks - static_cast<int32_t>(free.size()) - used; }
    bool published(int32_t block) const { return !key[block].empty(); }

    void describe(int32_t block, int32_t at, int64_t importance, int32_t owner) {
        depth[block] = at;
        hits[block] = 0;
        priority[block] = importance;
        tenant[block] = owner;
        admitted[block] = last_access[block] = access;
        next_use[block] = std::numeric_limits<double>::infinity();
    }

    int32_t num_blocks, block_size;
    int32_t used = 0;
    int64_t access = 0;
    Blocks free;
    std::vector<int32_t> ref, depth, hits, tenant, children;
    std::vector<uint8_t> candidate;
    std::vector<int64_t> admitted, last_access, priority;
    std::vector<double> next_use;
    std::vector<Name> key;
};

} // namespace native
