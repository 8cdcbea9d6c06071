// Columns of a file of plain JSON lines: see framework.interfaces.json_lines. What is unusual is left to others.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace native {

namespace nb = nanobind;

namespace {

enum class Kind { kNumber, kInteger, kIntegers, kText };

struct Span {
    uint32_t offset = 0, size = 0;
    bool known = false;
};

/// A field of every line, and what was read of it so far.
struct Field {
    std::string name;
    Kind kind;
    bool required;
    int64_t low, high;
    std::vector<double> numbers;                        // of a required number
    std::vector<int64_t> integers, starts, optional_at; // of a required integer, or all of a list; lines of an optional one
    std::vector<Span> texts;                            // of a text, once one is known
};

/// One pass over the content; every method answers false for what is not plainly the fields'.
class Lines {
public:
    Lines(const char *content, size_t size, std::vector<Field> &fields)
        : begin_(content), at_(content), end_(content + size), fields_(fields) {
        while (end_ > at_ && end_[-1] == '\n') --end_;
        for (Field &field : fields_) {
            if (field.kind != Kind::kIntegers) continue;
            field.integers.reserve(size / 8);
            field.starts.push_back(0);
        }
    }

    bool read() {
        if (at_ == end_ || static_cast<size_t>(end_ - begin_) >= UINT32_MAX) return false;
        for (;;) {
            if (!line()) return false;
            ++num_lines_;
            if (at_ == end_) return true;
            if (*at_++ != '\n') return false;
        }
    }

    size_t num_lines() const { return num_lines_; }

private:
    bool line() {
        uint64_t seen = 0;
        size_t expected = 0;
        if (!take('{')) return false;
        do {
            blanks();
            const size_t field = name(expected);
            if (field == fields_.size() || (seen >> field & 1) != 0) return false;
            seen |= uint64_t{1} << field;
            expected = field + 1;
            blanks();
            if (!take(':')) return false;
            blanks();
            if (!value(fields_[field])) return false;
            blanks();
        } while (take(','));
        if (!take('}')) return false;
        for (size_t at = 0; at < fields_.size(); ++at)
            if ((seen >> at & 1) == 0 && !missing(fields_[at])) return false;
        return true;
    }

    bool take(char wanted) {
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }

    void blanks() {
        while (at_ != end_ && *at_ == ' ') ++at_;
    }

    /// Which field a quoted name is; the number of fields where it is none. Lines have them in one order.
    size_t name(size_t expected) {
        Span span;
        if (!quoted(span)) return fields_.size();
        for (size_t tried = 0; tried < fields_.size(); ++tried) {
            const size_t at = (expected + tried) % fields_.size();
            const std::string &name = fields_[at].name;
            if (name.size() == span.size && std::memcmp(name.data(), begin_ + span.offset, span.size) == 0) return at;
        }
        return fields_.size();
    }

    bool value(Field &field) {
        if (!field.required && at_ != end_ && *at_ == 'n') return null() && missing(field);
        switch (field.kind) {
        case Kind::kNumber: return number(field);
        case Kind::kInteger: return integer(field);
        case Kind::kIntegers: return integers(field);
        case Kind::kText: return text(field);
        }
        return false;
    }

    bool missing(Field &field) {
        if (field.required) return false;
        if (!field.texts.empty()) field.texts.push_back({});
        return true;
    }

    bool null() {
        if (end_ - at_ < 4 || std::memcmp(at_, "null", 4) != 0) return false;
        at_ += 4;
        return true;
    }

    /// Printable ASCII without escapes.
    bool quoted(Span &span) {
        if (!take('"')) return false;
        const char *first = at_;
        while (at_ != end_ && *at_ != '"') {
            const auto byte = static_cast<unsigned char>(*at_++);
            if (byte < ' ' || byte > '~' || byte == '\\') return false;
        }
        span = {static_cast<uint32_t>(first - begin_), static_cast<uint32_t>(at_ - first), true};
        return take('"');
    }

    /// Up to 18 digits, no leading zero.
    bool digits(int64_t &out) {
        const char *first = at_;
        uint64_t value = 0;
        for (; at_ != end_; ++at_) {
            const unsigned digit = static_cast<unsigned char>(*at_) - static_cast<unsigned>('0');
            if (digit > 9) break;
            value = value * 10 + digit;
        }
        const auto count = at_ - first;
        out = static_cast<int64_t>(value);
        return count > 0 && count <= 18 && (*first != '0' || count == 1);
    }

