// Index from content to block: framework.paged.index in C++.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "hash_list.hpp"
#include "pool.hpp"

namespace native {

/// A set of ids above 0, found by a hash and an equality the caller gives. Seven to a cache line, the line of their hash;
/// those that found it full lie on the next lines, and it counts them, so that nothing moves when one is removed. At
/// least two slots an id.
class IdSet {
public:
    explicit IdSet(size_t expected = 8) { resize(expected); }

    template <class Equal> int32_t find(uint64_t hash, Equal equal) const {
        const auto tag = static_cast<uint32_t>(hash);
        for (size_t at = tag & mask_;; at = (at + 1) & mask_) {
            const Line &line = lines_[at];
            for (uint32_t left = matches(line.tag, tag); left != 0; left &= left - 1)
                if (const auto id = static_cast<int32_t>(line.id[__builtin_ctz(left)]); id != 0 && equal(id)) return id;
            if (line.passed == 0) return 0;
        }
    }
    void prefetch(uint64_t hash) const { __builtin_prefetch(&lines_[static_cast<uint32_t>(hash) & mask_]); }
    void add(uint64_t hash, int32_t id) {
        if (2 * (count_ + 1) > kIds * lines_.size()) grow();
        place(static_cast<uint32_t>(hash), id);
        ++count_;
    }
    void remove(uint64_t hash, int32_t id) {
        for (size_t at = static_cast<uint32_t>(hash) & mask_;; at = (at + 1) & mask_) {
            Line &line = lines_[at];
            if (const uint32_t found = matches(line.id, static_cast<uint32_t>(id)); found != 0) {
                line.id[__builtin_ctz(found)] = 0;
                break;
            }
            --line.passed;
        }
        --count_;
    }
    void clear() {
        lines_.assign(lines_.size(), {});
        count_ = 0;
    }
    template <class Visit> void each(Visit visit) const {
        for (const Line &line : lines_)
            for (const uint32_t id : line.id)
                if (id != 0) visit(static_cast<int32_t>(id));
    }

private:
    static constexpr size_t kIds = 7;
    struct alignas(64) Line {
        uint32_t id[kIds] = {};
        uint32_t passed = 0; // ids that lie further on, but would lie here
        uint32_t tag[kIds + 1] = {};
    };
    /// A bit for each of the seven that is `wanted`. Without branches: nobody can foretell which it is.
    static uint32_t matches(const uint32_t *words, uint32_t wanted) {
        uint32_t found = 0;
#if defined(__SSE2__)
        const __m128i all = _mm_set1_epi32(static_cast<int>(wanted));
        const auto *halves = reinterpret_cast<const __m128i *>(words);
        found = static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(
            _mm_packs_epi32(_mm_cmpeq_epi32(_mm_load_si128(halves), all), _mm_cmpeq_epi32(_mm_load_si128(halves + 1), all)), all)));
#else
        for (size_t at = 0; at < kIds; ++at) found |= static_cast<uint32_t>(words[at] == wanted) << at;
#endif
        return found & ((1u << kIds) - 1);
    }
    void resize(size_t expected) {
        size_t size = 4;
        while (kIds * size < 2 * expected) size *= 2;
        lines_.assign(size, {});
        mask_ = size - 1;
    }
    void place(uint32_t tag, int32_t id) {
        for (size_t at = tag & mask_;; at = (at + 1) & mask_) {
            Line &line = lines_[at];
            if (const uint32_t unused = matches(line.id, 0); unused != 0) {
                const int slot = __builtin_ctz(unused);
                line.id[slot] = static_cast<uint32_t>(id);
                line.tag[slot] = tag;
                return;
            }
            ++line.passed;
        }
    }
    void grow() {
        const Lines before = std::move(lines_);
        resize(kIds * before.size());
        for (const Line &line : before)
            for (size_t at = 0; at < kIds; ++at)
                if (line.id[at] != 0) place(line.tag[at], static_cast<int32_t>(line.id[at]));
    }

    using Lines = std::vector<Line>;
    Lines lines_;
    size_t mask_ = 0, count_ = 0;
};

