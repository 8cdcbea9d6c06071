// Cache-only replay of a pool with tiers below it: framework.replay.tiers and framework.tiers.movement in C++.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "tier.hpp"

namespace native {

namespace {

/// A tiering rule: whether a block goes down when its tier evicts it, or when it is written or used for the `uses`-th
/// time or later (0: never then); exclusive: whether what the pool gets back leaves the tiers.
struct Rule {
    bool on_eviction, exclusive;
    int64_t uses;
};

/// What moves between the tiers when a request uses its blocks. Tiers are counted from 0, the one below the pool.
class Tiers {
public:
    int64_t hit_tokens = 0;    // of the pool
    std::vector<int32_t> hits; // (R, tiers + 1), the pool first

    Tiers(const Paths &paths, const int64_t *node_tokens, Rule rule, const std::vector<Named> &policies,
          const std::vector<int64_t> &sizes)
        : hits(paths.num_requests * (sizes.size() + 1)), paths_(paths), node_tokens_(node_tokens), rule_(rule),
          facts_(paths.num_nodes, paths.next != nullptr) {
        for (size_t at = 0; at < sizes.size(); ++at) tiers_.emplace_back(sizes[at], policies[at], facts_);
    }

    const std::deque<Tier> &tiers() const { return tiers_; }

    /// Count the request's hits, the first `in_pool` blocks of which lie in the pool, and mark what it uses; how many.
    size_t begin(uint32_t now, const int32_t *path, const std::vector<int32_t> &blocks, size_t in_pool) {
        int32_t *row = &hits[(now - 1) * (tiers_.size() + 1)];
        const size_t found = find(path, blocks, in_pool);
        note_use(now, path, blocks.size());
        int64_t above = 0;
        for (size_t depth = 0; depth < found; ++depth) {
            const int64_t tokens = node_tokens_[path[depth]] - above;
            above += tokens;
            ++row[places_[depth]];
            if (places_[depth] == 0) {
                hit_tokens += tokens;
            } else {
                tiers_[places_[depth] - 1].hit(path[depth], tokens);
            }
        }
        for (Tier &tier : tiers_) {
            nodes_.clear();
            for (size_t depth = blocks.size(); depth-- > 0;)
                if (tier.holds(path[depth])) nodes_.push_back(path[depth]);
            if (!rule_.exclusive) {
                tier.use(nodes_);
            } else {
                for (const int32_t node : nodes_) tier.drop(node);
            }
        }
        return found;
    }

    /// The pool gave up this node.
    void evicted(int32_t node) {
        if (rule_.on_eviction) store(0, node, false);
    }

    /// The request's nodes, those with a block, are in the pool: each may go down each edge.
    void settle(const int32_t *path, const std::vector<int32_t> &blocks) {
        if (rule_.uses == 0) return;
        for (size_t depth = 0; depth < blocks.size(); ++depth) {
            const int32_t node = path[depth];
            if (blocks[depth] == 0 || facts_.uses[node] < rule_.uses) continue;
            store(0, node, true);
            for (size_t below = 1; below < tiers_.size(); ++below)
                if (tiers_[below - 1].holds(node)) store(below, node, true);
        }
    }

    void end() {
        for (Tier &tier : tiers_) tier.unpin();
    }

private:
    /// Fill `places_` with where each block of the longest prefix lies, 0 for the pool; its length.
    size_t find(const int32_t *path, const std::vector<int32_t> &blocks, size_t in_pool) {
        places_.assign(in_pool, 0);
        for (size_t depth = in_pool; depth < blocks.size(); ++depth) {
            size_t place = 0;
            if (blocks[depth] == 0) {
                while (place < tiers_.size() && !tiers_[place].holds(path[depth])) ++place;
                if (place++ == tiers_.size()) break;
            }
            places_.push_back(place);
        }
        return places_.size();
    }

    void note_use(uint32_t now, const int32_t *path, size_t length) {
        const int32_t *next = paths_.next == nullptr ? nullptr : paths_.next + paths_.starts[now - 1];
        for (size_t depth = 0; depth < length; ++depth) {
            const int32_t node = path[depth];
            facts_.depth[node] = static_cast<uint32_t>(depth);
            facts_.last_use[node] = now;
            ++facts_.uses[node];
            if (next == nullptr) continue;
            const bool never = static_cast<size_t>(next[depth]) >= paths_.num_requests;
            facts_.next_use[node] = never ? Residents::kNever : static_cast<uint32_t>(next[depth]) + 1;
        }
    }

