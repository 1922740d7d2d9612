// Working memory of a thread. It is kept between calls, because page faults on new memory cost more than a short call.
#pragma once

#include "memory.hpp"

namespace RV_NAMESPACE {

class Room {
  public:
    // What all threads of a call share is taken from a room of its own, because the thread that makes the call works, too.
    enum Use { OF_A_THREAD = 0, OF_A_CALL = 24 };

    explicit Room(Use use = OF_A_THREAD) : next(use) {}
    Room(const Room &) = delete;
    Room &operator=(const Room &) = delete;
    // The memory of a very long call is freed.
    ~Room() {
        for (Slot &slot : kept().slots)
            if (slot.bytes > KEEP) slot.release();
    }

    // The n-th request of every call gets the n-th slot. Contents are not initialised.
    template <class T> T *take(size_t count) {
        Slot &slot = kept().slots[next++];
        size_t bytes = (count * sizeof(T) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
        if (slot.bytes < bytes) {
            slot.release();
            slot.data = allocate(bytes);
            slot.bytes = bytes;
        }
        return static_cast<T *>(slot.data);
    }

  private:
    static constexpr size_t ALIGNMENT = 64, KEEP = size_t(4) << 20;
    static constexpr int SLOTS = 28;

    struct Slot {
        void *data = nullptr;
        size_t bytes = 0;
        void release() {
            std::free(data);
            data = nullptr;
            bytes = 0;
        }
    };
    struct Slots {
        Slot slots[SLOTS];
        ~Slots() {
            for (Slot &slot : slots) slot.release();
        }
    };
    static Slots &kept() {
        static thread_local Slots slots;
        return slots;
    }

    int next;
};

} // namespace RV_NAMESPACE
