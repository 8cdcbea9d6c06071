// Cuts a batch into items, hands them to threads, and binds the whole to Python.
#include "attention.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace nb = nanobind;

namespace native {

#define DECLARE(variant)                                                                                              \
    namespace variant {                                                                                               \
    extern const Kernels kernels;                                                                                     \
    }
DECLARE(plain)
#if defined(NATIVE_X86)
DECLARE(avx2)
DECLARE(avx512)
#endif
#undef DECLARE

namespace {

const Kernels &choose() {
#if defined(NATIVE_X86)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return avx512::kernels;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return avx2::kernels;
#endif
    return plain::kernels;
}

/// Threads that wait for work. They belong to one process: after a fork the child starts its own.
class Workers {
public:
    ~Workers() { stop(); }

    /// Call work(thread) once on each of `count` threads, the caller's included, and wait for all.
    void run(int count, const std::function<void(int)> &work) {
        if (count <= 1) return work(0);
        if (owner_ != getpid()) forget();
        while (static_cast<int>(threads_.size()) < count - 1) {
            const int index = static_cast<int>(threads_.size()) + 1;
            threads_.emplace_back([this, index, seen = round_] { wait(index, seen); });
        }
        {
            const std::lock_guard lock(mutex_);
            work_ = &work, wanted_ = count, left_ = count - 1, ++round_;
        }
        begin_.notify_all();
        work(0);
        std::unique_lock lock(mutex_);
        end_.wait(lock, [&] { return left_ == 0; });
    }

private:
    void wait(int index, uint64_t seen) {
        std::unique_lock lock(mutex_);
        for (;;) {
            begin_.wait(lock, [&] { return stop_ || round_ != seen; });
            if (stop_) return;
            seen = round_;
            if (index >= wanted_) continue;
            const auto *work = work_;
            lock.unlock();
            (*work)(index);
            lock.lock();
            if (--left_ == 0) end_.notify_one();
        }
    }
    void stop() {
        if (owner_ != getpid()) return forget();
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        begin_.notify_all();
        for (std::thread &thread : threads_) thread.join();
    }
    /// In a forked child the threads do not exist: neither join nor destroy their handles.
    void forget() {
        new std::vector<std::thread>(std::move(threads_)); // leaked on purpose: a handle's destructor would terminate
        threads_.clear();
        owner_ = getpid();
    }

    pid_t owner_ = getpid();
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable begin_, end_;
    const std::function<void(int)> *work_ = nullptr;
    int wanted_ = 0, left_ = 0;
    uint64_t round_ = 0;
    bool stop_ = false;
};

/// One call's items, partial results and scratch, and the threads that compute it. Kept for the next call.
struct Workspace {
    struct SplitRow {
        int32_t row;
        int64_t first, count;
    };
    /// Keys [from, to) of a decode row, which another row with the same blocks there may read at the same time.
    struct Piece {
        int32_t row, from, to;
        int64_t partial;
    };

    Workers workers;
    std::vector<Item> items;
    std::vector<Query> queries;
    std::vector<Piece> pieces;
    std::vector<SplitRow> split_rows;
    std::vector<float> scratch, sums, maxima, denominators;
    int64_t work = 0;
};

/// One backend's kernels and workspace. Of several threads that call it, one computes at a time.
class Attention {
public:
    explicit Attention(const Shape &shape) : shape_(shape), kernels_(choose()) {}

    const char *instructions() const { return kernels_.name; }

    /// Refuses before anything is written.
    void attend(const Call &call, int64_t rows, int64_t num_blocks, int threads) {
        for (int32_t row = 0; row < rows; ++row)
            check(call, row, call.contexts[row], call.starts[row + 1] - call.starts[row], num_blocks);
        const std::lock_guard lock(mutex_);
        Workspace &space = space_;
        cut(space, call, rows, threads);
        std::atomic<size_t> next{0};
        threads = static_cast<int>(std::min<size_t>(threads, space.work < kAlone ? 1 : space.items.size()));
        const size_t width = scratch_floats(shape_);
        space.scratch.resize(std::max(space.scratch.size(), width * std::max(threads, 1) + 16));
        auto *lines = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(space.scratch.data()) + 63) / 64 * 64);
        const Partials partials{space.sums.data(), space.maxima.data(), space.denominators.data()};
        space.workers.run(threads, [&](int thread) {
            float *memory = lines + width * thread;
            for (size_t at; (at = next.fetch_add(1)) < space.items.size();)
                kernels_.attend(shape_, call, space.items[at], space.queries.data(), partials, memory);
        });
        for (const auto &[row, first, count] : space.split_rows)
            kernels_.combine(shape_, call, partials, row, first, count);
    }

private:
    static constexpr int64_t kAlone = 1 << 18; // keys x kv heads x queries x dim below which a second thread costs more

