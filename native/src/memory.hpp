// Large blocks of memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace RV_NAMESPACE {

struct Free {
    void operator()(void *memory) const { std::free(memory); }
};

// Not initialised, aligned to cache lines, and freed with std::free. The first access to each page of new memory costs as
// much as computing thousands of numbers, so large blocks ask for large pages.
inline void *allocate(size_t bytes) {
    constexpr size_t LINE = 64, LARGE_PAGE = size_t(2) << 20;
    size_t unit = bytes >= 2 * LARGE_PAGE ? LARGE_PAGE : LINE;
    size_t size = (bytes + unit - 1) / unit * unit;
    void *memory = std::aligned_alloc(unit, size ? size : unit);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (unit == LARGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory;
}

template <class T> using Block = std::unique_ptr<T[], Free>;

template <class T> Block<T> block_of(size_t count) { return Block<T>(static_cast<T *>(allocate(count * sizeof(T)))); }

} // namespace RV_NAMESPACE
