#include "threads.hpp"
#include "rearview.h"

#include <algorithm>
#include <new>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace rv {
namespace {

std::atomic<rv_parallel> given{nullptr};
std::atomic<bool> forked{false};

#if !defined(_WIN32)
// The threads of a pool do not exist in a forked child, and a pool that waits for them waits forever.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif

struct Shared {
    void (*worker)(Tasks &, const void *);
    const void *argument;
    Tasks tasks;
    std::atomic<int64_t> places; // for as many threads as there are tasks
    std::atomic<bool> no_memory{false};

    // No exception may propagate into a pool of another library.
    static void enter(void *self) {
        Shared &shared = *static_cast<Shared *>(self);
        if (shared.places.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
        try {
            shared.worker(shared.tasks, shared.argument);
        } catch (const std::bad_alloc &) {
            shared.no_memory.store(true);
            shared.tasks.stop();
        }
    }
};

void on_own_threads(Shared &shared, int64_t threads) {
    std::vector<std::thread> others;
    try {
        others.reserve(size_t(threads - 1));
        for (int64_t i = 1; i < threads; i++) others.emplace_back(Shared::enter, &shared);
    } catch (const std::exception &) {
        // As many threads as the system provides; they do all of the work.
    }
    Shared::enter(&shared);
    for (std::thread &other : others) other.join();
}

} // namespace

bool Tasks::take(int64_t &task) { return (task = next.fetch_add(1, std::memory_order_relaxed)) < count; }
void Tasks::stop() { next.store(count); }

void share(int64_t count, int64_t threads, void (*worker)(Tasks &, const void *), const void *argument) {
    Shared shared{worker, argument, Tasks(count), {count}};
    rv_parallel parallel = forked.load(std::memory_order_relaxed) ? nullptr : given.load(std::memory_order_acquire);
    if (count <= 0) return;
    if (std::min(threads, count) == 1)
        Shared::enter(&shared);
    else if (parallel)
        // All threads of the pool, even if there are fewer tasks: a pool that changes its size ends and starts threads.
        parallel(Shared::enter, &shared, unsigned(threads), 0);
    else
        on_own_threads(shared, std::min(threads, count));
    if (shared.no_memory.load()) throw std::bad_alloc();
}

} // namespace rv

extern "C" void rv_set_parallel(rv_parallel parallel) { rv::given.store(parallel, std::memory_order_release); }