    void cut(Workspace &space, const Call &call, int64_t rows, int threads) const {
        space.items.clear();
        space.queries.clear();
        space.pieces.clear();
        space.split_rows.clear();
        space.work = 0;
        int64_t partial = 0;
        for (int32_t row = 0; row < rows; ++row) {
            const int32_t context = call.contexts[row], queries = call.starts[row + 1] - call.starts[row];
            if (context == 0) {
                blank(call, row);
                continue;
            }
            space.work += static_cast<int64_t>(context) * queries * shape_.num_kv_heads * shape_.head_dim;
            if (queries == 1) {
                partial = cut_decode(space, call, row, partial);
            } else {
                cut_prefill(space, call, row, queries);
            }
        }
        join_pieces(space, call);
        const size_t places = static_cast<size_t>(partial) * shape_.num_heads;
        space.sums.resize(std::max(space.sums.size(), places * shape_.value_dim));
        space.maxima.resize(std::max(space.maxima.size(), places));
        space.denominators.resize(std::max(space.denominators.size(), places));
        share_heads(space, threads);
    }

    int32_t split_blocks() const { return std::max(1, kSplitTokens / shape_.block_size); }

    int64_t cut_decode(Workspace &space, const Call &call, int32_t row, int64_t partial) const {
        const int32_t context = call.contexts[row], split = split_blocks() * shape_.block_size;
        const int32_t begin = shape_.first(context - 1);
        const int32_t first = begin / split, last = (context - 1) / split;
        if (first != last) space.split_rows.push_back({row, partial, last - first + 1});
        for (int32_t at = first; at <= last; ++at) {
            const int32_t from = std::max(begin, at * split), to = std::min(context, (at + 1) * split);
            const int64_t place = first == last ? -1 : partial++;
            if (to - from == split) {
                space.pieces.push_back({row, from, to, place});
                continue;
            }
            space.queries.push_back({call.starts[row], context - 1, place});
            add_heads(space, {row, from, to, 0, 0, space.queries.size() - 1, space.queries.size(), false}, kMaxHeads);
        }
        return partial;
    }

    /// Whole pieces of decode rows become items; rows with the same blocks in theirs share one. Sources: Hydragen,
    /// arXiv:2402.05099; FlashInfer's cascade attention.
    void join_pieces(Workspace &space, const Call &call) const {
        const auto blocks = [&](const Workspace::Piece &piece) {
            return call.tables + piece.row * call.table_width + piece.from / shape_.block_size;
        };
        const auto order = [&](const Workspace::Piece &a, const Workspace::Piece &b) {
            return a.from != b.from ? (a.from < b.from ? -1 : 1)
                                    : std::memcmp(blocks(a), blocks(b), sizeof(int32_t) * split_blocks());
        };
        auto &pieces = space.pieces;
        std::stable_sort(pieces.begin(), pieces.end(), [&](const auto &a, const auto &b) { return order(a, b) < 0; });
        const auto width = static_cast<size_t>(tile_queries(shape_));
        for (size_t begin = 0, end; begin < pieces.size(); begin = end) {
            const size_t first = space.queries.size();
            for (end = begin; end < pieces.size() && end - begin < width && order(pieces[begin], pieces[end]) == 0; ++end)
                space.queries.push_back(
                    {call.starts[pieces[end].row], call.contexts[pieces[end].row] - 1, pieces[end].partial});
            add_heads(space, {pieces[begin].row, pieces[begin].from, pieces[begin].to, 0, 0, first, space.queries.size(), false},
                      end - begin == 1 ? kMaxHeads : 1);
        }
    }

    void add_heads(Workspace &space, Item item, int32_t most) const {
        for (item.head = 0; item.head < shape_.num_kv_heads; item.head = item.head_end) {
            item.head_end = std::min(shape_.num_kv_heads, item.head + most);
            space.items.push_back(item);
        }
    }

    void cut_prefill(Workspace &space, const Call &call, int32_t row, int32_t queries) const {
        const int32_t width = tile_queries(shape_), base = call.contexts[row] - queries;
        for (int32_t first = 0; first < queries; first += width) {
            const int32_t last = std::min(queries, first + width);
            const int32_t from = shape_.first(base + first);
            const size_t begin = space.queries.size();
            for (int32_t query = first; query < last; ++query)
                space.queries.push_back({call.starts[row] + query, base + query, -1});
            add_heads(space, {row, from, base + last, 0, 0, begin, space.queries.size(), true}, 1);
        }
    }

