// The request model of a cache-only replay: framework_cache_only.reference, step by step, over any order of eviction in C++.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "policies.hpp"

namespace native {

namespace nb = nanobind;

template <class T> using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// framework.interfaces.allocator.ReferencePaths. R requests, E references, N nodes.
struct Paths {
    const int32_t *nodes;   // (E,)
    const int64_t *starts;  // (R + 1,)
    const int32_t *parents; // (N,)
    const int32_t *next;    // (E,), null unless the policy needs the future
    size_t num_requests, num_nodes, longest;
};

struct Switches {
    int64_t num_blocks;
    bool leaf_first, bypass;
};

struct Counts {
    std::vector<int32_t> hits; // (R,)
    int64_t admitted = 0, evictions = 0;
};

template <class Policy> class Replay {
public:
    Replay(const Paths &paths, Switches switches, Residents &residents, Policy policy)
        : paths_(paths), to_(switches), residents_(residents), policy_(std::move(policy)), block_of_(paths.num_nodes),
          children_(to_.leaf_first ? paths.num_nodes + 1 : 0), aside_(to_.leaf_first ? residents.rows() : 0) {
        for (size_t block = residents.rows(); --block > 0;) free_.push_back(static_cast<int32_t>(block));
        blocks_.reserve(paths.longest);
    }

    Counts run() {
        counts_.hits.reserve(paths_.num_requests);
        for (size_t request = 0; request < paths_.num_requests; ++request) {
            if (request % 16384 == 16383) interruptible();
            const int32_t *path = paths_.nodes + paths_.starts[request];
            const auto length = static_cast<size_t>(paths_.starts[request + 1] - paths_.starts[request]);
            now_ = static_cast<uint32_t>(request) + 1;
            const size_t found = look_up(path, length);
            counts_.hits.push_back(static_cast<int32_t>(hits_));
            if (found > 0) touch();
            if (found < length) admit(path, length, found);
            if (paths_.next != nullptr) foresee(paths_.next + paths_.starts[request], length);
            for (size_t depth = length; depth-- > 0;)
                if (blocks_[depth] != 0) policy_.release(blocks_[depth]);
            if (to_.bypass) evict(resident_ - to_.num_blocks);
        }
        return std::move(counts_);
    }

private:
    /// Fill `blocks_` with the path's blocks, 0 for those missing, and `hits_`; how many are resident.
    size_t look_up(const int32_t *path, size_t length) {
        blocks_.resize(length);
        size_t found = 0;
        hits_ = length;
        for (size_t depth = 0; depth < length; ++depth) {
            const int32_t block = block_of_[path[depth]];
            blocks_[depth] = block;
            found += block != 0;
            if (block == 0 && hits_ == length) hits_ = depth;
        }
        return found;
    }

    void touch() {
        for (size_t depth = blocks_.size(); depth-- > 0;) {
            const int32_t block = blocks_[depth];
            if (block == 0) continue;
            if (to_.leaf_first && std::exchange(aside_[block], 0) != 0) continue; // not a candidate: nothing to pin
            policy_.pin(block);
        }
        if constexpr (Policy::kReads) {
            for (const int32_t block : blocks_) {
                residents_.last[block] = now_; // the null block's facts are nobody's
                ++residents_.hits[block];
            }
        }
    }

    void admit(const int32_t *path, size_t length, size_t found) {
        auto room = static_cast<int64_t>(length - found);
        if (!to_.bypass) {
            room = std::min(room, to_.num_blocks - static_cast<int64_t>(found));
            evict(resident_ + room - to_.num_blocks);
        }
        if (room > static_cast<int64_t>(free_.size())) throw std::logic_error("a path names a node twice");
        resident_ += room;
        counts_.admitted += room;
        for (size_t depth = 0; room > 0; ++depth) {
            if (blocks_[depth] != 0) continue;
            --room;
            const int32_t block = free_.back(), node = path[depth];
            free_.pop_back();
            block_of_[node] = blocks_[depth] = block;
            residents_.node_of[block] = node;
            residents_.admitted[block] = now_;
            if constexpr (Policy::kReads) {
                residents_.depth[block] = static_cast<uint32_t>(depth);
                residents_.last[block] = now_;
                residents_.hits[block] = 0;
            }
            if (to_.leaf_first) ++*children_of(paths_.parents[node]);
        }
    }

    void foresee(const int32_t *next, size_t length) {
        for (size_t depth = 0; depth < length; ++depth)
            residents_.next_use[blocks_[depth]] = static_cast<size_t>(next[depth]) >= paths_.num_requests
                                                  ? Residents::kNever
                                                  : static_cast<uint32_t>(next[depth]) + 1;
    }

    void evict(int64_t needed) {
        for (; needed > 0; --needed) {
            const int32_t block = to_.leaf_first ? leaf_victim() : policy_.victim();
            if (block == 0) throw std::logic_error("the replay core has lost its candidates");
            policy_.evicted(block);
            const int32_t node = std::exchange(residents_.node_of[block], -1);
            block_of_[node] = 0;
            free_.push_back(block);
            if (to_.leaf_first) orphan(paths_.parents[node]);
            --resident_;
            if (to_.bypass && residents_.admitted[block] == now_) { // declined
                --counts_.admitted;
            } else {
                ++counts_.evictions;
            }
        }
    }

    /// The policy's first choice without a resident child; those before it are set aside until their last child goes.
    int32_t leaf_victim() {
        for (;;) {
            const int32_t block = policy_.victim();
            if (block == 0 || *children_of(residents_.node_of[block]) == 0) return block;
            aside_[block] = 1;
            policy_.pin(block);
        }
    }

    void orphan(int32_t parent) {
        if (--*children_of(parent) != 0 || parent < 0) return;
        const int32_t block = block_of_[parent];
        if (block != 0 && std::exchange(aside_[block], 0) != 0) policy_.release(block);
    }

    /// The entry past the last node counts the roots.
    int32_t *children_of(int32_t node) { return &children_[node < 0 ? paths_.num_nodes : static_cast<size_t>(node)]; }

    static void interruptible() {
        nb::gil_scoped_acquire python;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }

    const Paths &paths_;
    const Switches to_;
    Residents &residents_;
    Policy policy_;
    std::vector<int32_t> block_of_, children_;
    std::vector<uint8_t> aside_;
    std::vector<int32_t> free_, blocks_;
    Counts counts_;
    int64_t resident_ = 0;
    size_t hits_ = 0;
    uint32_t now_ = 0;
};

/// Call `use` with the order of this name. `aged`: of lfu.
template <class Use> auto with_order(const std::string &name, bool aged, const Residents &of, Use use) {
    if (name == "lru") return use(LruOrder(of));
    if (name == "fifo") return use(Scored<FifoScore>(of));
    if (name == "lfu") return use(Scored<LfuScore>(of, LfuScore{aged}));
    if (name == "length_aware") return use(Scored<LengthAwareScore>(of));
    if (name == "mru") return use(Scored<MruScore>(of));
    if (name == "belady") return use(Scored<BeladyScore>(of));
    if (name == "optimum") return use(Scored<OptimumScore>(of));
    throw nb::value_error(("no policy " + name + " in the replay core").c_str());
}

/// Refuse what would be read out of bounds.
inline void verify(const Array<int32_t> &nodes, const Array<int64_t> &starts, const Array<int32_t> &parents, size_t next) {
    const auto size = static_cast<int64_t>(nodes.size()), count = static_cast<int64_t>(parents.size());
    bool sound = starts.size() > 0 && starts.size() < (size_t{1} << 31) && starts.data()[0] == 0 &&
                 starts.data()[starts.size() - 1] == size && (next == 0 || next == nodes.size());
    for (size_t at = 1; sound && at < starts.size(); ++at) sound = starts.data()[at - 1] <= starts.data()[at];
    uint32_t highest = 0;
    for (int64_t at = 0; at < size; ++at) highest = std::max(highest, static_cast<uint32_t>(nodes.data()[at]));
    int32_t up = -1, low = 0;
    for (int64_t at = 0; at < count; ++at) {
        up = std::max(up, parents.data()[at]);
        low = std::min(low, parents.data()[at]);
    }
    if (!sound || (size > 0 && highest >= static_cast<uint64_t>(count)) || up >= count || low < -1)
        throw nb::value_error("paths: nodes, starts and parents do not fit together");
}

/// Of arrays that were verified. `next`: (E,) or null.
inline Paths paths_of(const Array<int32_t> &nodes, const Array<int64_t> &starts, const Array<int32_t> &parents, const int32_t *next) {
    const size_t num_requests = starts.size() - 1;
    int64_t longest = 0;
    for (size_t at = 0; at < num_requests; ++at)
        longest = std::max(longest, starts.data()[at + 1] - starts.data()[at]);
    return {nodes.data(), starts.data(), parents.data(), next, num_requests, parents.size(), static_cast<size_t>(longest)};
}

} // namespace native
