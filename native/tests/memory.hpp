// Guarded memory, which detects accesses outside of a buffer, and tensors in it.
#ifndef REARVIEW_TESTS_MEMORY_HPP
#define REARVIEW_TESTS_MEMORY_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reference.hpp"

inline int64_t bytes_of(int64_t dtype) { return dtype == RV_FLOAT64 ? 8 : dtype == RV_FLOAT32 ? 4 : 2; }

// A block whose last byte is followed by an unreadable page, with a canary before it. The address sanitizer checks both
// sides itself, and more closely, so there it is a plain block.
class Guarded {
  public:
    explicit Guarded(size_t size) : size_(size) {
#if defined(__SANITIZE_ADDRESS__)
        start_ = static_cast<unsigned char *>(std::malloc(size ? size : 1));
#else
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        mapped_ = ((size + CANARY + page - 1) / page + 1) * page;
        whole_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (whole_ == MAP_FAILED) throw std::runtime_error("mmap failed");
        unsigned char *end = static_cast<unsigned char *>(whole_) + mapped_ - page;
        mprotect(end, page, PROT_NONE);
        start_ = end - size;
        std::memset(start_ - CANARY, 0x5c, CANARY);
#endif
    }
    ~Guarded() {
#if defined(__SANITIZE_ADDRESS__)
        std::free(start_);
#else
        munmap(whole_, mapped_);
#endif
    }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;

    unsigned char *data() const { return start_; }
    size_t size() const { return size_; }
    bool canary_lives() const {
#if !defined(__SANITIZE_ADDRESS__)
        for (size_t i = 1; i <= CANARY; i++)
            if (start_[-ptrdiff_t(i)] != 0x5c) return false;
#endif
        return true;
    }

  private:
    static constexpr size_t CANARY = 512;
    size_t size_, mapped_ = 0;
    void *whole_ = nullptr;
    unsigned char *start_ = nullptr;
};

constexpr unsigned char NAN_BYTE = 0xff;  // every byte of a number: NaN in each of the four types
constexpr unsigned char UNWRITTEN = 0xa5; // the contents of an output before it is written, and between its rows

// Rows of `shape[3]` numbers, `pad` apart, the other axes in the given order from the outermost in; an axis that is
// shared has stride 0.
struct Layout {
    int order[3] = {0, 1, 2};
    int64_t pad = 0;
    bool shared[3] = {false, false, false};
};

class Tensor {
  public:
    Tensor(int64_t dtype, std::vector<int64_t> shape, const Layout &layout, unsigned char fill) : shape_(std::move(shape)) {
        view.dtype = dtype;
        int64_t stride = shape_[3] + layout.pad, last = shape_[3] - 1;
        view.stride[3] = 1;
        for (int i = 2; i >= 0; i--) {
            const int axis = layout.order[i];
            view.stride[axis] = layout.shared[axis] ? 0 : stride;
            if (!layout.shared[axis]) {
                last += (shape_[size_t(axis)] - 1) * stride;
                stride *= shape_[size_t(axis)];
            }
        }
        // Nothing follows the last number, not even the padding of its row.
        memory_ = std::make_unique<Guarded>(size_t((last + 1) * bytes_of(dtype)));
        view.data = memory_->data();
        refill(fill);
    }

    void refill(unsigned char fill) { std::memset(memory_->data(), fill, memory_->size()); }
    double get(int64_t b, int64_t h, int64_t t, int64_t d) const {
        return reference::load(view, reference::at(view, b, h, t, d));
    }
    void set(int64_t b, int64_t h, int64_t t, int64_t d, double value) {
        reference::store(view, reference::at(view, b, h, t, d), value);
    }
    // Whether anything was written before it, or between its rows.
    bool wrote_outside() const {
        std::vector<bool> mine(memory_->size(), false);
        for (int64_t b = 0; b < shape_[0]; b++)
            for (int64_t h = 0; h < shape_[1]; h++)
                for (int64_t t = 0; t < shape_[2]; t++)
                    for (int64_t d = 0; d < shape_[3]; d++)
                        for (int64_t i = 0; i < bytes_of(view.dtype); i++)
                            mine[size_t(reference::at(view, b, h, t, d) * bytes_of(view.dtype) + i)] = true;
        for (size_t i = 0; i < mine.size(); i++)
            if (!mine[i] && memory_->data()[i] != UNWRITTEN) return true;
        return !memory_->canary_lives();
    }
    std::vector<unsigned char> bytes() const {
        return std::vector<unsigned char>(memory_->data(), memory_->data() + memory_->size());
    }
    const std::vector<int64_t> &shape() const { return shape_; }

    rv_tensor view{};

  private:
    std::vector<int64_t> shape_;
    std::unique_ptr<Guarded> memory_;
};

// An array of plain numbers in guarded memory.
template <class Number> class Array {
  public:
    explicit Array(const std::vector<Number> &numbers) : memory_(numbers.size() * sizeof(Number)) {
        if (!numbers.empty()) std::memcpy(memory_.data(), numbers.data(), memory_.size());
    }
    Number *data() const { return reinterpret_cast<Number *>(memory_.data()); }

  private:
    Guarded memory_;
};

#endif
