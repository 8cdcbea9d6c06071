// Eviction orders of the core: the built-in LRU in C++, or any Python EvictionPolicy.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <deque>
#include <tuple>

#include "pool.hpp"

namespace native {

namespace nb = nanobind;

/// The callbacks of framework.interfaces.eviction.EvictionPolicy. Lists are deepest first and never empty.
class Policy {
public:
    virtual ~Policy() = default;
    virtual void admit(const Blocks &, nb::handle) {}
    virtual void hit(const Blocks &, nb::handle) {}
    /// Whether the policy may decline content, and whether it keeps this block.
    virtual bool declines() const { return false; }
    virtual bool keeps(int32_t, nb::handle) { return true; }
    virtual void pin(const Blocks &blocks, nb::handle now) = 0;
    virtual void release(const Blocks &blocks, nb::handle now) = 0;
    virtual int32_t victim(nb::handle now) = 0;
    virtual void evicted(int32_t block, nb::handle now) = 0;
    /// Whether `admit` and `hit` do anything.
    virtual bool watches() const { return true; }
    /// Append up to `count` victims and forget them, as `victim` and `evicted` would one by one.
    virtual void victims(size_t, Blocks &) {}
};

/// framework_builtin.eviction.lru.Lru: smallest (last access, deepest first) goes first. See there for why the queue
/// needs no sorting.
class Lru final : public Policy {
public:
    explicit Lru(const Pool &pool) : pool_(pool), turn_(pool.size()) {}

    void pin(const Blocks &blocks, nb::handle) override {
        for (int32_t block : blocks) turn_[block] = 0;
        size_ -= static_cast<int64_t>(blocks.size());
    }

    void release(const Blocks &blocks, nb::handle) override {
        ++count_;
        const int64_t access = pool_.last_access[blocks[0]];
        bool in_order = access > newest_;
        for (int32_t block : blocks) {
            turn_[block] = count_;
            in_order = in_order && pool_.last_access[block] == access;
        }
        if (in_order) {
            newest_ = access;
            queue_.push_back({access, count_, 0, blocks});
        } else {
            for (int32_t block : blocks) push_late({pool_.last_access[block], -pool_.depth[block], count_, block});
        }
        size_ += static_cast<int64_t>(blocks.size());
        stored_ += static_cast<int64_t>(blocks.size());
        if (stored_ > 64 + 4 * size_) compact();
    }

    /// 0 when it holds no candidate.
    int32_t victim(nb::handle) override {
        while (!queue_.empty()) {
            Release &first = queue_.front();
            while (first.next < first.blocks.size() && turn_[first.blocks[first.next]] != first.turn) {
                ++first.next;
                --stored_;
            }
            if (first.next < first.blocks.size()) break;
            queue_.pop_front();
        }
        while (!late_.empty() && turn_[std::get<3>(late_.front())] != std::get<2>(late_.front())) {
            std::pop_heap(late_.begin(), late_.end(), std::greater<>());
            late_.pop_back();
            --stored_;
        }
        if (queue_.empty()) return late_.empty() ? 0 : std::get<3>(late_.front());
        const Release &first = queue_.front();
        const int32_t block = first.blocks[first.next];
        if (late_.empty()) return block;
        const Late &other = late_.front();
        const auto mine = std::make_pair(first.access, -pool_.depth[block]);
        return mine <= std::make_pair(std::get<0>(other), std::get<1>(other)) ? block : std::get<3>(other);
    }

    void evicted(int32_t block, nb::handle) override {
        if (turn_[block] != 0) {
            turn_[block] = 0;
            --size_;
        }
    }

    bool watches() const override { return false; }

    void victims(size_t count, Blocks &out) override {
        while (late_.empty() && count > 0 && !queue_.empty()) {
            Release &first = queue_.front();
            for (; first.next < first.blocks.size() && count > 0; ++first.next, --stored_) {
                const int32_t block = first.blocks[first.next];
                if (turn_[block] != first.turn) continue; // it was used again
                turn_[block] = 0;
                out.push_back(block);
                --size_;
                --count;
            }
            if (first.next == first.blocks.size()) queue_.pop_front();
        }
    }

private:
    struct Release {
        int64_t access, turn;
        size_t next; // blocks before it are gone
        Blocks blocks;
    };
    using Late = std::tuple<int64_t, int32_t, int64_t, int32_t>; // last access, -depth, turn, block

    void push_late(Late entry) {
        late_.push_back(entry);
        std::push_heap(late_.begin(), late_.end(), std::greater<>());
    }
    /// Forget entries of blocks that were used again.
    void compact() {
        stored_ = 0;
        std::deque<Release> kept;
        for (Release &release : queue_) {
            Blocks left;
            for (size_t at = release.next; at < release.blocks.size(); ++at)
                if (turn_[release.blocks[at]] == release.turn) left.push_back(release.blocks[at]);
            stored_ += static_cast<int64_t>(left.size());
            if (!left.empty()) kept.push_back({release.access, release.turn, 0, std::move(left)});
        }
        queue_ = std::move(kept);
        late_.erase(std::remove_if(late_.begin(), late_.end(),
                                   [&](const Late &entry) { return turn_[std::get<3>(entry)] != std::get<2>(entry); }),
                    late_.end());
        std::make_heap(late_.begin(), late_.end(), std::greater<>());
        stored_ += static_cast<int64_t>(late_.size());
    }

    const Pool &pool_;
    std::vector<int64_t> turn_; // which release holds the block; 0: none
    int64_t count_ = 0, size_ = 0, stored_ = 0, newest_ = -1;
    std::deque<Release> queue_;
    std::vector<Late> late_;
};

inline nb::list list_of(const Blocks &blocks) {
    PyObject *list = PyList_New(static_cast<Py_ssize_t>(blocks.size()));
    if (list == nullptr) throw nb::python_error();
    for (size_t at = 0; at < blocks.size(); ++at) PyList_SET_ITEM(list, at, PyLong_FromLong(blocks[at]));
    return nb::steal<nb::list>(list);
}

inline nb::tuple tuple_of(const Blocks &blocks) { return nb::tuple(list_of(blocks)); }

/// A framework.paged.guard.GuardedPolicy, which checks what the policy answers.
class PythonPolicy final : public Policy {
public:
    PythonPolicy(nb::object guard_, nb::object candidates_)
        : guard(std::move(guard_)), candidates(std::move(candidates_)),
          declines_(nb::cast<bool>(guard.attr("wants_keep"))) {}

    void admit(const Blocks &blocks, nb::handle now) override { guard.attr("admit")(list_of(blocks), now); }
    void hit(const Blocks &blocks, nb::handle now) override { guard.attr("hit")(list_of(blocks), now); }
    void pin(const Blocks &blocks, nb::handle now) override { guard.attr("pin")(list_of(blocks), now); }
    void release(const Blocks &blocks, nb::handle now) override { guard.attr("release")(list_of(blocks), now); }
    int32_t victim(nb::handle now) override { return nb::cast<int32_t>(guard.attr("victim")(now, candidates)); }
    void evicted(int32_t block, nb::handle now) override { guard.attr("evicted")(block, now); }
    bool declines() const override { return declines_; }
    bool keeps(int32_t block, nb::handle now) override { return nb::cast<bool>(guard.attr("keep")(block, now)); }

    nb::object guard, candidates;

private:
    bool declines_;
};

} // namespace native
