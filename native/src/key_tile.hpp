// A tile of keys and values, in the forms that the backward pass multiplies.
#pragma once

#include "keys.hpp"

namespace RV_NAMESPACE {

template <class Kind> class KeyTile {
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<typename Kind::Acc>;

  public:
    static constexpr Layout ACROSS_KEYS = Kind::in_tiles ? ALONG : ACROSS;

    KeyTile(const rv_call &call, Room &room)
        : call(call), key_width(depth_of<Kind>(call.dim)), value_width(depth_of<Kind>(call.value_dim)) {
        key_rows = room.take<Pack>(size_t(TILE * key_width));
        value_rows = room.take<Pack>(size_t(TILE * value_width));
        if constexpr (Kind::in_tiles) {
            key_across = room.take<Pack>(size_t(TILE / 2 * round_up(call.dim, W)));
            strip = room.take<Pack>(size_t(W * round_up(call.dim, W)));
            return;
        }
        key_across = Kind::step == 1 && !call.heard ? key_rows : room.take<Pack>(size_t(TILE / Kind::step * call.dim));
    }

    void fill(int64_t batch, int64_t head, int64_t first) {
        begin = first;
        int64_t end = std::min(first + TILE, call.k_len);
        for (int64_t n = first; n < end; n++) {
            pack_row<Kind>(at(call.key, batch, head, n), call.dtype, key_rows + (n - first) * key_width, call.dim,
                           key_width);
            pack_row<Kind>(at(call.value, batch, head, n), call.dtype, value_rows + (n - first) * value_width,
                           call.value_dim, value_width);
        }
#if defined(RV_TILES)
        if constexpr (Kind::in_tiles) {
            auto row = [&](int64_t n) { return first + n < end ? heard_key(batch, head, first + n) : nullptr; };
            return pack_turned(row, call.dtype, TILE, call.dim, round_up(call.dim, W), strip, key_across);
        }
#endif
        if (key_across == key_rows) return;
        for (int64_t n = first; n < end; n += Kind::step)
            pack_across<Kind>(heard_key(batch, head, n), Kind::step == 2 ? heard_key(batch, head, n + 1) : nullptr,
                              call.dtype, key_across + (n - first) / Kind::step * call.dim, call.dim, call.dim);
    }

    // ALONG, from key `n` on; and ACROSS (in tiles ALONG), with the keys' dims as rows.
    Operand<Pack> keys(int64_t n) const { return {key_rows + (n - begin) * key_width, key_width}; }
    Operand<Pack> values(int64_t n) const { return {value_rows + (n - begin) * value_width, value_width}; }
    Operand<Pack> keys_across(int64_t n) const {
        if constexpr (Kind::in_tiles) return {key_across + (n - begin) / 2, TILE / 2};
        return {key_across + (n - begin) / Kind::step * call.dim, call.dim};
    }

  private:
    const char *heard_key(int64_t batch, int64_t head, int64_t n) const {
        return is_heard(call, batch, head, n) ? at(call.key, batch, head, n) : nullptr;
    }

    const rv_call &call;
    const int64_t key_width, value_width;
    int64_t begin = 0;
    Pack *key_rows, *value_rows, *key_across, *strip = nullptr;
};

} // namespace RV_NAMESPACE
