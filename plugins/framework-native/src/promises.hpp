// Published blocks whose KV the step being scheduled has yet to compute. framework.paged.table, in C++.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "pool.hpp"

namespace native {

class Promises {
public:
    std::unordered_map<int32_t, int64_t> owner; // of each promised block, the request that computes it
    std::vector<int64_t> broken;                // share blocks of a withdrawn promise; in the order they were found

    bool any() const { return !owner.empty() || !broken.empty(); }
    bool is_broken(int64_t request) const { return holds(broken, request); }
    bool is_of(int32_t block, int64_t request) const {
        const auto found = owner.find(block);
        return found != owner.end() && found->second == request;
    }

    void make(int64_t request, const int32_t *blocks, size_t count) {
        Made &made = made_[request];
        made.blocks.insert(made.blocks.end(), blocks, blocks + count);
        made.left += count;
        if (made.turn == 0) made.turn = ++turns_;
        for (size_t at = 0; at < count; ++at) owner[blocks[at]] = request;
    }

    /// `request`, which has a new table, shares these blocks.
    void rely(int64_t request, const Blocks &blocks) {
        for (int32_t block : blocks)
            if (const auto found = owner.find(block); found != owner.end()) {
                std::vector<int64_t> &readers = made_[found->second].readers;
                if (!holds(readers, request)) readers.push_back(request);
            }
    }

    /// The KV of these blocks was computed; `kept` is called with the owner of each, and how many it promises still.
    template <class Kept> void keep(const int32_t *blocks, size_t count, Kept kept) {
        for (size_t at = 0; at < count && !owner.empty(); ++at) {
            const auto found = owner.find(blocks[at]);
            if (found == owner.end()) continue;
            const auto made = made_.find(found->second);
            kept(found->second, --made->second.left);
            owner.erase(found);
            if (made->second.left == 0) made_.erase(made);
        }
    }

    /// Forget what `request` promised, and what was promised in reliance on it. The blocks, ancestors first.
    Blocks withdraw(int64_t request) {
        Blocks blocks;
        std::vector<int64_t> left{request};
        for (size_t at = 0; at < left.size(); ++at) {
            const auto found = made_.find(left[at]);
            if (found == made_.end()) continue;
            for (int32_t block : found->second.blocks)
                if (is_of(block, left[at])) {
                    blocks.push_back(block);
                    owner.erase(block);
                }
            const std::vector<int64_t> readers = std::move(found->second.readers);
            made_.erase(found);
            for (int64_t reader : readers)
                if (!is_broken(reader)) {
                    left.push_back(reader);
                    broken.push_back(reader);
                }
        }
        return blocks;
    }

    /// Forget all promises: everything is being unpublished.
    void withdraw_every() {
        while (!made_.empty()) withdraw(std::min_element(made_.begin(), made_.end(), [](auto &a, auto &b) {
                                            return a.second.turn < b.second.turn;
                                        })->first);
    }

    /// `request` relies on nobody any more.
    void leave(int64_t request) {
        drop(broken, request);
        for (auto &[id, made] : made_) drop(made.readers, request);
    }

    struct Made {
        Blocks blocks;
        size_t left = 0; // of these, still promised
        int64_t turn = 0; // counts first promises
        std::vector<int64_t> readers;
    };
    const std::unordered_map<int64_t, Made> &made() const { return made_; }

private:
    static bool holds(const std::vector<int64_t> &list, int64_t id) {
        return std::find(list.begin(), list.end(), id) != list.end();
    }
    static void drop(std::vector<int64_t> &list, int64_t id) { list.erase(std::remove(list.begin(), list.end(), id), list.end()); }

    std::unordered_map<int64_t, Made> made_;
    int64_t turns_ = 0;
};

} // namespace native