/// Contents to find or to publish, in order below a published block, or, with 0, below a namespace's anchor: `count`
/// hashes from the list's `first` on, and their tokens.
struct Chain {
    int32_t anchor;
    int32_t parent;
    const HashList &hashes;
    size_t first;
    const int32_t *tokens;
    size_t count;

    /// One that is made.
    const BlockHash &operator[](size_t at) const { return hashes[first + at]; }
    const BlockHash *begin() const { return hashes.data() + first; }
    size_t num_made() const {
        const size_t made = hashes.made();
        return made < first ? 0 : std::min(made - first, count);
    }
    void reach(size_t at) const { hashes.reach(first + std::min(at, count)); }
};

class Index {
public:
    explicit Index(Pool &pool) : pool_(pool) {}
    virtual ~Index() = default;
    /// Blocks of the leading contents, up to the first that is not published.
    virtual Blocks find(const Chain &chain) const = 0;
    /// Publish `blocks` below each other, up to the first collision; the holder of each, and the places newly published.
    virtual void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) = 0;
    /// How many leading contents of the chain no block holds and `insert` would take.
    virtual size_t count_new(const Chain &chain) const = 0;
    virtual int32_t parent(int32_t block) const = 0;
    virtual void remove(int32_t block) = 0;
    /// Remove and unpublish each; beside it a third as many of these hashes are made.
    virtual void remove(const Blocks &blocks, const HashList &hashes) = 0;
    virtual void clear() = 0;

    int64_t collisions = 0;

protected:
    static constexpr size_t kAhead = 8; // blocks whose memory is fetched before their turn

    void fetch_facts(const Blocks &blocks, size_t at) const {
        if (at < blocks.size()) __builtin_prefetch(&pool_.facts(blocks[at]), 1);
    }
    /// To be written; it may lie on two lines.
    static void fetch_name(const BlockHash &name) {
        const auto *at = reinterpret_cast<const char *>(&name);
        __builtin_prefetch(at, 1);
        __builtin_prefetch(at + sizeof(BlockHash) - 1, 1);
    }
    Pool &pool_;
};

/// For collision-resistant schemes: equal hashes, equal contents.
class HashIndex final : public Index {
public:
    explicit HashIndex(Pool &pool) : Index(pool), blocks_(pool.size()), parents(pool.size()) {}

