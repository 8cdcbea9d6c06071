// framework_builtin.eviction.hazard in C++: groups, their order, what is remembered of evicted blocks, and the guard.
// What is learnt of returns is fitted by the policy's own estimate in Python: the same bits, a few hundred times a trace.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace native::hazard {

using Blocks = std::vector<int32_t>;

constexpr int kNumSorts = 4;
enum Sort : int32_t { kBody, kTail, kLeft, kShared };
enum Part : int32_t { kFirst, kNew, kSeen };
constexpr int32_t kMovedOn = 2, kMostCategories = 16, kTimes = 16, kMostTime = 20;
constexpr int kBins = 44;
constexpr double kResume = 0.75;
constexpr size_t kMostKinds = 4096, kMostNames = 16384;
constexpr int64_t kRescore = 64;

/// framework.types.RequestFacts as numbers, and what a client foretold; -1 and NaN stand for unknown.
struct Request {
    int64_t turn, prompt_tokens, new_blocks;
    double arrival, returns;
    int32_t category, foretold;
};

/// Sort, features, and what was foretold: what makes a kind.
using Key = std::array<int32_t, 8>;
using Features = std::array<int32_t, 6>;

/// The columns of framework_builtin.eviction._returns.Returns, and what it last made of them.
class Returns {
public:
    /// Called with the kinds that are new, in order of first sight, to fit `index`, `edges`, `unit` and `fresh` anew.
    using Fit = std::function<void(Returns &, double now)>;

    Returns(int64_t window, Fit fit) : fit_(std::move(fit)), window_(window) {
        edges.resize(kBins);
        for (int at = 0; at < kBins; ++at) edges[at] = at == 0 ? 0.0 : std::exp2((at - 1) / 2.0);
        index.assign(kNumSorts * kBins, 0.0);
        fresh.assign(kNumSorts, 0.0);
    }

    int32_t kind_of(const Key &key) {
        const auto found = kinds_.find(key);
        if (found != kinds_.end()) return found->second;
        if (keys.size() >= kMostKinds) return key[0];
        const auto kind = static_cast<int32_t>(kNumSorts + keys.size());
        kinds_.emplace(key, kind);
        keys.push_back(key);
        return kind;
    }
    int64_t begin(int32_t of, double now) {
        const int64_t record = num++;
        if (record < window_) {
            kind.push_back(of);
            start.push_back(now);
            end_.push_back(kNever);
            stopped.push_back(0);
        } else {
            const auto at = static_cast<size_t>(record % window_);
            kind[at] = of, start[at] = now, end_[at] = kNever, stopped[at] = 0;
        }
        return record;
    }
    void end(int64_t record, double now) {
        if (record < num - window_) return;
        end_[static_cast<size_t>(record % window_)] = now;
        ++num_returned;
    }
    void stop(int64_t record, double now) {
        if (record < std::max<int64_t>(0, num - window_)) return;
        const auto at = static_cast<size_t>(record % window_);
        end_[at] = now, stopped[at] = 1;
    }
    bool due() const { return num - learnt_ >= std::max<int64_t>(32, std::min(num, window_) / 32); }
    void learn(double now) {
        learnt_ = num;
        fit_(*this, now);
    }
    double score(int32_t of, double age) const {
        const auto known = static_cast<size_t>(of) * kBins < index.size() ? of : sort_of(of);
        const auto bin = std::min<int64_t>(std::upper_bound(edges.begin(), edges.end(), age) - edges.begin() - 1, kBins - 1);
        return index[static_cast<size_t>(known) * kBins + static_cast<size_t>(bin)];
    }
    double first_score(int32_t of) const {
        return fresh[static_cast<size_t>(static_cast<size_t>(of) < fresh.size() ? of : sort_of(of))];
    }

    std::vector<Key> keys; // of the kinds from kNumSorts on
    size_t num_fitted = 0; // keys that the fit has seen
    std::vector<int32_t> kind;
    std::vector<double> start;
    std::vector<uint8_t> stopped;
    const std::vector<double> &ends() const { return end_; }
    int64_t num = 0, num_returned = 0;
    double unit = 1.0;
    std::vector<double> index, edges, fresh;

private:
    static constexpr double kNever = std::numeric_limits<double>::infinity();
    int32_t sort_of(int32_t of) const { return of < kNumSorts ? of : keys[static_cast<size_t>(of - kNumSorts)][0]; }

