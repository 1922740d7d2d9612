// The keys and values of one head, as the products read them. Tiles are made when they are first asked for, so what
// the mask leaves out is never touched; where a tensor already lies as it is needed, nothing is made at all.
#pragma once

#include "pack.hpp"
#include "room.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

// Keys of one step of the running softmax. Tiles begin at multiples of it.
constexpr int64_t TILE = 128;

RV_INLINE bool is_heard(const rv_call &call, int64_t batch, int64_t key_head, int64_t n) {
    if (n >= call.k_len) return false;
    return !call.heard || call.heard[batch * call.heard_stride[0] + key_head * call.heard_stride[1] + n];
}

template <class Kind> class Keys {
    using Pack = typename Kind::Pack;

  public:
    Keys(const rv_call &call, Room &room) : call(call) {
        bool direct = reads_directly<Kind>(call.dtype);
        key_width = packs<Kind>(call.dim);
        key_direct = direct && lies_well(call.key, call.dim);
        value_direct = direct && Kind::step == 1 && !call.heard && lies_well(call.value, call.value_dim);
        int64_t padded = round_up(call.k_len, TILE);
        if (!key_direct) key_rows = room.take<Pack>(size_t(padded * key_width));
        if (!value_direct) value_rows = room.take<Pack>(size_t(padded / Kind::step * call.value_dim));
        made = room.take<uint8_t>(size_t(padded / TILE));
    }

    void turn_to(int64_t item, int64_t head) {
        if (item == batch && head == key_head) return;
        batch = item, key_head = head;
        std::memset(made, 0, size_t(round_up(call.k_len, TILE) / TILE));
    }

    // Makes the tile that begins at `first`, if it is not there.
    void need(int64_t first) {
        if ((key_direct && value_direct) || made[first / TILE]) return;
        made[first / TILE] = 1;
        int64_t end = std::min(first + TILE, call.k_len);
        if (!key_direct)
            for (int64_t n = first; n < end; n++)
                pack_row<Kind>(at(call.key, batch, key_head, n), call.dtype, key_rows + n * key_width, call.dim,
                               key_width);
        if (!value_direct)
            for (int64_t n = first; n < end; n += Kind::step)
                pack_across<Kind>(value_at(n), Kind::step == 2 ? value_at(n + 1) : nullptr, call.dtype,
                                  value_rows + n / Kind::step * call.value_dim, call.value_dim, call.value_dim);
    }

    // ALONG: keys from `n` on are the rows.
    Operand<Pack> keys(int64_t n) const {
        if (!key_direct) return {key_rows + n * key_width, key_width};
        auto *row = reinterpret_cast<const Pack *>(at(call.key, batch, key_head, n));
        return {row, call.key.stride[2] / Kind::step};
    }

    // ACROSS: the values' dims are the rows, and keys from `n` on the depth.
    Operand<Pack> values(int64_t n) const {
        if (!value_direct) return {value_rows + n / Kind::step * call.value_dim, call.value_dim};
        return {reinterpret_cast<const Pack *>(at(call.value, batch, key_head, n)), call.value.stride[2]};
    }

  private:
    // In rows that are far apart every step of the depth would be another page.
    bool lies_well(const rv_tensor &tensor, int64_t width) const {
        bool whole = width % Kind::step == 0 && tensor.stride[2] % Kind::step == 0;
        bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % sizeof(Pack) == 0 &&
                       tensor.stride[0] % Kind::step == 0 && tensor.stride[1] % Kind::step == 0;
        return whole && aligned && tensor.stride[2] <= 2 * width;
    }

    // Null where nobody hears it, or where there is no such key: 0 x NaN is NaN, so what nobody hears is not read.
    const char *value_at(int64_t n) const {
        return is_heard(call, batch, key_head, n) ? at(call.value, batch, key_head, n) : nullptr;
    }

    const rv_call &call;
    bool key_direct, value_direct;
    int64_t key_width;
    Pack *key_rows = nullptr, *value_rows = nullptr;
    uint8_t *made = nullptr;
    int64_t batch = -1, key_head = -1;
};

} // namespace RV_NAMESPACE