    /// With fewer items than threads, heads are shared out too; a head's numbers do not depend on it.
    void share_heads(Workspace &space, int threads) const {
        if (space.items.empty() || space.items.size() >= static_cast<size_t>(threads) * 2) return;
        std::vector<Item> finer;
        for (const Item &item : space.items)
            for (int32_t head = item.head; head < item.head_end; ++head) {
                Item part = item;
                part.head = head;
                part.head_end = head + 1;
                finer.push_back(part);
            }
        space.items = std::move(finer);
    }

    void check(const Call &call, int32_t row, int32_t context, int32_t queries, int64_t num_blocks) const {
        if (context == 0 && queries >= 0) return; // blank
        const int64_t needed = (static_cast<int64_t>(context) + shape_.block_size - 1) / shape_.block_size;
        if (needed > call.table_width || context < 0 || queries < 0 || queries > context)
            throw std::invalid_argument("row " + std::to_string(row) + " has " + std::to_string(queries) +
                                        " queries and a context of " + std::to_string(context) +
                                        " tokens; its block table holds " +
                                        std::to_string(call.table_width * shape_.block_size) + ": widen it");
        for (int64_t at = 0; at < needed; ++at) {
            const int32_t block = call.tables[row * call.table_width + at];
            if (block < 0 || block >= num_blocks)
                throw std::invalid_argument("the block table of row " + std::to_string(row) + " names block " +
                                            std::to_string(block) + ", outside the pool of " +
                                            std::to_string(num_blocks));
        }
    }

    void blank(const Call &call, int32_t row) const {
        const size_t size = shape_.format == Format::f32 ? 4 : 2;
        for (int64_t token = call.starts[row]; token < call.starts[row + 1]; ++token)
            for (int32_t head = 0; head < shape_.num_heads; ++head) {
                char *out = static_cast<char *>(call.out) +
                            size * (token * call.out_strides.token + head * call.out_strides.head);
                std::fill(out, out + size * shape_.value_dim, 0);
                if (call.lse != nullptr)
                    call.lse[token * shape_.num_heads + head] = -std::numeric_limits<float>::infinity();
            }
    }

    Shape shape_;
    const Kernels &kernels_;
    std::mutex mutex_;
    Workspace space_;
};

template <class T> T *pointer(int64_t address) { return reinterpret_cast<T *>(address); }

Strides strides(nb::tuple given) {
    return {nb::cast<int64_t>(given[0]), nb::cast<int64_t>(given[1]), nb::cast<int64_t>(given[2])};
}

} // namespace

void bind_attention(nb::module_ &module) {
    nb::class_<Attention>(module, "Attention", "Paged attention on the CPU; see framework_native.backend.")
        .def("__init__",
             [](Attention *self, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t value_dim,
                int32_t block_size, bool latent, float scale, float soft_cap, int32_t window, int32_t span, int32_t format,
                int32_t kv_format) {
                 new (self) Attention(
                     Shape{num_heads, num_kv_heads, head_dim, value_dim, block_size, latent, scale, soft_cap, window,
                           span, static_cast<Format>(format), static_cast<Format>(kv_format)});
             },
             nb::kw_only(), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
             nb::arg("value_dim"), nb::arg("block_size"), nb::arg("latent"), nb::arg("scale"), nb::arg("soft_cap"),
             nb::arg("window"), nb::arg("span"), nb::arg("format"), nb::arg("kv_format"))
        .def_prop_ro("instructions", &Attention::instructions)
        .def("attend",
             [](Attention &self, int64_t q, nb::tuple q_strides, int64_t out, nb::tuple out_strides, int64_t k,
                int64_t v, nb::tuple kv_strides, int64_t k_scales, int64_t v_scales, nb::tuple scale_strides, int64_t num_blocks, int64_t sinks, int64_t slopes, int64_t lse,
                int64_t tables, int64_t table_width, int64_t contexts, int64_t starts, int64_t rows, int threads) {
                 const Call call{pointer<const void>(q),         pointer<void>(out),
                                 pointer<const void>(k),         pointer<const void>(v),
                                 pointer<const float>(sinks),    pointer<const float>(slopes),
                                 pointer<float>(lse),            pointer<const int32_t>(tables),
                                 pointer<const int32_t>(contexts), pointer<const int32_t>(starts),
                                 strides(q_strides),             strides(out_strides),
                                 strides(kv_strides),            pointer<const float>(k_scales),
                                 pointer<const float>(v_scales), strides(scale_strides),
                                 table_width};
                 const nb::gil_scoped_release released;
                 self.attend(call, rows, num_blocks, threads);
             });
}

} // namespace native
