// The framework's own eviction policies for a cache-only replay: same orders, same ties, no Python.
// One block at a time where framework_builtin.eviction takes lists; the caller keeps the order within a list.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace native {

/// What a policy may read of the blocks of a replay, indexed by block; rows beyond the capacity belong to bypass.
struct Residents {
    Residents(size_t rows, int64_t blocks, size_t num_nodes)
        : capacity(blocks), num_nodes(num_nodes), depth(rows), admitted(rows), last(rows), hits(rows), next_use(rows),
          node_of(rows, -1) {}

    size_t rows() const { return depth.size(); }

    int64_t capacity;
    size_t num_nodes;
    std::vector<uint32_t> depth, admitted, last, hits, next_use; // next_use: kNever when there is none
    std::vector<int32_t> node_of;
    static constexpr uint32_t kNever = ~uint32_t{0};
};

/// Blocks in order of `append`, also while hidden; only shown ones can be at the front. framework_builtin's `Queue`.
/// A log with a cursor, and a heap for those shown again after the cursor passed them: O(1) a call but for these.
class Queue {
public:
    explicit Queue(size_t rows) : rank_(rows, kOut), stacked_(rows, kOut), shown_(rows), limit_(64 + 3 * rows) {
        log_.reserve(limit_ + 1);
    }

    int64_t size() const { return size_; }
    bool contains(int32_t block) const { return rank_[block] != kOut; }
    void append(int32_t block) {
        size_ += rank_[block] == kOut;
        if (log_.size() > limit_) compact();
        rank_[block] = next_;
        log_.push_back({next_++, block});
    }
    bool remove(int32_t block) {
        rank_[block] = kOut;
        --size_;
        return std::exchange(shown_[block], 0) != 0;
    }
    void show(int32_t block) {
        shown_[block] = 1;
        const int64_t rank = rank_[block];
        if (rank >= passed_ || stacked_[block] == rank) return;
        stacked_[block] = rank;
        late_.push_back({rank, block});
        std::push_heap(late_.begin(), late_.end(), std::greater<>());
    }
    void hide(int32_t block) { shown_[block] = 0; }
    /// 0 when it shows none.
    int32_t front() {
        for (; !late_.empty(); late_.pop_back()) {
            const Entry &first = late_.front();
            if (at_front(first)) return first.second;
            if (stacked_[first.second] == first.first) stacked_[first.second] = kOut;
            std::pop_heap(late_.begin(), late_.end(), std::greater<>());
        }
        for (; cursor_ < log_.size(); ++cursor_) {
            if (at_front(log_[cursor_])) return log_[cursor_].second;
            passed_ = log_[cursor_].first + 1;
        }
        return 0;
    }

private:
    using Entry = std::pair<int64_t, int32_t>; // rank, block
    static constexpr int64_t kOut = -1;

    bool at_front(const Entry &entry) const { return rank_[entry.second] == entry.first && shown_[entry.second] != 0; }
    void compact() {
        const auto old = [&](const Entry &entry) { return rank_[entry.second] != entry.first; };
        log_.erase(log_.begin(), log_.begin() + static_cast<int64_t>(cursor_));
        log_.erase(std::remove_if(log_.begin(), log_.end(), old), log_.end());
        cursor_ = 0;
    }

    std::vector<int64_t> rank_, stacked_; // of each block in the queue; of its entry in `late_`
    std::vector<uint8_t> shown_;
    std::vector<Entry> log_, late_;
    size_t limit_, cursor_ = 0;
    int64_t next_ = 0, passed_ = 0, size_ = 0;
};

/// Callbacks that most policies leave empty. `admitted` ends a list of admissions.
struct Plain {
    static constexpr bool kReads = true; // anything of the residents
    void hit(int32_t) {}
    void admit(int32_t) {}
    void admitted() {}
};

