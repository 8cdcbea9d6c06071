// Moves of blocks between free, cached and in use: framework.paged.cache in C++.
#pragma once

#include <functional>
#include <set>
#include <utility>

#include "index.hpp"
#include "policy.hpp"

namespace native {

/// Moves blocks between free, cached and in use, and keeps pool, index and policy in step. Plugins are called first;
/// those before are undone when one of them raises, so that pool and index are as they were.
class Cache {
public:
    using Listener = std::function<void(const char *kind, const Blocks &blocks)>; // published, so that each has a hash

    Cache(Pool &pool, Index &index, Policy &policy, bool leaf_only)
        : pool_(pool), index_(index), policy_(policy), leaf_only_(leaf_only) {}

    int64_t evictions = 0;
    std::set<int32_t> detached; // published while forks shared them, or below unreferenced ones; in use
    Listener listener;
    nb::object now = nb::float_(0.0);

    /// Blocks that `take` can hand out beside these hits.
    int64_t available(const Blocks &hits) const {
        int64_t idle = 0;
        for (int32_t block : hits) idle += pool_.ref[block] == 0;
        return pool_.num_blocks - pool_.used - idle;
    }

    /// Share `hits` (shallowest first), then append `count` other blocks to `out`: free ones, then victims. `hashes`: of
    /// what is published in them, made in part.
    void take(int64_t count, const Blocks &hits, int64_t priority, Blocks &out, const HashList &hashes = {}) {
        const auto spare = std::min<int64_t>(count, static_cast<int64_t>(pool_.free.size()));
        Shared shared;
        Blocks victims;
        if (!hits.empty()) shared = share(hits, priority);
        try {
            if (!hits.empty()) {
                if (!shared.pinned.empty()) policy_.pin(shared.pinned, now);
                if (policy_.watches()) policy_.hit(Blocks(hits.rbegin(), hits.rend()), now);
            }
            if (count > spare) victims = gather(count - spare);
        } catch (nb::python_error &) {
            if (!hits.empty()) unshare(hits, shared);
            throw;
        }
        const size_t before = out.size();
        out.insert(out.end(), pool_.free.rbegin(), pool_.free.rbegin() + spare);
        pool_.free.resize(pool_.free.size() - spare);
        if (!victims.empty()) {
            evict(victims, hashes);
            out.insert(out.end(), victims.begin(), victims.end());
        }
        for (size_t at = before; at < out.size(); ++at) pool_.ref[out[at]] = 1;
        pool_.used += static_cast<int32_t>(count);
    }

    /// Give back one reference to each, deepest first. Who has none left is cached or free, also when the policy fails.
    void unref(const Blocks &blocks) {
        Blocks released;
        released.reserve(blocks.size());
        for (int32_t block : blocks) {
            pool_.last_access[block] = pool_.access;
            if (--pool_.ref[block] != 0) continue;
            --pool_.used;
            if (pool_.published(block)) {
                released.push_back(block);
            } else {
                pool_.free.push_back(block);
            }
        }
        if (!released.empty() && policy_.declines()) released = kept(released);
        if (!released.empty()) make_candidates(std::move(released));
    }

    /// Put `fresh` blocks, just taken, at these places of a table; the blocks there lose one reference.
    void replace(Blocks &table, const Blocks &places, const Blocks &fresh) {
        Blocks leaving, offered;
        for (size_t at = places.size(); at-- > 0;)
            if (pool_.ref[table[places[at]]] == 1) leaving.push_back(table[places[at]]);
        const std::set<int32_t> before = detached;
        const Blocks rejoined = rejoin(leaving);
        for (int32_t block : leaving)
            if (!leaf_only_ || is_leaf(block)) offered.push_back(block);
        for (int32_t block : leaving) pool_.last_access[block] = pool_.access;
        for (int32_t block : offered) pool_.candidate[block] = 1;
        try {
            tell(rejoined, offered);
        } catch (nb::python_error &) {
            for (int32_t block : offered) pool_.candidate[block] = 0;
            for (int32_t block : rejoined) pool_.candidate[block] = 1;
            detached = before;
            unref(fresh);
            throw;
        }
        for (size_t at = 0; at < places.size(); ++at) {
            --pool_.ref[table[places[at]]];
            table[places[at]] = fresh[at];
        }
        pool_.used -= static_cast<int32_t>(leaving.size());
    }