    Fit fit_;
    std::map<Key, int32_t> kinds_;
    std::vector<double> end_;
    int64_t window_, learnt_ = 0;
};

/// framework_builtin.eviction._groups.Group. Kept until the replay ends: about 100 bytes, and 4 a block.
struct Group {
    Blocks blocks; // shallowest first
    int32_t kind, turn = -1, name = -1;
    double start, score = 0.0;
    int64_t order, size, count, shadow, shadow_hits = 0, record = -1;
    Group *below = nullptr;
};

/// framework_builtin.eviction._groups.Shadow.
class Shadow {
public:
    void use(Group &group, int64_t used) {
        const int64_t held = std::min(used, group.shadow);
        group.shadow -= held;
        group.shadow_hits += held;
        held_ -= held;
    }
    void add(Group &group) {
        queue_.push_back(&group);
        held_ += group.shadow;
    }
    void shrink(int64_t most) {
        while (held_ > most) {
            Group &oldest = *queue_.front();
            const int64_t gone = std::min(oldest.shadow, held_ - most);
            oldest.shadow -= gone;
            held_ -= gone;
            if (oldest.shadow == 0) queue_.pop_front();
        }
    }

private:
    int64_t held_ = 0;
    std::deque<Group *> queue_;
};

/// Groups by the names of evicted blocks (a name is a node), the oldest first to go: an OrderedDict.
class Remembered {
public:
    explicit Remembered(size_t num_nodes) : group_(num_nodes), stamp_(num_nodes) {}
    size_t size() const { return size_; }
    void add(int32_t node, Group *group) {
        group_[node] = group;
        stamp_[node] = ++last_;
        queue_.push_back({last_, node});
        ++size_;
    }
    Group *take(int32_t node) {
        Group *found = std::exchange(group_[node], nullptr);
        size_ -= found != nullptr;
        return found;
    }
    std::pair<int32_t, Group *> take_oldest() {
        for (;;) {
            const auto [stamp, node] = queue_.front();
            queue_.pop_front();
            if (group_[node] != nullptr && stamp_[node] == stamp) return {node, take(node)};
        }
    }

private:
    std::vector<Group *> group_;
    std::vector<int64_t> stamp_;
    std::deque<std::pair<int64_t, int32_t>> queue_;
    size_t size_ = 0;
    int64_t last_ = 0;
};

struct Options {
    double tolerance;
    int64_t window, warm_up;
    int64_t num_blocks;
};

/// What the policy may read of blocks; rows by block. `last_request`: the request that used it last.
struct View {
    std::vector<int32_t> depth, node, last_request;
    std::vector<int64_t> hits;
};

/// framework_builtin.eviction.hazard.Hazard with framework_builtin.eviction._groups.GroupedPolicy, call by call: lists
/// are deepest block first and never empty.
class Policy {
public:
    Policy(const Options &options, const View &view, const std::vector<Request> &requests, const uint8_t *partial,
           size_t num_nodes, Returns::Fit fit)
        : to_(options), view_(view), requests_(requests), partial_(partial), returns_(options.window, std::move(fit)),
          group_of_(view.depth.size()), candidate_(view.depth.size()), found_(view.depth.size()), ghosts_(num_nodes),
          names_(num_nodes), most_ghosts_(2 * options.num_blocks), rescore_after_(options.num_blocks / kRescore) {}

    void admit(const Blocks &blocks, double now) {
        tick(blocks[0], now);
        for (const int32_t block : blocks) {
            const int32_t name = view_.node[block];
            Group *group = ghosts_.take(name);
            group_of_[block] = group != nullptr ? group : names_.take(name);
        }
        use_shadow(blocks);
    }

    void pin(const Blocks &blocks) {
        if (room_) shadow_.shrink(*room_);
        room_.reset();
        for (const int32_t block : blocks)
            if (std::exchange(candidate_[block], 0) != 0) {
                --num_candidates_;
                --group_of_[block]->size;
            }
        for (const int32_t block : blocks) found_[block] = 1;
        use_shadow(blocks);
    }

