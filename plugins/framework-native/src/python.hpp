// What the core needs of Python: the framework's classes, its typed errors, token arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "block_hash.hpp"

namespace native {

namespace nb = nanobind;

/// Names of what the core reads of a RequestInfo and of a Hit, made once.
struct Keys {
    static nb::object name(const char *text) { return nb::steal(PyUnicode_InternFromString(text)); }
    nb::object id = name("id"), space = name("namespace"), priority = name("priority"), tenant = name("tenant"),
               version = name("version"), num_tokens = name("num_tokens"), blocks = name("blocks"), hashes = name("hashes"),
               contents = name("contents");
};

inline nb::object get(nb::handle from, const nb::object &key) { return from.attr(key); }

/// The classes and functions of the framework that the core makes or calls, imported once an allocator.
struct Framework {
    Framework()
        : errors(nb::module_::import_("framework.errors")), hit(allocator("Hit")), event(allocator("CacheEvent")),
          change(types("TableChange")), copy(types("BlockCopy")), as_tokens(types("as_tokens")),
          count_of(nb::module_::import_("framework.paged.table").attr("count_of")),
          frombuffer(nb::module_::import_("numpy").attr("frombuffer")),
          int32(nb::module_::import_("numpy").attr("dtype")("int32")) {}

    nb::object errors, hit, event, change, copy, as_tokens, count_of, frombuffer, int32;

    [[noreturn]] void raise(const char *kind, const std::string &text) const {
        PyErr_SetString(nb::object(errors.attr(kind)).ptr(), text.c_str());
        throw nb::python_error();
    }

    /// An integer of at least `least`, or the framework's own refusal.
    int64_t count(const char *name, nb::handle value, int64_t least) const {
        return nb::cast<int64_t>(count_of(name, value, least));
    }

    Keys keys;

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
        if (!borrow() || (verify && negative())) {
            release();
            array_ = framework.as_tokens(tokens);
            if (!borrow()) throw nb::type_error("as_tokens gave no int32 array");
        }
    }
    ~Tokens() { release(); }
    Tokens(const Tokens &) = delete;
    Tokens &operator=(const Tokens &) = delete;

    const int32_t *data() const { return data_; }
    int64_t size() const { return size_; }
    /// The array itself, from `first` to before `last`.
    nb::object slice(int64_t first, int64_t last) const { return array_[nb::slice(nb::int_(first), nb::int_(last), nb::none())]; }

private:
    bool borrow() {
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
