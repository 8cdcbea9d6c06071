// Which block holds this content after this prefix? framework.paged.index, in C++.
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

/// Contents to publish: names in order below `parent`, and their tokens.
struct Chain {
    int32_t anchor;
    int32_t parent;
    const Name *names;
    const int32_t *tokens;
    size_t count;
};

class Index {
public:
    explicit Index(Pool &pool) : pool_(pool) {}
    virtual ~Index() = default;
    /// Blocks of the leading contents, up to the first that is not published.
    virtual Blocks find(int32_t anchor, const Name *names, const int32_t *tokens, size_t limit) const = 0;
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
    /// A content of this name may be published soon.
    virtual void fetch(const Name &) const {}
    virtual void clear() = 0;

    int64_t collisions = 0;

protected:
    Pool &pool_;
};

/// For collision-resistant schemes: equal names, equal contents.
class HashIndex final : public Index {
public:
    explicit HashIndex(Pool &pool) : Index(pool), blocks_(pool.size()), parents(pool.size()), above_(pool.size()) {}

    Blocks find(int32_t, const Name *names, const int32_t *, size_t limit) const override {
        Blocks found;
        found.reserve(limit);
        for (size_t at = 0; at < limit; ++at) {
            const int32_t block = holder(names[at]);
            if (block == 0) break;
            found.push_back(block);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        int32_t parent = chain.parent;
        const Name *above = parent != 0 ? &pool_.key[parent] : nullptr;
        std::vector<uint64_t> hashes(chain.count);
        for (size_t at = 0; at < chain.count; ++at) { // all misses at once, not one after the other
            hashes[at] = chain.names[at].hash();
            blocks_.prefetch(hashes[at]);
            fetch(blocks[at]);
        }
        for (size_t at = 0; at < chain.count; ++at) {
            const Name &name = chain.names[at];
            const int32_t block = blocks[at];
            int32_t found = blocks_.find(hashes[at], [&](int32_t held) { return pool_.key[held] == name; });
            if (found == 0) {
                found = block;
                publish(block, name, hashes[at], above, parent);
                places.push_back(static_cast<int32_t>(at));
            }
            holders.push_back(found);
            parent = found;
            above = &name;
        }
    }

    size_t count_new(const Chain &chain) const override {
        size_t count = 0;
        while (count < chain.count && holder(chain.names[count]) == 0) ++count;
        return count;
    }

    int32_t parent(int32_t block) const override {
        return parents[block].empty() ? 0 : holder_above(block);
    }

    void remove(int32_t block) override {
        const Name &name = pool_.key[block];
        blocks_.remove(name.hash(), block);
        if (pool_.children[block] != 0) {
            orphans[name] = pool_.children[block];
            pool_.children[block] = 0;
        }
        const Name &above = parents[block];
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
        __builtin_prefetch(&pool_.key[block], 1);
        __builtin_prefetch(&parents[block], 1);
        __builtin_prefetch(&above_[block], 1);
    }
    void fetch_more(int32_t block) const override { blocks_.prefetch(pool_.key[block].hash()); }
    void fetch(const Name &name) const override { blocks_.prefetch(name.hash()); }

    void clear() override {
        blocks_.clear();
        orphans.clear();
    }

    const IdSet &ids() const { return blocks_; }

private:
    int32_t holder(const Name &name) const {
        return blocks_.find(name.hash(), [&](int32_t block) { return pool_.key[block] == name; });
    }
    void publish(int32_t block, const Name &name, uint64_t hash, const Name *above, int32_t parent) {
        pool_.key[block] = name;
        blocks_.add(hash, block);
        pool_.children[block] = 0;
        if (!orphans.empty())
            if (auto entry = orphans.find(name); entry != orphans.end()) {
                pool_.children[block] = entry->second;
                orphans.erase(entry);
            }
        parents[block] = above != nullptr ? *above : Name();
        above_[block] = parent;
        if (parent != 0) ++pool_.children[parent];
    }
    /// Mostly the block it was published below; that may hold other content by now.
    int32_t holder_above(int32_t block) const {
        const int32_t likely = above_[block];
        return pool_.key[likely] == parents[block] ? likely : holder(parents[block]);
    }

    IdSet blocks_;

public:
    std::vector<Name> parents;                         // of a published block, empty at the root
    std::unordered_map<Name, int32_t, NameHash> orphans; // absent contents that have resident children

private:
    Blocks above_; // the block that held the parent when this one was published
};

/// For any scheme: a trie over exact contents, so that equal names of unequal contents never share. Contents that are
/// gone stay as ghosts while they have descendants.
class TrieIndex final : public Index {
public:
    explicit TrieIndex(Pool &pool) : Index(pool), node_of(pool.size()) { reset(); }

