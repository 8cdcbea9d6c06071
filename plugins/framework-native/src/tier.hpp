// One tier below the pool of a cache-only replay: framework.tiers.tier in C++.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "request_model.hpp"

namespace native {

/// Smallest key first, where most keys come in order: a log for those that do, a heap for those that come late.
/// A demoted block brings an older last access than blocks that were used where they lie. A block has one key from its
/// release to its next use, and no two blocks of a tier have the same.
template <class Key> class Ordered : public Plain {
public:
    explicit Ordered(const Residents &of) : of_(of), queued_(of.rows()), shown_(of.rows()), limit_(64 + 4 * of.rows()) {}
    void pin(int32_t block) { shown_[block] = 0; }
    void release(int32_t block) {
        shown_[block] = 1;
        const uint64_t key = Key{}(of_, block);
        if (queued_[block] == key) return;
        queued_[block] = key;
        if (log_.size() + late_.size() > limit_) compact();
        if (key > newest_) {
            newest_ = key;
            log_.push_back({key, block});
        } else {
            late_.push_back({key, block});
            std::push_heap(late_.begin(), late_.end(), std::greater<>());
        }
    }
    /// 0 when it holds no candidate.
    int32_t victim() {
        while (cursor_ < log_.size() && !at_front(log_[cursor_])) ++cursor_;
        while (!late_.empty() && !at_front(late_.front())) {
            std::pop_heap(late_.begin(), late_.end(), std::greater<>());
            late_.pop_back();
        }
        if (late_.empty()) return cursor_ < log_.size() ? log_[cursor_].second : 0;
        return cursor_ < log_.size() && log_[cursor_] < late_.front() ? log_[cursor_].second : late_.front().second;
    }
    void evicted(int32_t block) {
        queued_[block] = kOut;
        shown_[block] = 0;
    }

private:
    using Entry = std::pair<uint64_t, int32_t>; // key, block
    static constexpr uint64_t kOut = 0;         // no key: counts of accesses begin at 1

    /// Whether the entry's block is a candidate under this key; an entry that is passed over while its block is pinned
    /// is made anew at the release.
    bool at_front(const Entry &entry) {
        if (queued_[entry.second] != entry.first) return false;
        if (shown_[entry.second] == 0) queued_[entry.second] = kOut;
        return shown_[entry.second] != 0;
    }
    void compact() {
        const auto old = [&](const Entry &entry) { return queued_[entry.second] != entry.first; };
        log_.erase(log_.begin(), log_.begin() + static_cast<int64_t>(std::exchange(cursor_, 0)));
        log_.erase(std::remove_if(log_.begin(), log_.end(), old), log_.end());
        late_.erase(std::remove_if(late_.begin(), late_.end(), old), late_.end());
        std::make_heap(late_.begin(), late_.end(), std::greater<>());
        limit_ = std::max(limit_, 2 * (log_.size() + late_.size()));
    }

    const Residents &of_;
    std::vector<uint64_t> queued_; // the key that a block is queued under
    std::vector<uint8_t> shown_;
    std::vector<Entry> log_, late_;
    size_t limit_, cursor_ = 0;
    uint64_t newest_ = 0;
};

struct LastAccess {
    uint64_t operator()(const Residents &of, int32_t at) const {
        return static_cast<uint64_t>(of.last[at]) << 32 | static_cast<uint32_t>(~of.depth[at]);
    }
};
struct Admission {
    uint64_t operator()(const Residents &of, int32_t at) const {
        return static_cast<uint64_t>(of.admitted[at]) << 32 | static_cast<uint32_t>(~of.depth[at]);
    }
};

/// A tier's order of eviction, one block at a time.
class TierOrder {
public:
    virtual ~TierOrder() = default;
    virtual void admit(int32_t block) = 0;
    virtual void hit(int32_t block) = 0;
    virtual void pin(int32_t block) = 0;
    virtual void release(int32_t block) = 0;
    virtual int32_t victim() = 0;
    virtual void evicted(int32_t block) = 0;
};

template <class Order> class TierOrderOf final : public TierOrder {
public:
    explicit TierOrderOf(Order order) : order_(std::move(order)) {}
    void admit(int32_t block) override {
        order_.admit(block);
        order_.admitted();
    }
    void hit(int32_t block) override { order_.hit(block); }
    void pin(int32_t block) override { order_.pin(block); }
    void release(int32_t block) override { order_.release(block); }
    int32_t victim() override { return order_.victim(); }
    void evicted(int32_t block) override { order_.evicted(block); }

private:
    Order order_;
};

/// A policy's name in C++ and its constructor's parameters in order.
struct Named {
    std::string name;
    std::vector<double> parameters;
};

inline std::unique_ptr<TierOrder> tier_order(const Named &policy, const Residents &of) {
    using Made = std::unique_ptr<TierOrder>;
    const auto make = [](auto order) -> Made { return std::make_unique<TierOrderOf<decltype(order)>>(std::move(order)); };
    if (policy.name == "lru") return make(Ordered<LastAccess>(of));
    if (policy.name == "fifo") return make(Ordered<Admission>(of));
    return with_order(policy.name, policy.parameters, of, make);
}

/// What is known of the nodes of a trace, as far as it has been replayed; (N,) each. next_use is empty where no policy
/// needs it.
struct NodeFacts {
    explicit NodeFacts(size_t num_nodes, bool foresees)
        : depth(num_nodes), last_use(num_nodes), uses(num_nodes), next_use(foresees ? num_nodes : 0) {}
    std::vector<uint32_t> depth, last_use, uses, next_use;
};

/// framework.interfaces.allocator.TierCounts, in blocks.
struct TierCounts {
    int64_t hits = 0, hit_tokens = 0, stored = 0, read = 0, evicted = 0, dropped = 0, refused = 0, unread = 0, peak = 0;
};

/// Up to `num_blocks` nodes. What the request at hand uses is pinned, and never evicted.
class Tier {
public:
    Tier(int64_t num_blocks, const Named &policy, const NodeFacts &facts)
        : num_blocks_(num_blocks), facts_(facts), rows_(residents(num_blocks, facts)), order_(tier_order(policy, rows_)),
          block_of_(facts.depth.size()), pinned_(rows_.rows()), unread_(rows_.rows()) {}
    Tier(const Tier &) = delete; // its order refers to its rows

