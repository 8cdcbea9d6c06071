// What the core needs of Python: the framework's classes, its typed errors, token arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <string>

#include "block_hash.hpp"

namespace native {

namespace nb = nanobind;

/// An attribute of a class with slots. Of an instance of just that class it is read, or for the first time written,
/// where the instance keeps it; of anything else it is asked for by name.
class Key {
public:
    Key(nb::handle type, const char *name)
        : name_(nb::steal(PyUnicode_InternFromString(name))), type_(nb::borrow(type)) {
        const nb::object slot = type.attr(name);
        if (Py_TYPE(slot.ptr()) != &PyMemberDescr_Type) return;
        const PyMemberDef *member = reinterpret_cast<PyMemberDescrObject *>(slot.ptr())->d_member;
        if (member->type == T_OBJECT_EX && member->flags == 0) offset_ = member->offset;
    }

    nb::object get(nb::handle from) const {
        if (offset_ > 0 && reinterpret_cast<PyObject *>(Py_TYPE(from.ptr())) == type_.ptr())
            if (PyObject *found = *place(from)) return nb::borrow(found);
        PyObject *found = PyObject_GetAttr(from.ptr(), name_.ptr());
        if (found == nullptr) throw nb::python_error();
        return nb::steal(found);
    }
    /// Of an instance that was just made.
    void set(nb::handle made, nb::object value) const {
        if (offset_ > 0) {
            *place(made) = value.release().ptr();
        } else if (PyObject_GenericSetAttr(made.ptr(), name_.ptr(), value.ptr()) != 0) {
            throw nb::python_error();
        }
    }

private:
    PyObject **place(nb::handle of) const {
        return reinterpret_cast<PyObject **>(reinterpret_cast<char *>(of.ptr()) + offset_);
    }
    nb::object name_, type_;
    Py_ssize_t offset_ = 0;
};

/// What the core reads of a RequestInfo and of a Hit.
struct Keys {
    Keys(nb::handle request, nb::handle hit)
        : id(request, "id"), space(request, "namespace"), priority(request, "priority"), tenant(request, "tenant"),
          version(hit, "version"), num_tokens(hit, "num_tokens"), blocks(hit, "blocks"), hashes(hit, "hashes"),
          num_null(hit, "num_null") {}
    Key id, space, priority, tenant, version, num_tokens, blocks, hashes, num_null;
};

inline nb::object get(nb::handle from, const Key &key) { return key.get(from); }

/// The head of a NumPy array, as NumPy 1 and 2 lay it out (PyArrayObject_fields in ndarraytypes.h). An allocator trusts
/// it only after comparing it with the buffer protocol, which costs about 0.2 microseconds a call.
struct ArrayHead {
    PyObject_HEAD
    char *data;
    int num_dims;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;

    static constexpr int kPlain = 0x001 | 0x100; // C contiguous, aligned
};

/// The classes and functions of the framework that the core makes or calls, imported once an allocator.
struct Framework {
    Framework()
        : errors(nb::module_::import_("framework.errors")), hit(allocator("Hit")), event(allocator("CacheEvent")),
          change(types("TableChange")), copy(types("BlockCopy")), as_tokens(types("as_tokens")),
          count_of(nb::module_::import_("framework.paged.table").attr("count_of")),
          frombuffer(nb::module_::import_("numpy").attr("frombuffer")),
          int32(nb::module_::import_("numpy").attr("dtype")("int32")) {
        const nb::object sample = nb::module_::import_("numpy").attr("arange")(3, nb::arg("dtype") = int32);
        Py_buffer view;
        if (PyObject_GetBuffer(sample.ptr(), &view, PyBUF_ND) != 0) throw nb::python_error();
        ndarray = nb::borrow(reinterpret_cast<PyObject *>(Py_TYPE(sample.ptr())));
        const ArrayHead *head = array_head(sample);
        if (head == nullptr || head->data != view.buf || head->shape[0] != 3) ndarray = nb::none();
        PyBuffer_Release(&view);
    }

    nb::object errors, hit, event, change, copy, as_tokens, count_of, frombuffer, int32, ndarray;

    /// Of a contiguous 1-d int32 array, else nullptr.
    const ArrayHead *array_head(nb::handle array) const {
        if (reinterpret_cast<PyObject *>(Py_TYPE(array.ptr())) != ndarray.ptr()) return nullptr;
        const auto *head = reinterpret_cast<const ArrayHead *>(array.ptr());
        const bool fits = head->num_dims == 1 && head->dtype == int32.ptr() &&
                          (head->flags & ArrayHead::kPlain) == ArrayHead::kPlain;
        return fits ? head : nullptr;
    }