    Blocks find(int32_t anchor, const Name *names, const int32_t *tokens, size_t limit) const override {
        Blocks found;
        int32_t node = anchor;
        for (size_t at = 0; at < limit; ++at) {
            node = child(node, names[at]);
            if (node == 0 || block[node] == 0 || !same(node, tokens + at * width())) break;
            found.push_back(block[node]);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        int32_t parent = chain.parent;
        for (size_t at = 0; at < chain.count; ++at) {
            const bool published = pool_.published(blocks[at]);
            parent = insert_one(chain.anchor, parent, chain.names[at], chain.tokens + at * width(), blocks[at]);
            if (parent == 0) break;
            holders.push_back(parent);
            if (parent == blocks[at] && !published) {
                pool_.key[parent] = chain.names[at];
                places.push_back(static_cast<int32_t>(at));
            }
        }
    }

    size_t count_new(const Chain &chain) const override {
        int32_t node = chain.parent != 0 ? node_of[chain.parent] : chain.anchor;
        for (size_t at = 0; at < chain.count; ++at) {
            node = child(node, chain.names[at]);
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
            nodes_.remove(hash(up, name[node]), node);
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
    static uint64_t hash(int32_t above, const Name &name) {
        return name.hash() ^ static_cast<uint64_t>(static_cast<uint32_t>(above)) * 0x9E3779B97F4A7C15ull >> 16;
    }
    int32_t child(int32_t up, const Name &wanted) const {
        return nodes_.find(hash(up, wanted), [&](int32_t node) { return above[node] == up && name[node] == wanted; });
    }
    bool same(int32_t node, const int32_t *tokens) const {
        return std::memcmp(tokens_of(node), tokens, 4 * width()) == 0;
    }
    int32_t insert_one(int32_t anchor, int32_t parent, const Name &wanted, const int32_t *tokens, int32_t id) {
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
    int32_t new_node(int32_t up, const Name &wanted, const int32_t *tokens) {
        int32_t node;
        if (!unused_.empty()) {
            node = unused_.back();
            unused_.pop_back();
        } else {
            node = static_cast<int32_t>(above.size());
            for (auto *column : {&above, &kids, &resident, &block}) column->push_back(0);
            name.emplace_back();
            data_.resize(data_.size() + width());
        }
        above[node] = up;
        name[node] = wanted;
        kids[node] = resident[node] = block[node] = 0;
        std::memcpy(data_.data() + node * width(), tokens, 4 * width());
        nodes_.add(hash(up, wanted), node);
        if (up > 0) ++kids[up];
        return node;
    }
    void reset() {
        for (auto *column : {&above, &kids, &resident, &block}) column->assign(1, 0);
        name.assign(1, Name());
        data_.assign(width(), 0);
        unused_.clear();
        std::fill(node_of.begin(), node_of.end(), 0);
    }

    IdSet nodes_;
    std::vector<int32_t> data_, unused_;

public:
    std::vector<int32_t> node_of;                      // of a published block
    std::vector<int32_t> above, kids, resident, block; // parent node or anchor; children; those with a block; 0: ghost
    std::vector<Name> name;
};

} // namespace native
