// Index from content to block: framework.paged.index in C++.
#pragma once

#include <algorithm>
#include <cstdint>
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
    size_t num_made() const {
        const size_t made = hashes.made();
        return made < first ? 0 : std::min(made - first, count);
    }
    void reach(size_t at) const { hashes.reach(first + std::min(at, count)); }
};

/// A trie over contents: each node is one content below one parent. Contents that are gone stay as ghosts while they have
/// descendants.
class Index {
public:
    /// One content on one cache line; its tokens, if they are kept, lie on the next ones.
    struct alignas(64) Node {
        uint64_t path = 0; // of the hashes from the anchor down: where the node is found, without a look at those above
        int32_t above = 0, kids = 0, resident = 0, block = 0; // parent node or anchor; children; those with a block; 0: ghost
        BlockHash hash;
    };

    /// `compares_tokens`: hashes of different contents may be equal; such contents never share.
    Index(Pool &pool, bool compares_tokens) : pool_(pool), width_(compares_tokens ? static_cast<size_t>(pool.block_size) : 0) {
        nodes.reserve(pool.size());
        reset();
    }

    /// Blocks of the leading contents, up to the first that is not published.
    Blocks find(const Chain &chain) const {
        Blocks found;
        found.reserve(chain.count);
        int32_t node = top(chain.anchor, chain.parent);
        uint64_t path = path_of(node);
        for (size_t at = 0; at < chain.count; ++at) { // the next miss beside this one's work
            chain.reach(at + 2);
            path = down(path, chain[at]);
            if (at + 1 < chain.num_made()) ids_.prefetch(down(path, chain[at + 1]));
            node = child(node, path, chain[at]);
            if (node == 0 || nodes[node].block == 0 || !same(node, chain.tokens, at)) break;
            found.push_back(nodes[node].block);
        }
        return found;
    }

