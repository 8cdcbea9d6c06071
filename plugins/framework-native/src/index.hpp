// Index from content to block: framework.paged.index in C++.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pool.hpp"

namespace native {

/// Memory that starts on a cache line, so that 16 tokens lie on one.
template <class T> struct OnLines {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};
    OnLines() = default;
    template <class Other> OnLines(const OnLines<Other> &) noexcept {}
    T *allocate(size_t count) { return static_cast<T *>(::operator new(count * sizeof(T), kLine)); }
    void deallocate(T *at, size_t) noexcept { ::operator delete(at, kLine); }
    template <class Other> bool operator==(const OnLines<Other> &) const noexcept { return true; }
    template <class Other> bool operator!=(const OnLines<Other> &) const noexcept { return false; }
};
using AlignedInts = std::vector<int32_t, OnLines<int32_t>>;

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

/// Where a chain begins: below a published block, or, with 0, below a namespace's anchor.
struct Below {
    int32_t anchor, block;
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
    /// Blocks of the leading contents below a place, up to the first that is not published.
    virtual Blocks find(const Below &below, const BlockHash *hashes, const int32_t *tokens, size_t limit) const = 0;
    /// Publish `blocks` below each other, up to the first collision; the holder of each, and the places newly published.
    virtual void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) = 0;
    /// How many leading contents of the chain no block holds and `insert` would take.
    virtual size_t count_new(const Chain &chain) const = 0;
    virtual int32_t parent(int32_t block) const = 0;
    virtual void remove(int32_t block) = 0;
    /// Remove and unpublish each.
    virtual void remove(const Blocks &blocks) = 0;
    /// These are removed next: fetch what that reads.
    void prepare(const Blocks &blocks) const {
        fetch(blocks.data(), blocks.size());
        fetch_more(blocks.data(), blocks.size());
    }
    /// These may be removed soon: fetch what `remove` reads at once, then what it reads after that.
    virtual void fetch(const int32_t *blocks, size_t count) const = 0;
    virtual void fetch_more(const int32_t *blocks, size_t count) const = 0;
    /// Contents of these hashes may be published soon.
    virtual void fetch(const BlockHash *, size_t) const {}
    virtual void clear() = 0;

    int64_t collisions = 0;

protected:
    Pool &pool_;
};

/// For collision-resistant schemes: equal hashes, equal contents.
class HashIndex final : public Index {
public:
    explicit HashIndex(Pool &pool) : Index(pool), blocks_(pool.size()), parents(pool.size()) {}

