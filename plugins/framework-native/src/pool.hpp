// States, references and facts of blocks: the columns of framework.paged.pool.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace native {

using Blocks = std::vector<int32_t>;

/// All facts of one block on one cache line: a call reads and writes several of them. The last two are the index's.
struct alignas(64) Facts {
    int32_t ref = 0, depth = 0, hits = 0, tenant = 0, children = 0;
    uint8_t candidate = 0;
    uint8_t published = 0;
    int64_t admitted = 0, last_access = 0, priority = 0;
    double next_use = std::numeric_limits<double>::infinity();
    int32_t node = 0; // of its content in the trie
    uint32_t tag = 0; // of the node's path
};
static_assert(sizeof(Facts) == 64, "one cache line a block");

/// One fact of all blocks, indexed by block id; entry 0 is the null block's.
template <class T> class Column {
public:
    Column(std::vector<Facts> &facts, T Facts::*fact) : facts_(facts.data()), fact_(fact) {}
    T &operator[](size_t block) const { return facts_[block].*fact_; }
    T *data() const { return &(facts_->*fact_); }

private:
    Facts *facts_;
    T Facts::*fact_;
};

/// What is known of the blocks. The free set is a stack, so that the block handed out next is the one framework.paged.pool
/// would hand out.
class Pool {
    std::vector<Facts> facts_;

public:
    Pool(int32_t count, int32_t tokens)
        : facts_(static_cast<size_t>(count) + 1), num_blocks(count), block_size(tokens) {
        free.reserve(count);
        for (int32_t block = count; block > 0; --block) free.push_back(block);
    }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    size_t size() const { return static_cast<size_t>(num_blocks) + 1; }
    int32_t cached() const { return num_blocks - static_cast<int32_t>(free.size()) - used; }
    bool published(int32_t block) const { return facts_[block].published != 0; }
    void unpublish(int32_t block) { facts_[block].published = facts_[block].candidate = 0; }
    Facts &facts(int32_t block) { return facts_[block]; }
    const Facts &facts(int32_t block) const { return facts_[block]; }

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
    const Column<int32_t> ref{facts_, &Facts::ref}, depth{facts_, &Facts::depth}, hits{facts_, &Facts::hits},
        tenant{facts_, &Facts::tenant}, children{facts_, &Facts::children};
    const Column<uint8_t> candidate{facts_, &Facts::candidate};
    const Column<int64_t> admitted{facts_, &Facts::admitted}, last_access{facts_, &Facts::last_access},
        priority{facts_, &Facts::priority};
    const Column<double> next_use{facts_, &Facts::next_use};
};

} // namespace native