    /// Store in tier `at` a node that the rule sends there from the one above, unless it is there or has no room.
    void store(size_t at, int32_t node, bool pinned) {
        Tier &tier = tiers_[at];
        if (tier.holds(node) || !make_room(at)) return;
        if (at > 0) ++tiers_[at - 1].counts.read;
        tier.insert(node, pinned);
        if (at + 1 < tiers_.size() && rule_.uses > 0 && facts_.uses[node] >= rule_.uses) store(at + 1, node, pinned);
    }

    bool make_room(size_t at) {
        Tier &tier = tiers_[at];
        while (tier.full()) {
            const int32_t victim = tier.evict();
            if (victim < 0) {
                ++tier.counts.refused;
                return false;
            }
            if (rule_.on_eviction && at + 1 < tiers_.size()) store(at + 1, victim, false);
        }
        return true;
    }

    const Paths &paths_;
    const int64_t *node_tokens_; // (N,)
    const Rule rule_;
    NodeFacts facts_;
    std::deque<Tier> tiers_; // they stay where they are
    std::vector<size_t> places_;
    std::vector<int32_t> nodes_;
};

/// The tiers as the request model sees them.
struct Below {
    static constexpr bool kAny = true;
    Tiers *tiers = nullptr;
    size_t begin(uint32_t now, const int32_t *path, const std::vector<int32_t> &blocks, size_t in_pool) {
        return tiers->begin(now, path, blocks, in_pool);
    }
    void evicted(int32_t node) { tiers->evicted(node); }
    void settle(const int32_t *path, const std::vector<int32_t> &blocks) { tiers->settle(path, blocks); }
    void end() { tiers->end(); }
};

std::vector<Named> named(const std::vector<std::string> &names, const std::vector<std::vector<double>> &parameters) {
    std::vector<Named> found;
    for (size_t at = 0; at < names.size(); ++at) found.push_back({names[at], parameters.at(at)});
    return found;
}

nb::tuple replay_tiers(const std::vector<std::string> &names, const std::vector<std::vector<double>> &parameters,
                       std::vector<int64_t> sizes, bool on_eviction, int64_t uses, bool exclusive,
                       const Array<int32_t> &nodes, const Array<int64_t> &starts, const Array<int32_t> &parents,
                       const Array<int64_t> &node_tokens, std::optional<Array<int32_t>> next, bool leaf_first) {
    verify(nodes, starts, parents, next ? next->size() : 0);
    if (names.empty() || names.size() != sizes.size() || names.size() != parameters.size() ||
        node_tokens.size() != parents.size() || *std::min_element(sizes.begin(), sizes.end()) < 1)
        throw nb::value_error("policies, parameters, num_blocks and node_tokens do not fit together");
    const Paths paths = paths_of(nodes, starts, parents, next ? next->data() : nullptr);
    std::vector<Named> policies = named(names, parameters);
    const Named pool = policies.front();
    const Switches to{sizes.front(), leaf_first, false};
    policies.erase(policies.begin());
    sizes.erase(sizes.begin());
    std::optional<Tiers> below;
    Counts counts;
    {
        nb::gil_scoped_release others;
        below.emplace(paths, node_tokens.data(), Rule{on_eviction, exclusive, uses}, policies, sizes);
        Residents residents(std::min(static_cast<size_t>(to.num_blocks), paths.num_nodes) + 1, to.num_blocks, paths.num_nodes);
        counts = with_order(pool.name, pool.parameters, residents, [&](auto order) {
            return Replay<decltype(order), Below>(paths, to, residents, std::move(order), Below{&*below}).run();
        });
    }
    nb::list tiers;
    for (const Tier &tier : below->tiers()) {
        const TierCounts &c = tier.counts;
        tiers.append(nb::make_tuple(c.hits, c.hit_tokens, c.stored, c.read, c.evicted, c.dropped, c.refused, c.unread, c.peak));
    }
    auto *hits = new std::vector<int32_t>(std::move(below->hits));
    nb::capsule owner(hits, [](void *held) noexcept { delete static_cast<std::vector<int32_t> *>(held); });
    return nb::make_tuple(
        nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>(hits->data(), {paths.num_requests, sizes.size() + 1}, owner),
        below->hit_tokens, counts.admitted, counts.evictions, tiers);
}

} // namespace

void bind_tiered_replay(nb::module_ &module) {
    module.def("replay_tiers", &replay_tiers, nb::arg("policies"), nb::arg("parameters"), nb::arg("num_blocks"), nb::kw_only(),
               nb::arg("on_eviction"), nb::arg("uses"), nb::arg("exclusive"), nb::arg("nodes"), nb::arg("starts"),
               nb::arg("parents"), nb::arg("node_tokens"), nb::arg("next_requests").none(), nb::arg("leaf_first"),
               "Hits by request and tier (R, T), the pool's hit tokens, its admissions and evictions, counts of each lower "
               "tier; see framework_native.tiers.");
}

} // namespace native
