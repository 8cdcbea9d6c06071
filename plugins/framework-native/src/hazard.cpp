// Cache-only replay of hazard and hinted: the request model with lists, as these policies learn from whole requests.
#include "hazard.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "request_model.hpp"

namespace native {
namespace {

using hazard::Blocks;

/// What the trace and the policy know of each request, (R,) each; partial: (N,).
struct RequestColumns {
    const int64_t *prompt_tokens, *turns;
    const double *arrivals, *returns;
    const int32_t *categories, *foretold;
    const uint8_t *partial;
};

class HazardReplay {
public:
    HazardReplay(const Paths &paths, const RequestColumns &columns, const hazard::Options &options, bool leaf_first,
                 hazard::Returns::Fit fit, bool list_evicted)
        : paths_(paths), columns_(columns), num_blocks_(options.num_blocks), leaf_first_(leaf_first),
          list_evicted_(list_evicted), requests_(paths.num_requests), view_(view_of(paths, options.num_blocks)),
          policy_(options, view_, requests_, columns.partial, paths.num_nodes, std::move(fit)),
          block_of_(paths.num_nodes), children_(paths.num_nodes + 1), aside_(view_.depth.size()) {
        for (size_t block = view_.depth.size(); --block > 0;) free_.push_back(static_cast<int32_t>(block));
    }

    Counts run() {
        for (size_t request = 0; request < paths_.num_requests; ++request) {
            if (request % 4096 == 4095) interruptible();
            request_ = static_cast<int32_t>(request);
            serve(paths_.nodes + paths_.starts[request],
                  static_cast<size_t>(paths_.starts[request + 1] - paths_.starts[request]));
        }
        return std::move(counts_);
    }

    std::vector<int32_t> evicted; // nodes, in order; filled where that was asked for

private:
    static hazard::View view_of(const Paths &paths, int64_t num_blocks) {
        const size_t rows = std::min(static_cast<size_t>(num_blocks), paths.num_nodes) + 1;
        return {std::vector<int32_t>(rows), std::vector<int32_t>(rows, -1), std::vector<int32_t>(rows),
                std::vector<int64_t>(rows)};
    }

    void serve(const int32_t *path, size_t length) {
        const double now = request_ + 1.0;
        blocks_.resize(length);
        found_.clear();
        size_t hits = length;
        for (size_t depth = length; depth-- > 0;) {
            blocks_[depth] = block_of_[path[depth]];
            if (blocks_[depth] == 0) {
                hits = depth;
            } else {
                found_.push_back(blocks_[depth]);
            }
        }
        counts_.hits.push_back(static_cast<int32_t>(hits));
        requests_[static_cast<size_t>(request_)] = facts(static_cast<int64_t>(length - hits));
        if (!found_.empty()) touch();
        if (found_.size() < length) admit(path, length, now);
        released_.clear();
        for (size_t depth = length; depth-- > 0;)
            if (blocks_[depth] != 0) released_.push_back(blocks_[depth]);
        for (const int32_t block : released_) view_.last_request[block] = request_;
        if (!released_.empty()) policy_.release(released_, now);
    }

    hazard::Request facts(int64_t new_blocks) const {
        const auto at = static_cast<size_t>(request_);
        return {columns_.turns[at],   columns_.prompt_tokens[at], new_blocks, columns_.arrivals[at],
                columns_.returns[at], columns_.categories[at],    columns_.foretold[at]};
    }

    void touch() {
        pinned_.clear();
        for (const int32_t block : found_)
            if (std::exchange(aside_[block], 0) == 0) pinned_.push_back(block);
        if (!pinned_.empty()) policy_.pin(pinned_);
        for (const int32_t block : found_) ++view_.hits[block];
        policy_.hit(found_);
    }

    void admit(const int32_t *path, size_t length, double now) {
        const auto found = static_cast<int64_t>(found_.size());
        const int64_t room = std::min(static_cast<int64_t>(length) - found, num_blocks_ - found);
        for (int64_t needed = resident_ + room - num_blocks_; needed > 0; --needed) evict(now);
        if (room > static_cast<int64_t>(free_.size())) throw std::logic_error("a path names a node twice");
        fresh_.clear();
        for (size_t depth = 0; static_cast<int64_t>(fresh_.size()) < room; ++depth) {
            if (blocks_[depth] != 0) continue;
            const int32_t block = free_.back(), node = path[depth];
            free_.pop_back();
            block_of_[node] = blocks_[depth] = block;
            view_.node[block] = node;
            view_.depth[block] = static_cast<int32_t>(depth);
            view_.hits[block] = 0;
            view_.last_request[block] = request_;
            ++children_of(paths_.parents[node]);
            fresh_.push_back(block);
        }
        if (fresh_.empty()) return;
        resident_ += room;
        counts_.admitted += room;
        std::reverse(fresh_.begin(), fresh_.end());
        policy_.admit(fresh_, now);
    }