    Blocks find(const Below &, const BlockHash *hashes, const int32_t *, size_t limit) const override {
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
        mixed_.resize(chain.count);
        for (size_t at = 0; at < chain.count; ++at) { // all misses at once, not one after the other
            mixed_[at] = chain.hashes[at].mixed();
            blocks_.prefetch(mixed_[at]);
        }
        fetch(blocks, chain.count);
        for (size_t at = 0; at < chain.count; ++at) {
            const BlockHash &block_hash = chain.hashes[at];
            const int32_t block = blocks[at];
            int32_t found = blocks_.find(mixed_[at], [&](int32_t held) { return pool_.block_hash[held] == block_hash; });
            if (found == 0) {
                found = block;
                publish(block, block_hash, mixed_[at], above, parent);
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
        return pool_.published(block) ? holder_above(block) : 0;
    }

    void remove(int32_t block) override {
        Facts &facts = pool_.facts(block);
        blocks_.remove(facts.tag, block);
        if (facts.children != 0) {
            orphans[pool_.block_hash[block]] = facts.children;
            facts.children = 0;
            facts.torn = 1;
        }
        if (facts.link == 0) return;
        if (const int32_t found = holder_above(block)) {
            --pool_.children[found];
        } else if (auto entry = orphans.find(parents[block]); --entry->second == 0) {
            orphans.erase(entry);
        }
    }

    void remove(const Blocks &blocks) override {
        for (int32_t block : blocks) {
            HashIndex::remove(block);
            pool_.unpublish(block);
        }
    }

    /// `remove` reads the facts alone; the other two are written when a content is published next.
    void fetch(const int32_t *blocks, size_t count) const override {
        for (size_t at = 0; at < count; ++at) {
            __builtin_prefetch(&pool_.facts(blocks[at]), 1);
            __builtin_prefetch(&pool_.block_hash[blocks[at]], 1);
            __builtin_prefetch(&parents[blocks[at]], 1);
        }
    }
    void fetch_more(const int32_t *blocks, size_t count) const override {
        for (size_t at = 0; at < count; ++at) blocks_.prefetch(pool_.facts(blocks[at]).tag);
    }
    void fetch(const BlockHash *hashes, size_t count) const override {
        for (size_t at = 0; at < count; ++at) blocks_.prefetch(hashes[at].mixed());
    }

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
        Facts &facts = pool_.facts(block);
        pool_.publish(block, block_hash);
        blocks_.add(hash, block);
        facts.tag = static_cast<uint32_t>(hash);
        facts.children = 0;
        if (!orphans.empty())
            if (auto entry = orphans.find(block_hash); entry != orphans.end()) {
                facts.children = entry->second;
                orphans.erase(entry);
            }
        facts.link = parent;
        if (above != nullptr) {
            parents[block] = *above;
        } else {
            parents[block].clear();
        }
        if (parent != 0) ++pool_.children[parent];
    }
    /// The block it was published below, unless that was unpublished before this one: it may hold other content by now.
    int32_t holder_above(int32_t block) const {
        const int32_t likely = pool_.facts(block).link;
        if (likely == 0 || pool_.facts(likely).torn == 0) return likely;
        const bool still = pool_.published(likely) && pool_.block_hash[likely] == parents[block];
        return still ? likely : holder(parents[block]);
    }

    IdSet blocks_;
    std::vector<uint64_t> mixed_; // of the hashes that are being published

public:
    std::vector<BlockHash> parents;                         // of a published block, empty at the root
    std::unordered_map<BlockHash, int32_t, BlockHashMix> orphans; // absent contents that have resident children
};

/// For any scheme: a trie over exact contents, so that equal hashes of unequal contents never share. Contents that are
/// gone stay as ghosts while they have descendants.
class TrieIndex final : public Index {
public:
    /// One content on one cache line; its tokens lie on the next ones.
    struct alignas(64) Node {
        uint64_t path = 0; // of the hashes from the anchor down: where the node is found, without a look at those above
        int32_t above = 0, kids = 0, resident = 0, block = 0; // parent node or anchor; children; those with a block; 0: ghost
        BlockHash hash;
    };

    explicit TrieIndex(Pool &pool) : Index(pool) { reset(); }