    /// Both the digits as an integer and the power of ten below are exact doubles, so their quotient is the nearest one.
    bool number(Field &field) {
        static constexpr double kTens[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
        int64_t whole;
        if (!digits(whole) || whole >= int64_t{1} << 53) return false;
        auto value = static_cast<double>(whole);
        if (take('.')) {
            const char *first = at_;
            for (; at_ != end_ && *at_ >= '0' && *at_ <= '9' && at_ - first < 10; ++at_) {
                if (whole >= int64_t{1} << 49) return false;
                whole = whole * 10 + (*at_ - '0');
            }
            const auto places = at_ - first;
            if (places < 1 || places > 9) return false;
            value = static_cast<double>(whole) / kTens[places];
        }
        field.numbers.push_back(value);
        return ends();
    }

    bool integer(Field &field) {
        int64_t value;
        if (!digits(value) || !ends() || value < field.low || value > field.high) return false;
        if (!field.required) field.optional_at.push_back(static_cast<int64_t>(num_lines_));
        field.integers.push_back(value);
        return true;
    }

    /// Whether a number is over: what follows it may not be a part of one.
    bool ends() const { return at_ != end_ && (*at_ == ',' || *at_ == '}' || *at_ == ' '); }

    bool integers(Field &field) {
        if (!take('[')) return false;
        blanks();
        if (!take(']')) {
            do {
                blanks();
                int64_t value;
                if (!digits(value) || value < field.low || value > field.high) return false;
                field.integers.push_back(value);
                blanks();
            } while (take(','));
            if (!take(']')) return false;
        }
        field.starts.push_back(static_cast<int64_t>(field.integers.size()));
        return true;
    }

    bool text(Field &field) {
        Span span;
        if (!quoted(span)) return false;
        if (field.texts.empty()) field.texts.resize(num_lines_);
        field.texts.push_back(span);
        return true;
    }

    const char *begin_, *at_, *end_;
    std::vector<Field> &fields_;
    size_t num_lines_ = 0;
};

template <class T> nb::object array_of(std::vector<T> values) {
    auto *held = new std::vector<T>(std::move(values));
    nb::capsule owner(held, [](void *kept) noexcept { delete static_cast<std::vector<T> *>(kept); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

/// A list with None where a line has no such field; None where no line has it.
nb::object list_of(const Field &field, const char *content, size_t num_lines) {
    if (field.texts.empty() && field.optional_at.empty()) return nb::none();
    nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(num_lines)));
    if (!out.is_valid()) throw nb::python_error();
    size_t next = 0;
    for (size_t line = 0; line < num_lines; ++line) {
        nb::object value = nb::none();
        if (field.kind == Kind::kText) {
            const Span &span = field.texts[line];
            if (span.known) value = nb::str(content + span.offset, span.size);
        } else if (next < field.optional_at.size() && field.optional_at[next] == static_cast<int64_t>(line)) {
            value = nb::int_(field.integers[next++]);
        }
        PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(line), value.release().ptr());
    }
    return out;
}

nb::object column_of(Field &field, const char *content, size_t num_lines) {
    if (field.kind == Kind::kIntegers)
        return nb::make_tuple(array_of(std::move(field.integers)), array_of(std::move(field.starts)));
    if (field.kind == Kind::kText || !field.required) return list_of(field, content, num_lines);
    return field.kind == Kind::kNumber ? array_of(std::move(field.numbers)) : array_of(std::move(field.integers));
}

Kind kind_of(const std::string &name, bool required) {
    if (name == "integer") return Kind::kInteger;
    if (name == "text") return Kind::kText;
    if (required && name == "number") return Kind::kNumber;
    if (required && name == "integers") return Kind::kIntegers;
    throw nb::value_error(("no field of kind " + name + " in the reader of JSON lines").c_str());
}

nb::object json_lines(nb::bytes content, nb::sequence wanted) {
    std::vector<Field> fields;
    for (nb::handle field : wanted) {
        const bool required = nb::cast<bool>(field[2]);
        fields.push_back({nb::cast<std::string>(field[0]), kind_of(nb::cast<std::string>(field[1]), required), required,
                          nb::cast<int64_t>(field[3]), nb::cast<int64_t>(field[4]), {}, {}, {}, {}, {}});
    }
    if (fields.empty() || fields.size() > 64) throw nb::value_error("the reader of JSON lines takes 1 to 64 fields");
    Lines lines(content.c_str(), content.size(), fields);
    bool read;
    {
        nb::gil_scoped_release others;
        read = lines.read();
    }
    if (!read) return nb::none();
    nb::list out;
    for (Field &field : fields) out.append(column_of(field, content.c_str(), lines.num_lines()));
    return nb::tuple(out);
}

} // namespace

void bind_json_lines(nb::module_ &module) {
    module.def("json_lines", &json_lines, nb::arg("content"), nb::arg("fields"),
               "A column a field (name, kind, required, low, high), or None; see framework.interfaces.json_lines.");
}

} // namespace native