/// A request's blocks are let go deepest first, and whoever uses a block uses its ancestors: the order of release is
/// (last access, deepest first).
/// So a log of releases will do, of which only the last one of a block counts.
class LruOrder : public Plain {
public:
    static constexpr bool kReads = false;
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

class FifoOrder : public Plain {
public:
    explicit FifoOrder(const Residents &residents) : queue_(residents.rows()) {}
    void admit(int32_t block) { queue_.append(block); }
    void pin(int32_t block) { queue_.hide(block); }
    void release(int32_t block) { queue_.show(block); }
    int32_t victim() { return queue_.front(); }
    void evicted(int32_t block) { queue_.remove(block); }

private:
    Queue queue_;
};

class ClockOrder : public Plain {
public:
    ClockOrder(const Residents &residents, int64_t max_count) : queue_(residents.rows()), count_(residents.rows()), most_(max_count) {}
    void admit(int32_t block) {
        count_[block] = 0;
        queue_.append(block);
    }
    void hit(int32_t block) { count_[block] = std::min(count_[block] + 1, most_); }
    void pin(int32_t block) { queue_.hide(block); }
    void release(int32_t block) { queue_.show(block); }
    int32_t victim() {
        for (;;) {
            const int32_t block = queue_.front();
            if (block == 0 || count_[block] == 0) return block;
            --count_[block];
            queue_.append(block);
        }
    }
    void evicted(int32_t block) { queue_.remove(block); }

private:
    Queue queue_;
    std::vector<int64_t> count_;
    int64_t most_;
};

class SieveOrder : public Plain {
public:
    explicit SieveOrder(const Residents &residents)
        : rank_(residents.rows(), -1), stacked_(residents.rows(), -1), shown_(residents.rows()), marked_(residents.rows()) {}
    void admit(int32_t block) {
        rank_[block] = next_rank_++;
        marked_[block] = 0;
    }
    void hit(int32_t block) { marked_[block] = 1; }
    void pin(int32_t block) { num_shown_ -= std::exchange(shown_[block], 0); }
    void release(int32_t block) {
        num_shown_ += 1 - std::exchange(shown_[block], 1);
        if (stacked_[block] == rank_[block]) return;
        stacked_[block] = rank_[block];
        push(rank_[block] > hand_ ? ahead_ : behind_, {rank_[block], block});
    }
    int32_t victim() {
        while (num_shown_ > 0) {
            if (!next()) {
                turn_back();
            } else if (const Entry first = ahead_.front(); marked_[first.second] != 0) {
                marked_[first.second] = 0;
                hand_ = first.first;
                pop(ahead_);
                push(behind_, first);
            } else {
                return first.second;
            }
        }
        return 0;
    }
    void evicted(int32_t block) {
        const Entry gone{std::exchange(rank_[block], -1), block};
        num_shown_ -= std::exchange(shown_[block], 0);
        marked_[block] = 0;
        if (ahead_.empty() || ahead_.front() != gone) return;
        hand_ = gone.first;
        if (!next()) turn_back();
    }

private:
    using Entry = std::pair<int64_t, int32_t>; // rank, block
    static void push(std::vector<Entry> &heap, Entry entry) {
        heap.push_back(entry);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    static void pop(std::vector<Entry> &heap) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.pop_back();
    }
    /// Whether a candidate is ahead of the hand; it is then the heap's first.
    bool next() {
        for (; !ahead_.empty(); pop(ahead_)) {
            const auto [rank, block] = ahead_.front();
            if (shown_[block] != 0 && rank_[block] == rank) return true;
            if (stacked_[block] == rank) stacked_[block] = -1;
        }
        return false;
    }
    void turn_back() {
        std::swap(ahead_, behind_);
        hand_ = -1;
    }

    std::vector<int64_t> rank_, stacked_;
    std::vector<uint8_t> shown_, marked_;
    std::vector<Entry> ahead_, behind_;
    int64_t next_rank_ = 0, hand_ = -1, num_shown_ = 0;
};

/// Options may be any number, and no count comes near 2^62.
inline int64_t whole(double value) { return static_cast<int64_t>(std::max(0.0, std::min(value, 0x1p62))); }

class S3FifoOrder {
public:
    static constexpr bool kReads = true;
    S3FifoOrder(const Residents &residents, double small, double ghosts, int64_t promote_hits)
        : residents_(residents), small_(residents.rows()), main_(residents.rows()), count_(residents.rows()), ghost_(residents.num_nodes),
          small_blocks_(whole(static_cast<double>(residents.capacity) * small)),
          num_ghosts_(whole(static_cast<double>(residents.capacity) * ghosts)), promote_(promote_hits) {}
    void admit(int32_t block) {
        count_[block] = 0;
        const bool recalled = std::exchange(ghost_[residents_.node_of[block]], 0) != 0;
        remembered_ -= recalled;
        const bool filling = !has_evicted_ && small_.size() >= small_blocks_;
        (recalled || filling ? main_ : small_).append(block);
    }
    void admitted() {
        for (; remembered_ > num_ghosts_; names_.pop_front()) {
            const auto [turn, node] = names_.front();
            if (ghost_[node] != turn) continue;
            ghost_[node] = 0;
            --remembered_;
        }
    }
    void hit(int32_t block) { ++count_[block]; }
    void pin(int32_t block) { queue_of(block).hide(block); }
    void release(int32_t block) { queue_of(block).show(block); }
    int32_t victim() {
        for (;;) {
            int32_t small = small_.front();
            if (small == 0 || main_.size() > residents_.capacity - small_blocks_) {
                const int32_t main = main_front();
                if (main != 0 || small == 0) return main;
            }
            for (; small != 0; small = small_.front()) {
                if (count_[small] < promote_) return small;
                count_[small] = 0;
                small_.remove(small);
                main_.append(small);
                main_.show(small);
            }
        }
    }
    void evicted(int32_t block) {
        has_evicted_ = true;
        if (!small_.contains(block)) {
            main_.remove(block);
            return;
        }
        small_.remove(block);
        const int32_t node = residents_.node_of[block];
        remembered_ += ghost_[node] == 0;
        ghost_[node] = ++turn_;
        names_.emplace_back(turn_, node);
        if (names_.size() > 64 + 4 * static_cast<size_t>(remembered_)) forget_recalled();
    }

private:
    Queue &queue_of(int32_t block) { return small_.contains(block) ? small_ : main_; }
    int32_t main_front() {
        for (;;) {
            const int32_t block = main_.front();
            if (block == 0 || count_[block] == 0) return block;
            count_[block] = std::min<int64_t>(count_[block], 3) - 1;
            main_.append(block);
        }
    }
    void forget_recalled() {
        const auto recalled = [&](const auto &name) { return ghost_[name.second] != name.first; };
        names_.erase(std::remove_if(names_.begin(), names_.end(), recalled), names_.end());
    }

