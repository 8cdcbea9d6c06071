// Memory of large arrays that are read here and there.
#pragma once

#include <cstddef>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace native {

/// Starts on a cache line, so that 16 tokens lie on one. Of arrays from some megabytes up the kernel is asked for huge
/// pages: with small ones each access far from the last waits for the page tables first.
template <class T> struct OnPages {
    using value_type = T;
    static constexpr size_t kLine = 64, kHuge = size_t{2} << 20;

    OnPages() = default;
    template <class Other> OnPages(const OnPages<Other> &) noexcept {}
    T *allocate(size_t count) {
        const size_t bytes = count * sizeof(T);
        void *at = ::operator new(bytes, std::align_val_t{alignment(bytes)});
#if defined(__linux__)
        if (alignment(bytes) == kHuge) madvise(at, bytes, MADV_HUGEPAGE); // advice: to be refused is no error
#endif
        return static_cast<T *>(at);
    }
    void deallocate(T *at, size_t count) noexcept {
        ::operator delete(at, std::align_val_t{alignment(count * sizeof(T))});
    }
    template <class Other> bool operator==(const OnPages<Other> &) const noexcept { return true; }
    template <class Other> bool operator!=(const OnPages<Other> &) const noexcept { return false; }

private:
    static constexpr size_t alignment(size_t bytes) { return bytes >= 2 * kHuge ? kHuge : kLine; }
};

} // namespace native