    Blocks find(const Chain &chain) const override {
        Blocks found;
        found.reserve(chain.count);
        for (size_t at = 0; at < chain.count; ++at) { // the next miss beside this one's work
            chain.reach(at + 2);
            if (at + 1 < chain.num_made()) blocks_.prefetch(chain[at + 1].mixed());
            const int32_t block = holder(chain[at]);
            if (block == 0) break;
            found.push_back(block);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        const BlockHash *hashes = chain.begin(), *above = chain.parent != 0 ? &pool_.block_hash[chain.parent] : nullptr;
        HashPace pace(chain.hashes, chain.first + chain.count, chain.count);
        uint64_t mixed[kAhead]; // of the next hashes, in a ring
        holders.resize(chain.count);
        int32_t parent = chain.parent;
        size_t known = 0; // of the mixed ones
        for (size_t at = 0; at < std::min(kAhead, chain.count); ++at) fetch(blocks[at]);
        for (size_t at = 0; at < chain.count; ++at) { // the next misses beside this one's work
            if (at + kAhead < chain.count) fetch(blocks[at + kAhead]);
            pace.step();
            for (const size_t last = std::min({pace.made() - chain.first, at + kAhead, chain.count}); known < last; ++known)
                blocks_.prefetch(mixed[known % kAhead] = hashes[known].mixed());
            const BlockHash &block_hash = hashes[at];
            int32_t found = blocks_.find(mixed[at % kAhead], [&](int32_t held) { return pool_.block_hash[held] == block_hash; });
            if (found == 0) {
                found = blocks[at];
                publish(found, block_hash, mixed[at % kAhead], above, parent);
                places.push_back(static_cast<int32_t>(at));
            }
            holders[at] = parent = found;
            above = &block_hash;
        }
    }

    size_t count_new(const Chain &chain) const override {
        for (size_t at = 0; at < chain.count; ++at) {
            chain.reach(at + 1);
            if (holder(chain[at]) != 0) return at;
        }
        return chain.count;
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

    void remove(const Blocks &blocks, const HashList &hashes) override {
        HashPace pace(hashes, std::min(hashes.size(), hashes.made() + blocks.size() / 3), blocks.size());
        for (size_t at = 0; at < blocks.size(); ++at) { // to fetch for the first ones would wait before hashing begins
            fetch_facts(blocks, at + 2 * kAhead);
            if (at + kAhead < blocks.size()) blocks_.prefetch(pool_.facts(blocks[at + kAhead]).tag);
            pace.step();
            HashIndex::remove(blocks[at]);
            pool_.unpublish(blocks[at]);
        }
    }

    void clear() override {
        blocks_.clear();
        orphans.clear();
    }

    const IdSet &ids() const { return blocks_; }

private:
    /// What publishing writes.
    void fetch(int32_t block) const {
        __builtin_prefetch(&pool_.facts(block), 1);
        fetch_name(pool_.block_hash[block]);
        fetch_name(parents[block]);
    }
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

    Blocks find(const Chain &chain) const override {
        Blocks found;
        int32_t node = top(chain.anchor, chain.parent);
        uint64_t path = path_of(node);
        for (size_t at = 0; at < chain.count; ++at) {
            chain.reach(at + 1);
            path = down(path, chain[at]);
            node = child(node, path, chain[at]);
            if (node == 0 || nodes[node].block == 0 || !same(node, chain.tokens + at * width())) break;
            found.push_back(nodes[node].block);
        }
        return found;
    }

    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) override {
        int32_t up = top(chain.anchor, chain.parent), parent = chain.parent;
        paths_.resize(chain.count);
        holders.reserve(chain.count);
        uint64_t path = path_of(up);
        chain.reach(chain.count);
        size_t known = 0; // of the paths
        bool fresh = false; // nothing is below a node that is new
        for (size_t at = 0; at < chain.count; ++at) { // the next misses beside this one's work
            for (const size_t last = std::min(chain.count, at + kAhead); known < last; ++known) {
                ids_.prefetch(paths_[known] = path = down(path, chain[known]));
                fetch_fresh(blocks[known], known - at);
            }
            const BlockHash &wanted = chain[at];
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
            chain.reach(at + 1);
            path = down(path, chain[at]);
            node = child(node, path, chain[at]);
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

    void remove(const Blocks &blocks, const HashList &) override {
        for (size_t at = 0; at < 2 * kAhead; ++at) fetch_facts(blocks, at);
        for (size_t at = 0; at < std::min(kAhead, blocks.size()); ++at) fetch(blocks[at]);
        for (size_t at = 0; at < blocks.size(); ++at) {
            fetch_facts(blocks, at + 2 * kAhead);
            if (at + kAhead < blocks.size()) fetch(blocks[at + kAhead]);
            TrieIndex::remove(blocks[at]);
            pool_.unpublish(blocks[at]);
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
    /// What removing reads.
    void fetch(int32_t block) const {
        __builtin_prefetch(&nodes[node_of(block)], 1);
        ids_.prefetch(pool_.facts(block).tag);
    }
    /// What publishing writes: of the block, and of the node that is new `ahead` nodes from now.
    void fetch_fresh(int32_t block, size_t ahead) const {
        __builtin_prefetch(&pool_.facts(block), 1);
        fetch_name(pool_.block_hash[block]);
        if (ahead >= unused_.size()) return;
        const int32_t node = unused_[unused_.size() - 1 - ahead];
        __builtin_prefetch(&nodes[node], 1);
        __builtin_prefetch(tokens_of(node), 1);
    }
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
    std::vector<int32_t> data_;
    std::vector<int32_t> unused_;
    std::vector<uint64_t> paths_; // of the contents that are being published
};

} // namespace native