    struct Published {
        size_t count; // contents that can be found now
        size_t start; // first table index that was swapped
    };

    /// Make the contents of table[first : first + chain.count] findable, swapping blocks whose content another holds.
    /// Stops before a content whose hash is also another's.
    Published publish(const Chain &chain, Blocks &table, size_t first, int64_t priority, int32_t tenant) {
        const int32_t *blocks = table.data() + first;
        Blocks holders, places;
        holders.reserve(chain.count);
        places.reserve(chain.count);
        index_.insert(chain, blocks, holders, places);
        Blocks fresh, pinned;
        fresh.reserve(places.size());
        for (int32_t at : places) {
            pool_.describe(blocks[at], static_cast<int32_t>(first) + at, priority, tenant);
            fresh.push_back(blocks[at]);
        }
        std::vector<size_t> swaps;
        if (fresh.size() < holders.size())
            for (size_t at = 0; at < holders.size(); ++at)
                if (holders[at] != blocks[at]) swaps.push_back(at);
        for (size_t at = swaps.size(); at-- > 0;)
            if (pool_.candidate[holders[swaps[at]]]) pinned.push_back(holders[swaps[at]]);
        try {
            if (!pinned.empty()) policy_.pin(pinned, now);
            if (!fresh.empty() && policy_.watches()) policy_.admit(Blocks(fresh.rbegin(), fresh.rend()), now);
        } catch (nb::python_error &) {
            undo(fresh, pinned);
            throw;
        }
        if (listener && !fresh.empty()) listener("admit", fresh);
        for (size_t at : swaps) swap(table[first + at], holders[at], priority);
        return {holders.size(), swaps.empty() ? table.size() : first + swaps[0]};
    }

    /// This block, which is in use, does without those above it, which are about to be unreferenced.
    void detach(int32_t block) {
        if (pool_.published(block)) detached.insert(block);
    }

    /// These were just published; those that other tables name too may have another block above them there.
    void note_shared(const int32_t *blocks, size_t count) {
        for (size_t at = 0; at < count; ++at)
            if (pool_.ref[blocks[at]] > 1) detached.insert(blocks[at]);
    }

    /// Let lookups find these, deepest first, no longer, for another reason than that room was needed.
    void unpublish(const Blocks &blocks) {
        std::exception_ptr failure;
        for (int32_t block : blocks) {
            pool_.candidate[block] = 0;
            try {
                policy_.evicted(block, now);
            } catch (nb::python_error &) {
                if (!failure) failure = std::current_exception();
            }
        }
        conceal(blocks);
        if (failure) std::rethrow_exception(failure);
    }

    /// Unpublish everything: cached blocks become free, those in use lose their hash and stay.
    void reset() {
        Blocks published, cached;
        for (int32_t block = 1; block <= pool_.num_blocks; ++block)
            if (pool_.published(block)) published.push_back(block);
        std::stable_sort(published.begin(), published.end(),
                         [&](int32_t a, int32_t b) { return pool_.depth[a] > pool_.depth[b]; });
        for (int32_t block : published)
            if (pool_.ref[block] == 0) cached.push_back(block);
        std::exception_ptr failure;
        try {
            unpublish(published);
        } catch (nb::python_error &) {
            failure = std::current_exception();
        }
        index_.clear();
        pool_.free.insert(pool_.free.end(), cached.begin(), cached.end());
        if (failure) std::rethrow_exception(failure);
    }

private:
    struct Shared {
        Blocks pinned;
        std::vector<int64_t> accesses;
        std::vector<std::pair<int32_t, int64_t>> priorities;
    };