    /// `Hit(num_tokens, blocks, hashes, version, 0)`. Its slots are filled at once: a frozen dataclass's `__init__` goes
    /// through `object.__setattr__` for each, in Python.
    nb::object make_hit(int64_t num_tokens, nb::handle blocks, nb::handle hashes, int64_t version) const {
        auto *type = reinterpret_cast<PyTypeObject *>(hit.ptr());
        nb::object made = nb::steal(type->tp_alloc(type, 0));
        if (!made.is_valid()) throw nb::python_error();
        keys.num_tokens.set(made, nb::int_(num_tokens));
        keys.blocks.set(made, nb::borrow(blocks));
        keys.hashes.set(made, nb::borrow(hashes));
        keys.version.set(made, nb::int_(version));
        keys.num_null.set(made, nb::int_(0)); // no windows here
        return made;
    }

    [[noreturn]] void raise(const char *kind, const std::string &text) const {
        PyErr_SetString(nb::object(errors.attr(kind)).ptr(), text.c_str());
        throw nb::python_error();
    }

    /// An integer of at least `least`, or the framework's own refusal.
    int64_t count(const char *name, nb::handle value, int64_t least) const {
        if (PyLong_CheckExact(value.ptr())) {
            int overflow = 0;
            const int64_t found = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
            if (overflow == 0 && found >= least) return found;
        }
        return nb::cast<int64_t>(count_of(name, value, least));
    }

    /// `len(tokens)`.
    int64_t length(nb::handle tokens) const {
        const ArrayHead *head = array_head(tokens);
        return head != nullptr ? static_cast<int64_t>(head->shape[0]) : static_cast<int64_t>(nb::len(tokens));
    }

    Keys keys{types("RequestInfo"), hit};

private:
    static nb::object allocator(const char *name) {
        return nb::module_::import_("framework.interfaces.allocator").attr(name);
    }
    static nb::object types(const char *name) { return nb::module_::import_("framework.types").attr(name); }
};

inline std::string text_of(nb::handle value) { return nb::str(value).c_str(); }
inline std::string repr_of(nb::handle value) { return nb::repr(value).c_str(); }

/// Token ids of a caller's array, borrowed while this lives; anything but a contiguous int32 array goes through
/// `as_tokens`, which refuses what are no ids.
class Tokens {
public:
    Tokens(const Framework &framework, nb::handle tokens, bool verify) {
        array_ = nb::borrow(tokens);
        if (!borrow(framework) || (verify && negative())) {
            release();
            array_ = framework.as_tokens(tokens);
            if (!borrow(framework)) throw nb::type_error("as_tokens gave no int32 array");
        }
    }
    ~Tokens() { release(); }
    Tokens(const Tokens &) = delete;
    Tokens &operator=(const Tokens &) = delete;

    const int32_t *data() const { return data_; }
    int64_t size() const { return size_; }
    nb::handle array() const { return array_; }
    /// The array itself, from `first` to before `last`.
    nb::object slice(int64_t first, int64_t last) const { return array_[nb::slice(nb::int_(first), nb::int_(last), nb::none())]; }

private:
    bool borrow(const Framework &framework) {
        if (const ArrayHead *head = framework.array_head(array_)) {
            data_ = reinterpret_cast<const int32_t *>(head->data);
            size_ = head->shape[0];
            return true;
        }
        if (PyObject_GetBuffer(array_.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS) != 0) {
            PyErr_Clear();
            return false;
        }
        held_ = true;
        const bool fits = view_.ndim == 1 && view_.itemsize == 4 && view_.format != nullptr && view_.format[0] == 'i' &&
                          view_.format[1] == 0;
        if (!fits) {
            release();
            return false;
        }
        data_ = static_cast<const int32_t *>(view_.buf);
        size_ = view_.shape[0];
        return true;
    }
    bool negative() const {
        int32_t all = 0;
        for (int64_t at = 0; at < size(); ++at) all |= data()[at];
        return all < 0;
    }
    void release() {
        if (held_) PyBuffer_Release(&view_);
        held_ = false;
    }

    nb::object array_;
    Py_buffer view_{};
    const int32_t *data_ = nullptr;
    int64_t size_ = 0;
    bool held_ = false;
};

inline nb::bytes bytes_of(const BlockHash &block_hash) { return nb::bytes(block_hash.data(), block_hash.size()); }

inline BlockHash hash_of(nb::handle bytes) {
    if (!PyBytes_Check(bytes.ptr())) throw nb::type_error("a block hash must be bytes");
    return BlockHash(PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())));
}

} // namespace native
