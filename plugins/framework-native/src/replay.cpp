// Cache-only replay of one cache: the request model with the framework's own policies in C++.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "request_model.hpp"

namespace native {

namespace {

nb::tuple replay(const std::string &name, bool aged, const Array<int32_t> &nodes,
                 const Array<int64_t> &starts, const Array<int32_t> &parents, std::optional<Array<int32_t>> next,
                 int64_t num_blocks, bool leaf_first, bool bypass) {
    verify(nodes, starts, parents, next ? next->size() : 0);
    const Paths paths = paths_of(nodes, starts, parents, next ? next->data() : nullptr);
    Counts counts;
    {
        nb::gil_scoped_release others;
        const auto wanted = static_cast<size_t>(num_blocks) + (bypass ? paths.longest : 0);
        Residents residents(std::min(wanted, paths.num_nodes) + 1);
        const Switches to{num_blocks, leaf_first, bypass};
        counts = with_order(name, aged, residents, [&](auto order) {
            return Replay<decltype(order)>(paths, to, residents, std::move(order)).run();
        });
    }
    auto *hits = new std::vector<int32_t>(std::move(counts.hits));
    nb::capsule owner(hits, [](void *held) noexcept { delete static_cast<std::vector<int32_t> *>(held); });
    return nb::make_tuple(nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(hits->data(), {paths.num_requests}, owner),
                          counts.admitted, counts.evictions);
}

} // namespace

void bind_replay(nb::module_ &module) {
    module.def("replay", &replay, nb::arg("policy"), nb::arg("aged"), nb::kw_only(), nb::arg("nodes"),
               nb::arg("starts"), nb::arg("parents"), nb::arg("next_requests").none(), nb::arg("num_blocks"),
               nb::arg("leaf_first"), nb::arg("bypass"),
               "Request hits (R,), blocks admitted and evicted; see framework_native.replay.");
}

} // namespace native