    void evict(double now) {
        const int32_t block = leaf_first_ ? leaf_victim() : policy_.victim();
        if (block == 0) throw std::logic_error("the replay core has lost its candidates");
        policy_.evicted(block);
        const int32_t node = std::exchange(view_.node[block], -1), parent = paths_.parents[node];
        block_of_[node] = 0;
        free_.push_back(block);
        --resident_;
        ++counts_.evictions;
        if (list_evicted_) evicted.push_back(node);
        if (--children_of(parent) != 0 || parent < 0) return;
        const int32_t above = block_of_[parent];
        if (std::exchange(aside_[above], 0) != 0) policy_.release({above}, now);
    }

    /// The policy's first choice without a resident child; those before it are set aside until their last child goes.
    int32_t leaf_victim() {
        for (;;) {
            const int32_t block = policy_.victim();
            if (block == 0 || children_of(view_.node[block]) == 0) return block;
            aside_[block] = 1;
            policy_.pin({block});
        }
    }

    /// The entry past the last node counts the roots.
    int32_t &children_of(int32_t node) { return children_[node < 0 ? paths_.num_nodes : static_cast<size_t>(node)]; }

    static void interruptible() {
        nb::gil_scoped_acquire python;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }

    const Paths &paths_;
    const RequestColumns columns_;
    const int64_t num_blocks_;
    const bool leaf_first_, list_evicted_;
    std::vector<hazard::Request> requests_;
    hazard::View view_;
    hazard::Policy policy_;
    std::vector<int32_t> block_of_, children_, free_;
    std::vector<uint8_t> aside_;
    Blocks blocks_, found_, pinned_, fresh_, released_;
    Counts counts_;
    int64_t resident_ = 0;
    int32_t request_ = 0;
};

template <class T> nb::bytes bytes_of_all(const std::vector<T> &values, size_t from = 0) {
    return nb::bytes(reinterpret_cast<const char *>(values.data() + from), (values.size() - from) * sizeof(T));
}

template <class T> std::vector<T> vector_of(nb::handle given) {
    const auto array = nb::cast<nb::ndarray<const T, nb::c_contig, nb::device::cpu>>(given);
    return {array.data(), array.data() + array.size()};
}

/// `learner` is framework_native.hazard.Learner.
void fit(const nb::object &learner, hazard::Returns &returns, double now) {
    nb::gil_scoped_acquire python;
    const nb::object found =
        learner(now, bytes_of_all(returns.keys, returns.num_fitted), bytes_of_all(returns.kind),
                bytes_of_all(returns.start), bytes_of_all(returns.ends()), bytes_of_all(returns.stopped), returns.num);
    returns.num_fitted = returns.keys.size();
    returns.index = vector_of<double>(found[0]);
    returns.edges = vector_of<double>(found[1]);
    returns.fresh = vector_of<double>(found[2]);
    returns.unit = nb::cast<double>(found[3]);
}

template <class T> nb::ndarray<nb::numpy, T, nb::ndim<1>> array_of(std::vector<T> values) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *held) noexcept { delete static_cast<std::vector<T> *>(held); });
    return {kept->data(), {kept->size()}, owner};
}

nb::tuple replay_hazard(nb::object learner, double tolerance, int64_t window, int64_t warm_up,
                        const Array<int32_t> &nodes, const Array<int64_t> &starts, const Array<int32_t> &parents,
                        const Array<int64_t> &prompt_tokens, const Array<int64_t> &turns,
                        const Array<double> &arrivals, const Array<double> &returns, const Array<int32_t> &categories,
                        const Array<int32_t> &foretold, const Array<uint8_t> &partial, int64_t num_blocks,
                        bool leaf_first, bool list_evicted) {
    verify(nodes, starts, parents, 0);
    const size_t count = starts.size() - 1;
    if (prompt_tokens.size() != count || turns.size() != count || arrivals.size() != count || returns.size() != count ||
        categories.size() != count || foretold.size() != count || partial.size() != parents.size())
        throw nb::value_error("facts: one a request, and one a node");
    const Paths paths = paths_of(nodes, starts, parents, nullptr);
    const RequestColumns columns{prompt_tokens.data(), turns.data(),      arrivals.data(), returns.data(),
                    categories.data(),    foretold.data(), partial.data()};
    Counts counts;
    std::vector<int32_t> evicted;
    {
        nb::gil_scoped_release others;
        HazardReplay replay(
            paths, columns, {tolerance, window, warm_up, num_blocks}, leaf_first,
            [&learner](hazard::Returns &kept, double now) { fit(learner, kept, now); }, list_evicted);
        counts = replay.run();
        evicted = std::move(replay.evicted);
    }
    return nb::make_tuple(array_of(std::move(counts.hits)), counts.admitted, counts.evictions, array_of(std::move(evicted)));
}

} // namespace

void bind_hazard(nb::module_ &module) {
    module.def("replay_hazard", &replay_hazard, nb::arg("learner"), nb::kw_only(), nb::arg("tolerance"),
               nb::arg("window"), nb::arg("warm_up"), nb::arg("nodes"), nb::arg("starts"), nb::arg("parents"),
               nb::arg("prompt_tokens"), nb::arg("turns"), nb::arg("arrivals"), nb::arg("returns"),
               nb::arg("categories"), nb::arg("foretold"), nb::arg("partial"), nb::arg("num_blocks"),
               nb::arg("leaf_first"), nb::arg("list_evicted"),
               "Request hits (R,), blocks admitted and evicted, nodes evicted in order; see framework_native.hazard.");
}

} // namespace native