    TierCounts counts;

    bool holds(int32_t node) const { return block_of_[node] != 0; }
    bool full() const { return held_ >= num_blocks_; }
    /// The node is part of a request's cached prefix, so many tokens of it its own, and is read.
    void hit(int32_t node, int64_t tokens) {
        ++counts.hits;
        ++counts.read;
        counts.hit_tokens += tokens;
        counts.unread -= std::exchange(unread_[block_of_[node]], 0);
    }
    /// The request at hand uses these nodes, which are held, deepest first.
    void use(const std::vector<int32_t> &nodes) {
        for (const int32_t node : nodes) order_->pin(block_of_[node]);
        for (const int32_t node : nodes) {
            const int32_t block = block_of_[node];
            rows_.last[block] = facts_.last_use[node];
            ++rows_.hits[block];
            if (!facts_.next_use.empty()) rows_.next_use[block] = facts_.next_use[node];
            pin(block);
        }
        for (const int32_t node : nodes) order_->hit(block_of_[node]);
    }
    void insert(int32_t node, bool pinned) {
        ++counts.stored;
        ++counts.unread;
        counts.peak = std::max(counts.peak, ++held_);
        const int32_t block = take_row();
        block_of_[node] = block;
        rows_.node_of[block] = node;
        rows_.depth[block] = facts_.depth[node];
        rows_.admitted[block] = rows_.last[block] = facts_.last_use[node];
        rows_.hits[block] = 0;
        if (!facts_.next_use.empty()) rows_.next_use[block] = facts_.next_use[node];
        unread_[block] = 1;
        order_->admit(block);
        if (pinned) {
            pin(block);
        } else {
            order_->release(block);
        }
    }
    /// The request that used blocks is over: they can be evicted again.
    void unpin() {
        std::sort(held_by_request_.begin(), held_by_request_.end(),
                  [&](int32_t a, int32_t b) { return rows_.depth[a] > rows_.depth[b]; });
        for (const int32_t block : held_by_request_) {
            pinned_[block] = 0;
            order_->release(block);
        }
        held_by_request_.clear();
    }
    /// The pool has the node again.
    void drop(int32_t node) {
        ++counts.dropped;
        counts.unread -= unread_[block_of_[node]];
        forget(node);
    }
    /// Evict what the order names, and name it; -1 where everything is pinned.
    int32_t evict() {
        if (held_ == static_cast<int64_t>(held_by_request_.size())) return -1;
        const int32_t block = order_->victim();
        if (block == 0 || pinned_[block] != 0) throw std::logic_error("a tier of the replay core has lost its candidates");
        const int32_t node = rows_.node_of[block];
        ++counts.evicted;
        forget(node);
        return node;
    }

private:
    static Residents residents(int64_t num_blocks, const NodeFacts &facts) {
        const size_t most = facts.depth.size();
        return Residents(std::min(static_cast<size_t>(num_blocks), most) + 1, num_blocks, most);
    }
    void pin(int32_t block) {
        pinned_[block] = 1;
        held_by_request_.push_back(block);
    }
    int32_t take_row() {
        if (free_.empty()) return fresh_++;
        const int32_t block = free_.back();
        free_.pop_back();
        return block;
    }
    void forget(int32_t node) {
        const int32_t block = std::exchange(block_of_[node], 0);
        order_->evicted(block);
        rows_.node_of[block] = -1;
        unread_[block] = 0;
        free_.push_back(block);
        --held_;
    }

    const int64_t num_blocks_;
    const NodeFacts &facts_;
    Residents rows_;
    std::unique_ptr<TierOrder> order_;
    std::vector<int32_t> block_of_, free_, held_by_request_;
    std::vector<uint8_t> pinned_, unread_;
    int64_t held_ = 0;
    int32_t fresh_ = 1;
};

} // namespace native
