// The extension module framework_native._core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "allocator.hpp"

namespace native {
namespace {

/// A live NumPy view of one column, (num_blocks + 1,); it keeps the columns alive, not the allocator.
template <class T> nb::object column(const std::shared_ptr<Pool> &pool, const Column<T> &values) {
    nb::capsule owner(new std::shared_ptr<Pool>(pool),
                      [](void *held) noexcept { delete static_cast<std::shared_ptr<Pool> *>(held); });
    const int64_t stride = sizeof(Facts) / sizeof(T);
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {pool->size()}, owner, {stride}));
}

nb::dict columns(const Core &core) {
    const std::shared_ptr<Pool> pool = core.pool();
    nb::dict out;
    out["ref"] = column(pool, pool->ref);
    out["depth"] = column(pool, pool->depth);
    out["hits"] = column(pool, pool->hits);
    out["tenant"] = column(pool, pool->tenant);
    out["children"] = column(pool, pool->children);
    out["candidate"] = column(pool, pool->candidate);
    out["admitted"] = column(pool, pool->admitted);
    out["last_access"] = column(pool, pool->last_access);
    out["priority"] = column(pool, pool->priority);
    out["next_use"] = column(pool, pool->next_use);
    return out;
}

int core_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    Core *core = nb::inst_ptr<Core>(self);
    Py_VISIT(core->hasher.ptr());
    Py_VISIT(core->listener.ptr());
    if (core->python_policy != nullptr) {
        Py_VISIT(core->python_policy->guard.ptr());
        Py_VISIT(core->python_policy->candidates.ptr());
    }
    for (auto &[id, table] : core->tables) Py_VISIT(table.request.ptr());
    return 0;
}

int core_clear(PyObject *self) {
    Core *core = nb::inst_ptr<Core>(self);
    core->hasher.reset();
    core->listener.reset();
    if (core->python_policy != nullptr) {
        core->python_policy->guard.reset();
        core->python_policy->candidates.reset();
    }
    return 0;
}

PyType_Slot core_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(core_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(core_clear)},
    {0, nullptr},
};

nb::object hashes_item(const BlockHashes &hashes, nb::handle index) {
    const auto size = static_cast<Py_ssize_t>(hashes.list.size());
    if (PySlice_Check(index.ptr())) {
        Py_ssize_t start, stop, step;
        if (PySlice_Unpack(index.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
        const Py_ssize_t count = PySlice_AdjustIndices(size, &start, &stop, step);
        nb::list out;
        for (Py_ssize_t at = 0; at < count; ++at) out.append(bytes_of(hashes.list.all()[start + at * step]));
        return nb::tuple(out);
    }
    auto at = nb::cast<Py_ssize_t>(index);
    if (at < 0) at += size;
    if (at < 0 || at >= size) throw nb::index_error("no such block");
    return bytes_of(hashes.list.all()[at]);
}

bool hashes_equal(const BlockHashes &hashes, nb::handle other) {
    if (nb::isinstance<BlockHashes>(other)) {
        return hashes.list.all() == nb::cast<BlockHashes &>(other).list.all();
    }
    if (!PySequence_Check(other.ptr()) || nb::len(other) != hashes.list.size()) return false;
    for (size_t at = 0; at < hashes.list.size(); ++at)
        if (!bytes_of(hashes.list.all()[at]).equal(other[at])) return false;
    return true;
}

} // namespace

void bind_core(nb::module_ &module) {
    nb::class_<BlockHashes>(module, "BlockHashes", "Chained hashes of a prompt's full blocks: a sequence of bytes.")
        .def("__len__", [](const BlockHashes &hashes) { return hashes.list.size(); })
        .def("__getitem__", &hashes_item)
        .def("__eq__", &hashes_equal)
        .def("__repr__", [](const BlockHashes &hashes) { return "BlockHashes(" + std::to_string(hashes.list.size()) + ")"; })
        .def_prop_ro("namespace", [](const BlockHashes &hashes) { return hashes.space; });

    nb::class_<Core>(module, "Core", nb::type_slots(core_slots), "The block manager; see framework_native.allocator.")
        .def("__init__",
             [](Core *self, int32_t num_blocks, int32_t block_size, int64_t reserve, bool leaf_only, bool share_tails,
                bool collision_resistant, bool native_sha256, bool native_xxh3, bool native_lru) {
                 new (self) Core(Options{num_blocks, block_size, reserve, leaf_only, share_tails, collision_resistant,
                                         native_sha256, native_xxh3, native_lru});
             },
             nb::kw_only(), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("reserve"), nb::arg("leaf_only"),
             nb::arg("share_tails"), nb::arg("collision_resistant"), nb::arg("native_sha256"), nb::arg("native_xxh3"),
             nb::arg("native_lru"))
        .def("bind", &Core::bind, nb::arg("hasher"), nb::arg("guard").none(), nb::arg("candidates").none())
        .def("columns", &columns)
        .def("listen", &Core::listen, nb::arg("listener").none())
        .def("advance", &Core::advance)
        .def("lookup", &Core::lookup, nb::arg(), nb::arg(), nb::arg().none())
        .def("fits", &Core::fits)
        .def("allocate", &Core::allocate, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
        .def("extend", &Core::extend, nb::arg().none(), nb::arg().none())
        .def("commit", &Core::commit, nb::arg().none(), nb::arg())
        .def("publish", &Core::publish_ahead, nb::arg().none(), nb::arg())
        .def("fork", &Core::fork, nb::arg().none(), nb::arg(), nb::arg().none())
        .def("foresee", &Core::foresee, nb::arg().none(), nb::arg())
        .def("unref_leading", &Core::unref_leading, nb::arg().none(), nb::arg().none(), nb::arg().none())
        .def("discard", &Core::discard, nb::arg().none())
        .def("free", &Core::free, nb::arg().none())
        .def("table", &Core::table, nb::arg().none())
        .def("reset", &Core::reset)
        .def("stats", &Core::stats)
        .def("hashed_blocks", &Core::hashed_blocks)
        .def("block_hash", &Core::block_hash)
        .def("parent", &Core::parent)
        .def("hashes", &Core::hashes_held, nb::arg().none())
        .def("state", &Core::state);
}

void bind_attention(nb::module_ &module);
void bind_replay(nb::module_ &module);

} // namespace native

NB_MODULE(_core, module) {
    nanobind::set_leak_warnings(false); // an allocator alive at exit is no fault
    native::bind_core(module);
    native::bind_attention(module);
    native::bind_replay(module);
}