    Blocks find(const Below &below, const BlockHash *hashes, const int32_t *tokens, size_t limit) const override {
        Blocks found;
        int32_t node = top(below.anchor, below.block);
        uint64_t path = path_of(node);
        for (size_t at = 0; at < limit; ++at) {
            path = down(path, hashes[at]);
            node = child(node, path, hashes[at]);
            if (node == 0 || nodes[node].block == 0 || !same(node, tokens + at * width())) break;
            found.push_back(nodes[node].block);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        int32_t up = top(chain.anchor, chain.parent), parent = chain.parent;
        paths_.resize(chain.count);
        uint64_t path = path_of(up);
        for (size_t at = 0; at < chain.count; ++at) { // all misses at once, not one after the other
            paths_[at] = path = down(path, chain.hashes[at]);
            ids_.prefetch(path);
        }
        fetch(blocks, chain.count);
        bool fresh = false; // nothing is below a node that is new
        for (size_t at = 0; at < chain.count; ++at) {
            const BlockHash &wanted = chain.hashes[at];
            const int32_t *tokens = chain.tokens + at * width();
            int32_t node = fresh ? 0 : child(up, paths_[at], wanted);
            fresh = node == 0;
            if (fresh) {
                node = new_node(up, paths_[at], wanted, tokens);
            } else if (!same(node, tokens)) {
                ++collisions;
                return;
            }
            const int32_t held = nodes[node].block;
            if (held == 0) {
                settle(node, up, parent, blocks[at]);
                places.push_back(static_cast<int32_t>(at));
            }
            parent = held != 0 ? held : blocks[at];
            holders.push_back(parent);
            up = node;
        }
    }

    size_t count_new(const Chain &chain) const override {
        int32_t node = top(chain.anchor, chain.parent);
        uint64_t path = path_of(node);
        for (size_t at = 0; at < chain.count; ++at) {
            path = down(path, chain.hashes[at]);
            node = child(node, path, chain.hashes[at]);
            if (node == 0) break;
            if (nodes[node].block != 0 || !same(node, chain.tokens + at * width())) return at;
        }
        return chain.count;
    }

    int32_t parent(int32_t block) const override {
        const int32_t up = nodes[node_of(block)].above;
        return up > 0 ? nodes[up].block : 0;
    }

    void remove(int32_t block) override {
        Facts &facts = pool_.facts(block);
        int32_t node = std::exchange(facts.link, 0), up = nodes[node].above;
        nodes[node].block = 0;
        facts.children = 0;
        if (up > 0) {
            --nodes[up].resident;
            if (nodes[up].block != 0) --pool_.children[nodes[up].block];
        }
        while (node > 0 && nodes[node].block == 0 && nodes[node].kids == 0) {
            up = nodes[node].above;
            ids_.remove(nodes[node].path, node);
            unused_.push_back(node);
            if (up > 0) --nodes[up].kids;
            node = up;
        }
    }

    void remove(const Blocks &blocks) override {
        for (int32_t block : blocks) {
            TrieIndex::remove(block);
            pool_.unpublish(block);
        }
    }

    void fetch(const int32_t *blocks, size_t count) const override {
        for (size_t at = 0; at < count; ++at) {
            __builtin_prefetch(&pool_.facts(blocks[at]), 1);
            __builtin_prefetch(&pool_.block_hash[blocks[at]], 1);
        }
    }
    void fetch_more(const int32_t *blocks, size_t count) const override {
        for (size_t at = 0; at < count; ++at) {
            __builtin_prefetch(&nodes[node_of(blocks[at])], 1);
            __builtin_prefetch(tokens_of(node_of(blocks[at])), 1);
            ids_.prefetch(pool_.facts(blocks[at]).tag);
        }
    }

    void clear() override {
        ids_.clear();
        reset();
    }

    const IdSet &ids() const { return ids_; }
    const int32_t *tokens_of(int32_t node) const { return data_.data() + static_cast<size_t>(node) * width(); }
    int32_t node_of(int32_t block) const { return pool_.facts(block).link; }

    std::vector<Node> nodes;

private:
    size_t width() const { return static_cast<size_t>(pool_.block_size); }
    int32_t top(int32_t anchor, int32_t block) const { return block != 0 ? node_of(block) : anchor; }
    uint64_t path_of(int32_t node) const { return node > 0 ? nodes[node].path : static_cast<uint64_t>(node); }
    static uint64_t down(uint64_t path, const BlockHash &wanted) {
        path = (path ^ wanted.mixed()) * 0x9E3779B97F4A7C15ull;
        return path ^ path >> 32;
    }
    int32_t child(int32_t up, uint64_t path, const BlockHash &wanted) const {
        return ids_.find(path, [&](int32_t node) { return nodes[node].above == up && nodes[node].hash == wanted; });
    }
    bool same(int32_t node, const int32_t *tokens) const {
        return std::memcmp(tokens_of(node), tokens, 4 * width()) == 0;
    }
    void settle(int32_t node, int32_t up, int32_t parent, int32_t block) {
        Facts &facts = pool_.facts(block);
        nodes[node].block = block;
        facts.link = node;
        facts.tag = static_cast<uint32_t>(nodes[node].path);
        facts.children = nodes[node].resident;
        pool_.publish(block, nodes[node].hash);
        if (up <= 0) return;
        ++nodes[up].resident;
        ++pool_.children[parent];
    }
    int32_t new_node(int32_t up, uint64_t path, const BlockHash &wanted, const int32_t *tokens) {
        int32_t node;
        if (!unused_.empty()) {
            node = unused_.back();
            unused_.pop_back();
        } else {
            node = static_cast<int32_t>(nodes.size());
            nodes.emplace_back();
            data_.resize(data_.size() + width());
        }
        Node &made = nodes[node];
        made.path = path;
        made.above = up;
        made.hash = wanted;
        made.kids = made.resident = made.block = 0;
        std::memcpy(data_.data() + static_cast<size_t>(node) * width(), tokens, 4 * width());
        ids_.add(path, node);
        if (up > 0) ++nodes[up].kids;
        return node;
    }
    void reset() {
        nodes.assign(1, Node());
        data_.assign(width(), 0);
        unused_.clear();
        for (size_t block = 0; block < pool_.size(); ++block) pool_.facts(static_cast<int32_t>(block)).link = 0;
    }

    IdSet ids_;
    AlignedInts data_;
    std::vector<int32_t> unused_;
    std::vector<uint64_t> paths_; // of the contents that are being published
};

} // namespace native