    void hit(const Blocks &blocks) {
        size_t first = 0;
        if (view_.depth[blocks[0]] != static_cast<int32_t>(blocks.size()) - 1) {
            size_t num_hits = 0;
            while (num_hits < blocks.size() &&
                   view_.depth[blocks[blocks.size() - 1 - num_hits]] == static_cast<int32_t>(num_hits))
                ++num_hits;
            first = blocks.size() - num_hits;
        }
        for (size_t at = first; at < blocks.size(); ++at)
            if (found_[blocks[at]] != 0) found_[blocks[at]] = 2;
    }

    void release(const Blocks &blocks, double now) {
        for (const int32_t block : blocks)
            if (found_[block] != 0) {
                own_hits_ += found_[block] == 2;
                found_[block] = 0;
            }
        room_.reset();
        regroup(blocks, now);
        references_ += static_cast<int64_t>(blocks.size());
        ++releases_;
        const double slack = std::min(1 / static_cast<double>(releases_), to_.tolerance / 3);
        const double allowed = (to_.tolerance + slack) * static_cast<double>(references_);
        const bool behind = static_cast<double>(lru_hits_ - own_hits_) > allowed * (as_lru_ ? kResume : 1.0);
        const bool as_lru = behind || returns_.num_returned < to_.warm_up;
        if (as_lru != as_lru_) {
            as_lru_ = as_lru;
            stale_ = true;
        } else if (returns_.due() && !as_lru) {
            stale_ = true;
        }
    }

    /// 0 when it holds no candidate.
    int32_t victim() {
        if (num_candidates_ == 0) return 0;
        if (stale_) score_all();
        for (;;) {
            const Entry &first = heap_.front();
            Group &group = *first.group;
            if (group.size != 0 && group.score == first.score) {
                for (; !group.blocks.empty(); group.blocks.pop_back()) {
                    const int32_t block = group.blocks.back();
                    if (group_of_[block] == &group && candidate_[block] != 0) return block;
                }
            }
            std::pop_heap(heap_.begin(), heap_.end(), later);
            heap_.pop_back();
        }
    }

    void evicted(int32_t block) {
        found_[block] = 0;
        Group *group = std::exchange(group_of_[block], nullptr);
        if (std::exchange(candidate_[block], 0) != 0) {
            --num_candidates_;
            --group->size;
        }
        ghosts_.add(view_.node[block], group);
        forget();
        if (++evicted_ > rescore_after_) stale_ = true;
        room_ = num_candidates_;
    }

private:
    struct Entry {
        double score;
        int64_t order;
        Group *group;
    };
    static bool later(const Entry &one, const Entry &other) {
        return one.score != other.score ? one.score > other.score : one.order > other.order;
    }

    void tick(int32_t block, double now) {
        const double arrival = requests_[view_.last_request[block]].arrival;
        if (std::isnan(arrival)) arrivals_ = arrivals_ && order_ > 0;
        const double time = arrivals_ ? arrival : now;
        if (time > clock_) clock_ = time; // never for NaN
    }

    void use_shadow(const Blocks &blocks) {
        for (const int32_t block : blocks) // one by one comes to the same as by groups
            if (group_of_[block] != nullptr) shadow_.use(*group_of_[block], 1);
    }

    void regroup(const Blocks &blocks, double now) {
        tick(blocks[0], now);
        used_.clear();
        Group *deepest = nullptr;
        for (const int32_t block : blocks) {
            candidate_[block] = 1;
            Group *group = group_of_[block];
            if (group == nullptr) continue;
            if (deepest == nullptr) deepest = group;
            const auto found = std::find_if(used_.rbegin(), used_.rend(), [&](const auto &used) { return used.first == group; });
            if (found == used_.rend()) {
                used_.push_back({group, 1});
            } else {
                ++found->second;
            }
        }
        num_candidates_ += static_cast<int64_t>(blocks.size());
        continued_ = deepest;
        std::optional<double> gap;
        if (deepest != nullptr) gap = clock_ - deepest->start;
        for (auto &[group, used] : used_) {
            returned(*group, used);
            group->count -= used;
        }
        num_fresh_ = 0;
        while (num_fresh_ < blocks.size() && group_of_[blocks[num_fresh_]] == nullptr) ++num_fresh_;
        make_groups(blocks, requests_[view_.last_request[blocks[0]]], gap);
        if (static_cast<int64_t>(heap_.size()) > 64 + 4 * num_candidates_) stale_ = true;
    }

