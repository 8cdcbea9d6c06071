// Index from content to block: framework.paged.index in C++.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "pool.hpp"

namespace native {

/// An open-addressing set of ids above 0, found by a hash and an equality the caller gives. Linear probing, removal
/// by moving back what follows; 8 bytes a slot, at least two slots an id.
class IdSet {
public:
    explicit IdSet(size_t expected = 8) { resize(expected); }

    template <class Equal> int32_t find(uint64_t hash, Equal equal) const {
        const auto tag = static_cast<uint32_t>(hash);
        for (size_t at = tag & mask_;; at = (at + 1) & mask_) {
            const Slot &slot = slots_[at];
            if (slot.id == 0) return 0;
            if (slot.tag == tag && equal(slot.id)) return slot.id;
        }
    }
    void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[static_cast<uint32_t>(hash) & mask_]); }
    void add(uint64_t hash, int32_t id) {
        if (2 * (count_ + 1) > slots_.size()) grow();
        place({id, static_cast<uint32_t>(hash)});
        ++count_;
    }
    void remove(uint64_t hash, int32_t id) {
        size_t hole = static_cast<uint32_t>(hash) & mask_;
        while (slots_[hole].id != id) hole = (hole + 1) & mask_;
        for (size_t at = (hole + 1) & mask_; slots_[at].id != 0; at = (at + 1) & mask_) {
            const size_t home = slots_[at].tag & mask_;
            if (((at - home) & mask_) >= ((at - hole) & mask_)) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        }
        slots_[hole] = {};
        --count_;
    }
    void clear() {
        slots_.assign(slots_.size(), {});
        count_ = 0;
    }
    template <class Visit> void each(Visit visit) const {
        for (const Slot &slot : slots_)
            if (slot.id != 0) visit(slot.id);
    }

private:
    struct Slot {
        int32_t id = 0;
        uint32_t tag = 0;
    };
    void resize(size_t expected) {
        size_t size = 16;
        while (size < 2 * expected) size *= 2;
        slots_.assign(size, {});
        mask_ = size - 1;
    }
    void place(Slot slot) {
        size_t at = slot.tag & mask_;
        while (slots_[at].id != 0) at = (at + 1) & mask_;
        slots_[at] = slot;
    }
    void grow() {
        std::vector<Slot> before = std::move(slots_);
        resize(before.size());
        for (const Slot &slot : before)
            if (slot.id != 0) place(slot);
    }

    std::vector<Slot> slots_;
    size_t mask_ = 0, count_ = 0;
};

/// Contents to publish: hashes in order below `parent`, and their tokens.
struct Chain {
    int32_t anchor;
    int32_t parent;
    const BlockHash *hashes;
    const int32_t *tokens;
    size_t count;
};

class Index {
public:
    explicit Index(Pool &pool) : pool_(pool) {}
    virtual ~Index() = default;
    /// Blocks of the leading contents, up to the first that is not published.
    virtual Blocks find(int32_t anchor, const BlockHash *hashes, const int32_t *tokens, size_t limit) const = 0;
    /// Publish `blocks` below each other, up to the first collision; the holder of each, and the places newly published.
    virtual void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) = 0;
    /// How many leading contents of the chain no block holds and `insert` would take.
    virtual size_t count_new(const Chain &chain) const = 0;
    virtual int32_t parent(int32_t block) const = 0;
    virtual void remove(int32_t block) = 0;
    /// These are removed next: fetch what that reads.
    virtual void prepare(const Blocks &) const {}
    /// This one may be removed soon: fetch what `remove` reads at once, then what it reads after that.
    virtual void fetch(int32_t) const {}
    virtual void fetch_more(int32_t) const {}
    /// A content of this hash may be published soon.
    virtual void fetch(const BlockHash &) const {}
    virtual void clear() = 0;

    int64_t collisions = 0;

protected:
    Pool &pool_;
};

/// For collision-resistant schemes: equal hashes, equal contents.
class HashIndex final : public Index {
public:
    explicit HashIndex(Pool &pool) : Index(pool), blocks_(pool.size()), parents(pool.size()), above_(pool.size()) {}

