// The keys and values of a call in the form that tiles read, shared by all threads: keys as rows, values turned, so that
// their dims are the rows. A tile of either is made once, by the first thread that needs it; threads that need it at the
// same time make the next ones meanwhile. If keys already have the right form, they are not copied.
#pragma once

#include "keys.hpp"

#include <atomic>
#include <thread>

namespace RV_NAMESPACE {

#if defined(RV_TILES)

class TileKeys {
    enum : uint8_t { NOT_MADE, IN_WORK, MADE };

  public:
    struct Store {
        explicit Store(const rv_call &call)
            : tiles((call.k_len + TILE - 1) / TILE), key_width(depth_of<Tiles>(call.dim)),
              value_width(round_up(call.value_dim, SIDE)) {
            key_direct = lies_well<Tiles>(call.key, call.dim);
            // Of short blocks the rows are fetched ahead and copied.
            if (call.table && call.block_size < LONG_BLOCK) key_direct = false;
            size_t count = size_t(call.batch * call.key_heads * tiles);
            value_size = TILE / 2 * value_width;
            size = value_size + (key_direct ? 0 : TILE * key_width);
            memory = room.take<float>(count * size_t(size));
            states = room.take<std::atomic<uint8_t>>(count);
            for (size_t i = 0; i < count; i++) new (states + i) std::atomic<uint8_t>(NOT_MADE);
        }

        const int64_t tiles, key_width, value_width;
        bool key_direct;
        int64_t value_size, size; // of the values of a tile; of a tile
        Room room{Room::OF_A_CALL};
        float *memory;
        std::atomic<uint8_t> *states;
    };

    TileKeys(const rv_call &call, Store &store, Room &room) : call(call), store(store) {
        strip = room.take<float>(size_t(SIDE * store.value_width));
    }

    void turn_to(int64_t item, int64_t head) {
        batch = item, key_head = head;
        first_tile = (item * call.key_heads + head) * store.tiles;
    }

    // Makes the tile that begins at `first`, unless it exists. The next ones, up to `high`, will be asked for, too.
    void need(int64_t first, int64_t high) {
        int64_t index = first / TILE;
        while (store.states[first_tile + index].load(std::memory_order_acquire) != MADE) {
            bool helped = false;
            for (int64_t t = index; t * TILE < high && !helped; t++) helped = make(t);
            if (!helped) std::this_thread::yield();
        }
    }

    // The keys from `n` up to here are the rows of one operand.
    int64_t end_of_keys(int64_t n) const { return store.key_direct ? end_of_run(call, n) : (n / TILE + 1) * TILE; }

    Operand<float> keys(int64_t n) const {
        if (!store.key_direct)
            return {tile(n / TILE) + store.value_size + n % TILE * store.key_width, store.key_width};
        auto *row = reinterpret_cast<const float *>(key_at(call, call.key, batch, key_head, n));
        return {row, call.key.stride[2] / 2};
    }

    // The values' dims are the rows, and keys from `n` on, all in one tile, the depth.
    Operand<float> values(int64_t n) const { return {tile(n / TILE) + n % TILE / 2, TILE / 2}; }

  private:
    float *tile(int64_t index) const { return store.memory + (first_tile + index) * store.size; }

    // Whether this thread has made the tile.
    bool make(int64_t index) {
        std::atomic<uint8_t> &state = store.states[first_tile + index];
        uint8_t expected = NOT_MADE;
        if (state.load(std::memory_order_relaxed) != NOT_MADE) return false;
        if (!state.compare_exchange_strong(expected, IN_WORK, std::memory_order_relaxed)) return false;
        int64_t first = index * TILE, length = length_of(call, batch), end = std::min(first + TILE, length);
        Walk keys(call, call.key, batch, key_head), values(call, call.value, batch, key_head);
        Walk keys_ahead = keys, values_ahead = values;
        for (int64_t n = first; n < end && !store.key_direct; n++) {
            if (call.table) keys_ahead.fetch(std::min(n + AHEAD, length - 1), call.dim);
            pack_row<Tiles>(keys.row(n), call.dtype, tile(index) + store.value_size + (n - first) * store.key_width,
                            call.dim, store.key_width);
        }
        // Null where no query hears it, or where there is no such key: 0 x NaN is NaN, so such a value is not read.
        auto value = [&](int64_t n) -> const char * {
            if (first + n >= end || !is_heard(call, batch, key_head, first + n)) return nullptr;
            if (call.table) values_ahead.fetch(std::min(first + n + AHEAD, length - 1), call.value_dim);
            return values.row(first + n);
        };
        pack_turned(value, call.dtype, TILE, call.value_dim, store.value_width, strip, tile(index));
        state.store(MADE, std::memory_order_release);
        return true;
    }

    const rv_call &call;
    Store &store;
    float *strip;
    int64_t batch = -1, key_head = -1, first_tile = 0;
};

template <class Kind> using KeysOf = std::conditional_t<Kind::in_tiles, TileKeys, Keys<Kind>>;

#else

template <class Kind> using KeysOf = Keys<Kind>;

#endif

} // namespace RV_NAMESPACE
