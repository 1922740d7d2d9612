// Tasks on threads. The assignment of tasks to threads does not change the result: every task writes its own part.
#pragma once

#include <atomic>
#include <cstdint>

namespace rv {

// The tasks 0 ... count - 1, handed out in order.
class Tasks {
  public:
    explicit Tasks(int64_t count) : count(count) {}
    bool take(int64_t &task);
    void stop();

  private:
    const int64_t count;
    // On a cache line of its own: every thread writes to it.
    alignas(64) std::atomic<int64_t> next{0};
    char rest[64 - sizeof(std::atomic<int64_t>)];
};

// Runs `worker` on up to `threads` threads; each takes tasks until none is left. Rethrows std::bad_alloc.
void share(int64_t count, int64_t threads, void (*worker)(Tasks &tasks, const void *argument), const void *argument);

} // namespace rv