    Blocks find(int32_t, const BlockHash *hashes, const int32_t *, size_t limit) const override {
        Blocks found;
        found.reserve(limit);
        for (size_t at = 0; at < limit; ++at) {
            const int32_t block = holder(hashes[at]);
            if (block == 0) break;
            found.push_back(block);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        int32_t parent = chain.parent;
        const BlockHash *above = parent != 0 ? &pool_.block_hash[parent] : nullptr;
        std::vector<uint64_t> mixed(chain.count);
        for (size_t at = 0; at < chain.count; ++at) { // all misses at once, not one after the other
            mixed[at] = chain.hashes[at].mixed();
            blocks_.prefetch(mixed[at]);
            fetch(blocks[at]);
        }
        for (size_t at = 0; at < chain.count; ++at) {
            const BlockHash &block_hash = chain.hashes[at];
            const int32_t block = blocks[at];
            int32_t found = blocks_.find(mixed[at], [&](int32_t held) { return pool_.block_hash[held] == block_hash; });
            if (found == 0) {
                found = block;
                publish(block, block_hash, mixed[at], above, parent);
                places.push_back(static_cast<int32_t>(at));
            }
            holders.push_back(found);
            parent = found;
            above = &block_hash;
        }
    }

    size_t count_new(const Chain &chain) const override {
        size_t count = 0;
        while (count < chain.count && holder(chain.hashes[count]) == 0) ++count;
        return count;
    }

    int32_t parent(int32_t block) const override {
        return parents[block].empty() ? 0 : holder_above(block);
    }

    void remove(int32_t block) override {
        const BlockHash &block_hash = pool_.block_hash[block];
        blocks_.remove(block_hash.mixed(), block);
        if (pool_.children[block] != 0) {
            orphans[block_hash] = pool_.children[block];
            pool_.children[block] = 0;
        }
        const BlockHash &above = parents[block];
        if (above.empty()) return;
        if (const int32_t found = holder_above(block)) {
            --pool_.children[found];
        } else if (auto entry = orphans.find(above); --entry->second == 0) {
            orphans.erase(entry);
        }
    }

    void prepare(const Blocks &blocks) const override {
        for (int32_t block : blocks) fetch(block);
        for (int32_t block : blocks) fetch_more(block);
    }
    void fetch(int32_t block) const override {
        __builtin_prefetch(&pool_.ref[block], 1);
        __builtin_prefetch(&pool_.block_hash[block], 1);
        __builtin_prefetch(&parents[block], 1);
        __builtin_prefetch(&above_[block], 1);
    }
    void fetch_more(int32_t block) const override { blocks_.prefetch(pool_.block_hash[block].mixed()); }
    void fetch(const BlockHash &block_hash) const override { blocks_.prefetch(block_hash.mixed()); }

    void clear() override {
        blocks_.clear();
        orphans.clear();
    }

    const IdSet &ids() const { return blocks_; }

private:
    int32_t holder(const BlockHash &block_hash) const {
        return blocks_.find(block_hash.mixed(), [&](int32_t block) { return pool_.block_hash[block] == block_hash; });
    }
    void publish(int32_t block, const BlockHash &block_hash, uint64_t hash, const BlockHash *above, int32_t parent) {
        pool_.block_hash[block] = block_hash;
        blocks_.add(hash, block);
        pool_.children[block] = 0;
        if (!orphans.empty())
            if (auto entry = orphans.find(block_hash); entry != orphans.end()) {
                pool_.children[block] = entry->second;
                orphans.erase(entry);
            }
        parents[block] = above != nullptr ? *above : BlockHash();
        above_[block] = parent;
        if (parent != 0) ++pool_.children[parent];
    }
    /// Mostly the block it was published below; that may hold other content by now.
    int32_t holder_above(int32_t block) const {
        const int32_t likely = above_[block];
        return pool_.block_hash[likely] == parents[block] ? likely : holder(parents[block]);
    }

    IdSet blocks_;

public:
    std::vector<BlockHash> parents;                         // of a published block, empty at the root
    std::unordered_map<BlockHash, int32_t, BlockHashMix> orphans; // absent contents that have resident children

private:
    Blocks above_; // the block that held the parent when this one was published
};

/// For any scheme: a trie over exact contents, so that equal hashes of unequal contents never share. Contents that are
/// gone stay as ghosts while they have descendants.
class TrieIndex final : public Index {
public:
    explicit TrieIndex(Pool &pool) : Index(pool), node_of(pool.size()) { reset(); }