    /// Count a reference and the hit's facts.
    Shared share(const Blocks &hits, int64_t priority) {
        Shared shared;
        shared.accesses.reserve(hits.size());
        for (int32_t block : hits) {
            if (pool_.ref[block]++ == 0) {
                ++pool_.used;
                if (pool_.candidate[block]) {
                    pool_.candidate[block] = 0;
                    shared.pinned.push_back(block);
                }
            }
            ++pool_.hits[block];
            shared.accesses.push_back(pool_.last_access[block]);
            pool_.last_access[block] = pool_.access;
            if (pool_.priority[block] < priority) {
                shared.priorities.emplace_back(block, pool_.priority[block]);
                pool_.priority[block] = priority;
            }
        }
        std::reverse(shared.pinned.begin(), shared.pinned.end());
        return shared;
    }

    void unshare(const Blocks &hits, const Shared &shared) {
        for (size_t at = 0; at < hits.size(); ++at) {
            const int32_t block = hits[at];
            if (--pool_.ref[block] == 0) --pool_.used;
            --pool_.hits[block];
            pool_.last_access[block] = shared.accesses[at];
        }
        for (const auto &[block, priority] : shared.priorities) pool_.priority[block] = priority;
        for (int32_t block : shared.pinned) pool_.candidate[block] = 1;
        if (!shared.pinned.empty()) quietly([&] { policy_.release(shared.pinned, now); });
    }

    /// Ask for victims changing nothing of the pool but `candidate`, which marks those chosen. Under `leaf_only` a
    /// victim's parent is offered as soon as it has no other resident child.
    Blocks gather(int64_t count) {
        Blocks victims, late;
        victims.reserve(static_cast<size_t>(count));
        if (!leaf_only_) {
            policy_.victims(static_cast<size_t>(count), victims); // candidates until they are unpublished
            count -= static_cast<int64_t>(victims.size());
        }
        try {
            for (; count > 0; --count) {
                const int32_t block = policy_.victim(now);
                if (block == 0) throw std::logic_error("the built-in LRU has lost its candidates");
                pool_.candidate[block] = 0;
                victims.push_back(block);
                const int32_t parent = leaf_only_ ? index_.parent(block) : 0;
                if (parent != 0) --pool_.children[parent];
                policy_.evicted(block, now);
                if (parent != 0 && pool_.ref[parent] == 0 && is_leaf(parent)) {
                    pool_.candidate[parent] = 1;
                    late.push_back(parent);
                    policy_.release({parent}, now);
                }
            }
        } catch (nb::python_error &) {
            restore(victims, late);
            throw;
        }
        if (leaf_only_) count_children(victims); // `forget` counts them down for good
        return victims;
    }

    void count_children(const Blocks &victims) {
        for (int32_t block : victims)
            if (const int32_t parent = index_.parent(block)) ++pool_.children[parent];
    }

    void restore(const Blocks &victims, const Blocks &late) {
        const auto holds = [](const Blocks &blocks, int32_t block) {
            return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
        };
        if (leaf_only_) count_children(victims);
        for (size_t at = victims.size(); at-- > 0;) {
            const int32_t block = victims[at];
            quietly([&] {
                policy_.admit({block}, now);
                if (!holds(late, block)) policy_.release({block}, now);
            });
            pool_.candidate[block] = 1;
        }
        for (int32_t block : late) {
            pool_.candidate[block] = 0;
            if (!holds(victims, block)) quietly([&] { policy_.pin({block}, now); });
        }
    }

    /// These are evicted; the policy knows already.
    void evict(const Blocks &blocks, const HashList &hashes = {}) {
        conceal(blocks, hashes);
        evictions += static_cast<int64_t>(blocks.size());
    }

    void conceal(const Blocks &blocks, const HashList &hashes = {}) {
        if (!listener && detached.empty()) {
            index_.remove(blocks, hashes);
            return;
        }
        if (listener && !blocks.empty()) listener("evict", blocks);
        for (int32_t block : blocks) {
            detached.erase(block);
            index_.remove(block);
            pool_.unpublish(block);
        }
    }

    void tell(const Blocks &pinned, const Blocks &released) {
        if (!pinned.empty()) policy_.pin(pinned, now);
        if (!released.empty()) policy_.release(released, now);
    }

