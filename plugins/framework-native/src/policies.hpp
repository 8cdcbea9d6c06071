// Orders of the framework's own eviction policies for a cache-only replay: same victims, same ties, no Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace native {

/// What a policy may read of the blocks of a replay, indexed by block; rows beyond the capacity belong to bypass.
struct Residents {
    explicit Residents(size_t rows)
        : depth(rows), admitted(rows), last(rows), hits(rows), next_use(rows), node_of(rows, -1) {}

    size_t rows() const { return depth.size(); }

    std::vector<uint32_t> depth, admitted, last, hits, next_use; // next_use: kNever when there is none
    std::vector<int32_t> node_of;
    static constexpr uint32_t kNever = ~uint32_t{0};
};

/// A request's blocks are let go deepest first, and whoever uses a block uses its ancestors: the order of release is
/// (last access, deepest first).
/// So a log of releases will do, of which only the last one of a block counts.
class LruOrder {
public:
    static constexpr bool kReads = false; // of the residents, but `node_of` and `admitted`
    explicit LruOrder(const Residents &residents)
        : turn_(residents.rows()), limit_(static_cast<uint32_t>(std::min<size_t>(64 + 3 * residents.rows(), UINT32_MAX - 1))) {
        log_.reserve(limit_);
    }
    void pin(int32_t block) { turn_[block] = 0; }
    void release(int32_t block) {
        if (log_.size() == limit_) compact();
        turn_[block] = ++count_;
        log_.push_back({count_, block});
    }
    int32_t victim() {
        for (; cursor_ < log_.size(); ++cursor_)
            if (turn_[log_[cursor_].block] == log_[cursor_].turn) return log_[cursor_].block;
        return 0;
    }
    void evicted(int32_t block) { turn_[block] = 0; }

private:
    struct Release {
        uint32_t turn;
        int32_t block;
    };

    /// Forget releases of blocks that were used again, and count from 1.
    void compact() {
        count_ = 0;
        for (; cursor_ < log_.size(); ++cursor_) {
            const Release &release = log_[cursor_];
            if (turn_[release.block] != release.turn) continue;
            turn_[release.block] = ++count_;
            log_[count_ - 1] = {count_, release.block};
        }
        log_.resize(count_);
        cursor_ = 0;
    }

    std::vector<uint32_t> turn_; // the release that made a block a candidate; 0: it is none
    std::vector<Release> log_;
    size_t cursor_ = 0; // before it none counts
    uint32_t limit_, count_ = 0;
};

/// framework.interfaces.eviction.ScoredPolicy: the smallest key goes first. A key is taken at release and holds until
/// the block is used again; superseded heap entries are dropped when they come up.
template <class Score> class Scored {
public:
    static constexpr bool kReads = true;
    explicit Scored(const Residents &residents, Score score = {})
        : residents_(residents), score_(score), key_(residents.rows()), entered_(residents.rows(), kNone) {}
    void pin(int32_t block) {
        key_[block] = kNone;
        --size_;
    }
    void release(int32_t block) {
        key_[block] = score_(residents_, block);
        ++size_;
        if (std::exchange(entered_[block], key_[block]) == key_[block]) return; // its entry counts again
        heap_.push_back({key_[block], block});
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
        if (heap_.size() > 64 + 4 * size_) compact();
    }
    int32_t victim() {
        for (; !heap_.empty(); heap_.pop_back()) {
            const auto &[key, block] = heap_.front();
            if (key_[block] == key) return block;
            forget(heap_.front());
            std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        }
        return 0;
    }
    void evicted(int32_t block) {
        score_.evicted(key_[block]);
        pin(block);
    }

private:
    using Key = decltype(Score{}(std::declval<const Residents &>(), 0));
    using Entry = std::pair<Key, int32_t>;
    static constexpr Key kNone = ~Key{0}; // no block: the last access is at most 2^31
    void compact() {
        const auto counts = [&](const Entry &entry) { return key_[entry.second] == entry.first; };
        const auto end = std::partition(heap_.begin(), heap_.end(), counts);
        std::for_each(end, heap_.end(), [&](const Entry &entry) { forget(entry); });
        heap_.erase(end, heap_.end());
        std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    void forget(const Entry &entry) {
        if (entered_[entry.second] == entry.first) entered_[entry.second] = kNone;
    }

    const Residents &residents_;
    Score score_;
    std::vector<Key> key_, entered_; // of a candidate; of the block's latest heap entry
    std::vector<Entry> heap_;
    size_t size_ = 0;
};

__extension__ using Wide = unsigned __int128;

inline Wide key_of(uint32_t first, uint32_t second, uint32_t third) {
    return static_cast<Wide>(first) << 64 | static_cast<uint64_t>(second) << 32 | third;
}

/// (hits, last access, deepest first); aged: the count starts at the rank of the last victim.
struct LfuScore {
    bool aged = false;
    uint32_t age = 0;
    Wide operator()(const Residents &of, int32_t at) const {
        return key_of(of.hits[at] + 1 + age, of.last[at], ~of.depth[at]);
    }
    void evicted(Wide key) {
        if (aged) age = static_cast<uint32_t>(key >> 64);
    }
};

struct Unaged {
    void evicted(Wide) {}
};
struct FifoScore : Unaged {
    Wide operator()(const Residents &of, int32_t at) const { return key_of(of.admitted[at], ~of.depth[at], 0); }
};
struct LengthAwareScore : Unaged {
    Wide operator()(const Residents &of, int32_t at) const { return key_of(of.hits[at], ~of.depth[at], of.last[at]); }
};
struct MruScore : Unaged {
    Wide operator()(const Residents &of, int32_t at) const { return key_of(~of.last[at], ~of.depth[at], 0); }
};
struct BeladyScore : Unaged {
    Wide operator()(const Residents &of, int32_t at) const {
        return key_of(~of.next_use[at], ~of.depth[at], static_cast<uint32_t>(at));
    }
};
struct OptimumScore : Unaged {
    Wide operator()(const Residents &of, int32_t at) const {
        return key_of(~of.next_use[at], ~of.depth[at], ~of.last[at]);
    }
};

} // namespace native