    Blocks find(int32_t anchor, const BlockHash *hashes, const int32_t *tokens, size_t limit) const override {
        Blocks found;
        int32_t node = anchor;
        for (size_t at = 0; at < limit; ++at) {
            node = child(node, hashes[at]);
            if (node == 0 || block[node] == 0 || !same(node, tokens + at * width())) break;
            found.push_back(block[node]);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        int32_t parent = chain.parent;
        for (size_t at = 0; at < chain.count; ++at) {
            const bool published = pool_.published(blocks[at]);
            parent = insert_one(chain.anchor, parent, chain.hashes[at], chain.tokens + at * width(), blocks[at]);
            if (parent == 0) break;
            holders.push_back(parent);
            if (parent == blocks[at] && !published) {
                pool_.block_hash[parent] = chain.hashes[at];
                places.push_back(static_cast<int32_t>(at));
            }
        }
    }

    size_t count_new(const Chain &chain) const override {
        int32_t node = chain.parent != 0 ? node_of[chain.parent] : chain.anchor;
        for (size_t at = 0; at < chain.count; ++at) {
            node = child(node, chain.hashes[at]);
            if (node == 0) break;
            if (block[node] != 0 || !same(node, chain.tokens + at * width())) return at;
        }
        return chain.count;
    }

    int32_t parent(int32_t id) const override {
        const int32_t up = above[node_of[id]];
        return up > 0 ? block[up] : 0;
    }

    void remove(int32_t id) override {
        int32_t node = node_of[id], up = above[node];
        block[node] = node_of[id] = 0;
        pool_.children[id] = 0;
        if (up > 0) {
            --resident[up];
            if (block[up] != 0) --pool_.children[block[up]];
        }
        while (node > 0 && block[node] == 0 && kids[node] == 0) {
            up = above[node];
            nodes_.remove(hash(up, hash_of[node]), node);
            unused_.push_back(node);
            if (up > 0) --kids[up];
            node = up;
        }
    }

    void clear() override {
        nodes_.clear();
        reset();
    }

    const IdSet &ids() const { return nodes_; }
    const int32_t *tokens_of(int32_t node) const { return data_.data() + node * width(); }

private:
    size_t width() const { return static_cast<size_t>(pool_.block_size); }
    static uint64_t hash(int32_t above, const BlockHash &block_hash) {
        return block_hash.mixed() ^ static_cast<uint64_t>(static_cast<uint32_t>(above)) * 0x9E3779B97F4A7C15ull >> 16;
    }
    int32_t child(int32_t up, const BlockHash &wanted) const {
        return nodes_.find(hash(up, wanted), [&](int32_t node) { return above[node] == up && hash_of[node] == wanted; });
    }
    bool same(int32_t node, const int32_t *tokens) const {
        return std::memcmp(tokens_of(node), tokens, 4 * width()) == 0;
    }
    int32_t insert_one(int32_t anchor, int32_t parent, const BlockHash &wanted, const int32_t *tokens, int32_t id) {
        const int32_t up = parent != 0 ? node_of[parent] : anchor;
        int32_t node = child(up, wanted);
        if (node == 0) {
            node = new_node(up, wanted, tokens);
        } else if (!same(node, tokens)) {
            ++collisions;
            return 0;
        } else if (block[node] != 0) {
            return block[node];
        }
        block[node] = id;
        node_of[id] = node;
        pool_.children[id] = resident[node];
        if (up > 0) {
            ++resident[up];
            ++pool_.children[parent];
        }
        return id;
    }
    int32_t new_node(int32_t up, const BlockHash &wanted, const int32_t *tokens) {
        int32_t node;
        if (!unused_.empty()) {
            node = unused_.back();
            unused_.pop_back();
        } else {
            node = static_cast<int32_t>(above.size());
            for (auto *column : {&above, &kids, &resident, &block}) column->push_back(0);
            hash_of.emplace_back();
            data_.resize(data_.size() + width());
        }
        above[node] = up;
        hash_of[node] = wanted;
        kids[node] = resident[node] = block[node] = 0;
        std::memcpy(data_.data() + node * width(), tokens, 4 * width());
        nodes_.add(hash(up, wanted), node);
        if (up > 0) ++kids[up];
        return node;
    }
    void reset() {
        for (auto *column : {&above, &kids, &resident, &block}) column->assign(1, 0);
        hash_of.assign(1, BlockHash());
        data_.assign(width(), 0);
        unused_.clear();
        std::fill(node_of.begin(), node_of.end(), 0);
    }

    IdSet nodes_;
    std::vector<int32_t> data_, unused_;

public:
    std::vector<int32_t> node_of;                      // of a published block
    std::vector<int32_t> above, kids, resident, block; // parent node or anchor; children; those with a block; 0: ghost
    std::vector<BlockHash> hash_of;
};

} // namespace native