    void returned(Group &group, int64_t used) {
        lru_hits_ += std::exchange(group.shadow_hits, 0);
        if (2 * used < group.count || group.record < 0) return;
        returns_.end(group.record, clock_);
        group.record = -1;
        if (used < group.count) leave(group, false);
    }

    void leave(Group &group, bool dropped) {
        group.record = group.turn = -1;
        if (group.size == 0) return;
        group.kind = returns_.kind_of({kLeft, dropped, 0, 0, 0, 0, 0, -1});
        group.start = clock_;
        group.record = returns_.begin(group.kind, clock_);
        place(group);
    }

    void make_groups(const Blocks &blocks, const Request &request, std::optional<double> gap) {
        size_t tails = 0;
        while (tails < blocks.size() && partial_[view_.node[blocks[tails]]] != 0) ++tails;
        const int64_t turn = turn_of(request);
        const auto others = blocks.begin() + static_cast<int64_t>(tails);
        const auto shared = std::partition_point(others, blocks.end(), [&](int32_t block) { return view_.hits[block] <= 1 + turn; });
        if (tails > 0) begin({blocks.begin(), others}, kTail, -1);
        if (shared != others) {
            const auto most = static_cast<size_t>(shared - others);
            const size_t num_new = std::min(num_fresh_ > tails ? num_fresh_ - tails : 0, most);
            bodies({others, shared}, num_new, turn, request, gap);
        }
        if (shared != blocks.end())
            begin({shared, blocks.end()}, returns_.kind_of({kShared, octave(gap), 0, 0, 0, 0, 0, -1}), -1);
    }

    void bodies(const Blocks &blocks, size_t num_new, int64_t turn, const Request &request, std::optional<double> gap) {
        const bool moved = moved_on();
        const int64_t counted = turn_of(request); // what was dropped counts no turns any more
        Group *below = nullptr;
        const auto cut = blocks.begin() + static_cast<int64_t>(num_new);
        for (const int32_t part : {kNew, kSeen}) {
            const Blocks found = part == kNew ? Blocks(blocks.begin(), cut) : Blocks(cut, blocks.end());
            if (found.empty()) continue;
            Key key{kBody, octave(gap), 0, 0, 0, 0, continued_ == nullptr ? kFirst : part + kMovedOn * moved, request.foretold};
            const auto known = static_cast<uint64_t>(std::min(request.new_blocks, static_cast<int64_t>(num_fresh_)));
            if (!std::isnan(request.returns)) key[1] = kTimes + time_bin(request.returns);
            key[2] = counted < 5 ? static_cast<int32_t>(counted) : counted < 10 ? 5 : 6;
            key[3] = bit_length(known + 1);
            key[4] = bit_length(static_cast<uint64_t>(request.prompt_tokens != 0 ? request.prompt_tokens
                                                                                  : view_.depth[blocks[0]] + 1));
            key[5] = category(request.category);
            Group *group = begin(found, returns_.kind_of(key), static_cast<int32_t>(turn));
            group->below = std::exchange(below, group);
        }
    }

    bool moved_on() {
        Group *before = continued_;
        if (before == nullptr || before->turn < 0) return false;
        Group *rest = before->below == nullptr || before->below->count == 0 ? before : before->below;
        if (rest->count != 0 && rest->turn >= 0) {
            returns_.stop(rest->record, clock_);
            leave(*rest, true);
        }
        return rest->count > 0;
    }

    Group *begin(const Blocks &blocks, int32_t kind, int32_t turn) {
        const auto size = static_cast<int64_t>(blocks.size());
        Group &group = groups_.emplace_back();
        group.blocks.assign(blocks.rbegin(), blocks.rend());
        group.kind = kind, group.turn = turn, group.start = clock_, group.order = ++order_;
        group.size = group.count = group.shadow = size;
        group.name = view_.node[blocks[0]];
        for (const int32_t block : blocks) group_of_[block] = &group;
        place(group);
        group.record = returns_.begin(kind, clock_);
        shadow_.add(group);
        shadow_.shrink(num_candidates_);
        return &group;
    }