    const Residents &residents_;
    Queue small_, main_;
    std::vector<int64_t> count_, ghost_;               // ghost_: the turn a node became a ghost, 0: it is none
    std::deque<std::pair<int64_t, int32_t>> names_;    // turn, node; oldest first
    int64_t small_blocks_, num_ghosts_, promote_, remembered_ = 0, turn_ = 0;
    bool has_evicted_ = false;
};

class SlruOrder {
public:
    static constexpr bool kReads = true;
    SlruOrder(const Residents &residents, int64_t num_segments)
        : segments_(static_cast<size_t>(num_segments), Queue(residents.rows())), level_(residents.rows()),
          most_(std::max<int64_t>(1, residents.capacity / num_segments)) {}
    void admit(int32_t block) {
        size_t level = 0;
        while (level < segments_.size() && segments_[level].size() >= most_) ++level;
        if (level == segments_.size()) level = 0;
        level_[block] = level;
        segments_[level].append(block);
    }
    void admitted() {}
    void hit(int32_t block) {
        const size_t level = level_[block];
        move(block, std::min(level + 1, segments_.size() - 1));
        if (level + 1 < segments_.size()) cool(level + 1);
    }
    void pin(int32_t block) { segments_[level_[block]].hide(block); }
    void release(int32_t block) { segments_[level_[block]].show(block); }
    int32_t victim() {
        for (Queue &segment : segments_)
            if (const int32_t block = segment.front()) return block;
        return 0;
    }
    void evicted(int32_t block) { segments_[level_[block]].remove(block); }

private:
    void move(int32_t block, size_t level) {
        const bool shown = segments_[level_[block]].remove(block);
        level_[block] = level;
        segments_[level].append(block);
        if (shown) segments_[level].show(block);
    }
    void cool(size_t level) {
        while (segments_[level].size() > most_) {
            const int32_t block = segments_[level].front();
            if (block == 0) return;
            move(block, level - 1);
        }
    }

    std::vector<Queue> segments_;
    std::vector<size_t> level_;
    int64_t most_;
};

/// framework.interfaces.eviction.ScoredPolicy: the smallest key goes first. A key is taken at release and holds until
/// the block is used again; superseded heap entries are dropped when they come up.
template <class Score> class Scored : public Plain {
public:
    explicit Scored(const Residents &residents, Score score = {}) : residents_(residents), score_(score), key_(residents.rows()) {}
    void pin(int32_t block) {
        key_[block] = kNone;
        --size_;
    }
    void release(int32_t block) {
        key_[block] = score_(residents_, block);
        ++size_;
        heap_.push_back({key_[block], block});
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
        if (heap_.size() > 64 + 4 * size_) compact();
    }
    int32_t victim() {
        for (; !heap_.empty(); heap_.pop_back()) {
            const auto &[key, block] = heap_.front();
            if (key_[block] == key) return block;
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
    static constexpr Key kNone = ~Key{0}; // no block: the last access is at most 2^31
    void compact() {
        heap_.erase(std::remove_if(heap_.begin(), heap_.end(), [&](const auto &e) { return key_[e.second] != e.first; }),
                    heap_.end());
        std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    }

    const Residents &residents_;
    Score score_;
    std::vector<Key> key_;
    std::vector<std::pair<Key, int32_t>> heap_;
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