    /// Whether no block published below this one, which is not in use, is cached.
    bool is_leaf(int32_t block) const {
        const auto below = [&](int32_t other) { return index_.parent(other) == block; };
        return pool_.children[block] == std::count_if(detached.begin(), detached.end(), below);
    }

    /// These are not in use any more; the candidates above those that were detached, which are none from here on.
    Blocks rejoin(const Blocks &blocks) {
        Blocks gone, above;
        if (detached.empty()) return above;
        for (int32_t block : blocks)
            if (detached.erase(block) != 0) gone.push_back(block);
        std::sort(gone.begin(), gone.end());
        for (int32_t block : leaf_only_ ? gone : Blocks()) {
            const int32_t parent = index_.parent(block);
            if (parent == 0 || !pool_.candidate[parent]) continue;
            pool_.candidate[parent] = 0;
            above.push_back(parent);
        }
        return above;
    }

    /// Those of these unreferenced blocks, deepest first, that are to be offered; what the policy declines is free.
    Blocks kept(const Blocks &blocks) {
        Blocks out;
        for (size_t at = 0; at < blocks.size(); ++at) {
            const int32_t block = blocks[at];
            try {
                if ((leaf_only_ && !is_leaf(block)) || policy_.keeps(block, now)) {
                    out.push_back(block);
                    continue;
                }
                policy_.evicted(block, now);
            } catch (nb::python_error &) {
                out.insert(out.end(), blocks.begin() + static_cast<int64_t>(at), blocks.end());
                free_refused(out);
                throw;
            }
            detached.erase(block);
            evict({block});
            pool_.free.push_back(block);
        }
        return out;
    }

    void make_candidates(Blocks blocks) {
        const Blocks rejoined = rejoin(blocks);
        if (leaf_only_) {
            const auto inner = [&](int32_t block) { return !is_leaf(block); };
            blocks.erase(std::remove_if(blocks.begin(), blocks.end(), inner), blocks.end());
        }
        for (int32_t block : blocks) pool_.candidate[block] = 1;
        try {
            tell(rejoined, blocks);
        } catch (nb::python_error &) {
            free_refused(blocks);
            throw;
        }
    }

    /// Make candidates free that no policy keeps.
    void free_refused(const Blocks &blocks) {
        for (int32_t block : blocks) pool_.candidate[block] = 0;
        Blocks above, offered;
        if (leaf_only_)
            for (int32_t block : blocks) {
                const int32_t parent = index_.parent(block);
                if (parent != 0 && std::find(above.begin(), above.end(), parent) == above.end()) above.push_back(parent);
            }
        evict(blocks);
        pool_.free.insert(pool_.free.end(), blocks.begin(), blocks.end());
        for (int32_t block : above)
            if (pool_.published(block) && pool_.ref[block] == 0 && !pool_.candidate[block] && is_leaf(block))
                offered.push_back(block);
        if (!offered.empty()) quietly([&] { make_candidates(offered); });
    }

    /// Undo a publication that the policy did not take.
    void undo(const Blocks &fresh, const Blocks &pinned) {
        for (size_t at = fresh.size(); at-- > 0;) {
            index_.remove(fresh[at]);
            pool_.unpublish(fresh[at]);
        }
        if (!pinned.empty()) quietly([&] { policy_.release(pinned, now); });
    }

    /// Let a table entry name `block`, which holds the same content, in place of its own.
    void swap(int32_t &entry, int32_t block, int64_t priority) {
        const int32_t own = entry;
        entry = block;
        if (pool_.ref[block]++ == 0) {
            ++pool_.used;
            pool_.candidate[block] = 0;
        }
        pool_.last_access[block] = pool_.access;
        pool_.priority[block] = std::max(pool_.priority[block], priority);
        if (--pool_.ref[own] == 0) {
            --pool_.used;
            pool_.free.push_back(own);
        }
    }

    /// What a plugin raises here is not the error to report: that one came before.
    template <class Call> static void quietly(Call call) {
        try {
            call();
        } catch (nb::python_error &) {
        }
    }

    Pool &pool_;
    Index &index_;
    Policy &policy_;
    bool leaf_only_;
};

} // namespace native