    /// Publish `blocks` below each other, up to the first collision; the holder of each, and the places newly published.
    void insert(const Chain &chain, const int32_t *blocks, Blocks &holders, Blocks &places) {
        int32_t up = top(chain.anchor, chain.parent), parent = chain.parent;
        uint64_t path = path_of(up), paths[kAhead]; // of the next contents, in a ring
        HashPace pace(chain.hashes, chain.first + chain.count, chain.count);
        size_t known = 0; // of the paths
        bool fresh = false; // nothing is below a node that is new
        for (size_t at = 0; at < chain.count; ++at) { // the next misses beside this one's work
            pace.step();
            for (const size_t last = std::min({pace.made() - chain.first, at + kAhead, chain.count}); known < last; ++known) {
                ids_.prefetch(paths[known % kAhead] = path = down(path, chain[known]));
                fetch_fresh(blocks[known], known - at);
            }
            int32_t node = fresh ? 0 : child(up, paths[at % kAhead], chain[at]);
            fresh = node == 0;
            if (fresh) {
                node = new_node(up, paths[at % kAhead], chain[at], chain.tokens + at * pool_.block_size);
            } else if (!same(node, chain.tokens, at)) {
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

    /// How many leading contents of the chain no block holds and `insert` would take.
    size_t count_new(const Chain &chain) const {
        int32_t node = top(chain.anchor, chain.parent);
        uint64_t path = path_of(node);
        for (size_t at = 0; at < chain.count; ++at) {
            chain.reach(at + 1);
            path = down(path, chain[at]);
            node = child(node, path, chain[at]);
            if (node == 0) break;
            if (nodes[node].block != 0 || !same(node, chain.tokens, at)) return at;
        }
        return chain.count;
    }

    /// The block above, 0 at the root or where its content is gone.
    int32_t parent(int32_t block) const {
        const int32_t up = nodes[node_of(block)].above;
        return up > 0 ? nodes[up].block : 0;
    }

    void remove(int32_t block) {
        Facts &facts = pool_.facts(block);
        int32_t node = std::exchange(facts.node, 0), up = nodes[node].above;
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

    /// Remove and unpublish each; beside it a third as many of these hashes are made.
    void remove(const Blocks &blocks, const HashList &hashes) {
        HashPace pace(hashes, std::min(hashes.size(), hashes.made() + blocks.size() / 3), blocks.size());
        for (size_t at = 0; at < blocks.size(); ++at) { // to fetch for the first ones would wait before hashing begins
            if (at + 2 * kAhead < blocks.size()) __builtin_prefetch(&pool_.facts(blocks[at + 2 * kAhead]), 1);
            if (at + kAhead < blocks.size()) {
                __builtin_prefetch(&nodes[node_of(blocks[at + kAhead])], 1);
                ids_.prefetch(pool_.facts(blocks[at + kAhead]).tag);
            }
            pace.step();
            remove(blocks[at]);
            pool_.unpublish(blocks[at]);
        }
    }

    void clear() {
        ids_.clear();
        reset();
    }

    /// Of a published block.
    const BlockHash &hash_of(int32_t block) const { return nodes[node_of(block)].hash; }
    const IdSet &ids() const { return ids_; }
    int32_t node_of(int32_t block) const { return pool_.facts(block).node; }

    int64_t collisions = 0;
    std::vector<Node> nodes;

private:
    static constexpr size_t kAhead = 8; // contents whose memory is fetched before their turn

    /// What publishing writes: of the block, and of the node that is new `ahead` nodes from now.
    void fetch_fresh(int32_t block, size_t ahead) const {
        __builtin_prefetch(&pool_.facts(block), 1);
        if (ahead >= unused_.size()) return;
        const int32_t node = unused_[unused_.size() - 1 - ahead];
        __builtin_prefetch(&nodes[node], 1);
        __builtin_prefetch(tokens_of(node), 1);
    }
    const int32_t *tokens_of(int32_t node) const { return tokens_.data() + static_cast<size_t>(node) * width_; }
    int32_t top(int32_t anchor, int32_t block) const { return block != 0 ? node_of(block) : anchor; }
    uint64_t path_of(int32_t node) const { return node > 0 ? nodes[node].path : static_cast<uint64_t>(node); }
    static uint64_t down(uint64_t path, const BlockHash &wanted) {
        path = (path ^ wanted.mixed()) * 0x9E3779B97F4A7C15ull;
        return path ^ path >> 32;
    }
    int32_t child(int32_t up, uint64_t path, const BlockHash &wanted) const {
        return ids_.find(path, [&](int32_t node) { return nodes[node].above == up && nodes[node].hash == wanted; });
    }
    /// Whether the node's tokens are those of the chain's content `at`.
    bool same(int32_t node, const int32_t *tokens, size_t at) const {
        return std::memcmp(tokens_of(node), tokens + at * width_, 4 * width_) == 0;
    }
    void settle(int32_t node, int32_t up, int32_t parent, int32_t block) {
        Facts &facts = pool_.facts(block);
        nodes[node].block = block;
        facts.node = node;
        facts.tag = static_cast<uint32_t>(nodes[node].path);
        facts.children = nodes[node].resident;
        facts.published = 1;
        if (up <= 0) return;
        ++nodes[up].resident;
        if (parent != 0) ++pool_.children[parent];
    }
    int32_t new_node(int32_t up, uint64_t path, const BlockHash &wanted, const int32_t *tokens) {
        int32_t node;
        if (!unused_.empty()) {
            node = unused_.back();
            unused_.pop_back();
        } else {
            node = static_cast<int32_t>(nodes.size());
            nodes.emplace_back();
            tokens_.resize(tokens_.size() + width_);
        }
        Node &made = nodes[node];
        made.path = path;
        made.above = up;
        made.hash = wanted;
        made.kids = made.resident = made.block = 0;
        std::copy(tokens, tokens + width_, tokens_.begin() + static_cast<size_t>(node) * width_);
        ids_.add(path, node);
        if (up > 0) ++nodes[up].kids;
        return node;
    }
    void reset() {
        nodes.assign(1, Node());
        tokens_.assign(width_, 0);
        unused_.clear();
        for (size_t block = 0; block < pool_.size(); ++block) pool_.facts(static_cast<int32_t>(block)).node = 0;
    }

    Pool &pool_;
    size_t width_; // tokens kept of a node
    IdSet ids_;
    std::vector<int32_t> tokens_, unused_;
};

} // namespace native