    void place(Group &group) {
        group.score = as_lru_ ? static_cast<double>(group.order) : returns_.first_score(group.kind);
        heap_.push_back({group.score, group.order, &group});
        std::push_heap(heap_.begin(), heap_.end(), later);
    }

    void score_all() {
        stale_ = false;
        evicted_ = 0;
        if (returns_.due() && !as_lru_) returns_.learn(clock_);
        const auto old = [](const Entry &entry) { return entry.group->size == 0 || entry.group->score != entry.score; };
        heap_.erase(std::remove_if(heap_.begin(), heap_.end(), old), heap_.end());
        if (heap_.empty()) return;
        for (Entry &entry : heap_) {
            const Group &group = *entry.group;
            entry.score = as_lru_ ? static_cast<double>(group.order) : returns_.score(group.kind, clock_ - group.start);
        }
        for (const Entry &entry : heap_) entry.group->score = entry.score;
        std::make_heap(heap_.begin(), heap_.end(), later);
        rescore_after_ = std::max(to_.num_blocks / kRescore, static_cast<int64_t>(heap_.size()));
    }

    void forget() {
        while (static_cast<int64_t>(ghosts_.size()) > most_ghosts_) {
            const auto [name, forgotten] = ghosts_.take_oldest();
            if (name != forgotten->name) {
                --forgotten->count;
            } else if (forgotten->record >= 0) {
                names_.add(name, forgotten);
                if (names_.size() > kMostNames) names_.take_oldest();
            }
        }
    }

    int64_t turn_of(const Request &request) const {
        const int64_t given = std::max<int64_t>(request.turn, 0);
        if (continued_ == nullptr || continued_->turn < 0) return given;
        return std::max(given, static_cast<int64_t>(continued_->turn) + 1);
    }
    int32_t octave(std::optional<double> gap) const {
        if (!gap) return -1;
        const double log = std::log2(*gap / returns_.unit + 1e-9);
        return std::min(10, std::max(0, static_cast<int32_t>(log)) / 2);
    }
    int32_t time_bin(double time) const {
        const double log = std::log2(std::min(time / returns_.unit, 0x1p21) + 1e-9);
        return std::min(kMostTime, std::max(0, static_cast<int32_t>(log)));
    }
    int32_t category(int32_t given) {
        if (given < 0) return -1;
        if (static_cast<size_t>(given) >= categories_.size()) categories_.resize(static_cast<size_t>(given) + 1, -1);
        int32_t &number = categories_[static_cast<size_t>(given)];
        if (number < 0 && num_categories_ < kMostCategories) number = num_categories_++;
        return number < 0 ? kMostCategories : number;
    }
    static int32_t bit_length(uint64_t value) {
        int32_t bits = 0;
        for (; value != 0; value >>= 1) ++bits;
        return bits;
    }

    const Options to_;
    const View &view_;
    const std::vector<Request> &requests_;
    const uint8_t *partial_;
    Returns returns_;
    std::deque<Group> groups_;
    std::vector<Group *> group_of_;
    std::vector<uint8_t> candidate_, found_; // found_: 1 was resident before this use, 2 and a hit
    std::vector<Entry> heap_;
    Remembered ghosts_, names_;
    Shadow shadow_;
    std::vector<std::pair<Group *, int64_t>> used_;
    Group *continued_ = nullptr;
    std::vector<int32_t> categories_;
    std::optional<int64_t> room_;
    double clock_ = 0.0;
    int64_t order_ = 0, num_candidates_ = 0, evicted_ = 0, most_ghosts_, rescore_after_;
    int64_t lru_hits_ = 0, own_hits_ = 0, references_ = 0, releases_ = 0;
    size_t num_fresh_ = 0;
    int32_t num_categories_ = 0;
    bool stale_ = false, arrivals_ = true, as_lru_ = true;
};

} // namespace native::hazard
