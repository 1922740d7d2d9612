// Where keys and values are, and those of one head in the form that the products read. Tiles are made on first use, so
// keys that the mask leaves out are never read. If a tensor already has the right form, nothing is copied.
#pragma once

#include "pack.hpp"
#include "room.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

// The number of keys of one step of the running softmax. Tiles begin at multiples of it.
constexpr int64_t TILE = 128;

// How many keys an item has.
RV_INLINE int64_t length_of(const rv_call &call, int64_t batch) {
    return call.lengths ? call.lengths[batch] : call.k_len;
}

// Row `n` of the keys or values.
RV_INLINE const char *key_at(const rv_call &call, const rv_tensor &tensor, int64_t batch, int64_t head, int64_t n) {
    if (!call.table) return at(tensor, batch, head, n);
    return at(tensor, call.table[batch * call.table_stride + n / call.block_size], head, n % call.block_size);
}

// The rows from `n` up to here lie one after the other, a stride apart.
RV_INLINE int64_t end_of_run(const rv_call &call, int64_t n) {
    return call.table ? (n / call.block_size + 1) * call.block_size : call.k_len;
}

// So many rows in blocks are asked for in advance, and from this size on the rows of a block are read in place.
constexpr int64_t AHEAD = 12, LONG_BLOCK = 64;

// Rows of one head's keys or values, asked for in order: the table is read once per block.
class Walk {
  public:
    Walk(const rv_call &call, const rv_tensor &tensor, int64_t batch, int64_t head)
        : call(call), tensor(tensor), batch(batch), head(head), stride(tensor.stride[2] * int64_t(size_of(tensor.dtype))) {
        if (!call.table) begin = at(tensor, batch, head, 0), end = call.k_len;
    }

    RV_INLINE const char *row(int64_t n) {
        if (n >= end && call.table) {
            first = n - n % call.block_size, end = first + call.block_size;
            begin = key_at(call, tensor, batch, head, first);
        }
        return begin + (n - first) * stride;
    }

    // Asks for a row of `count` numbers before it is needed: what comes after a block the processor cannot guess.
    RV_INLINE void fetch(int64_t n, int64_t count) {
        const char *from = row(n), *to = from + count * int64_t(size_of(tensor.dtype));
        for (; from < to; from += 64) __builtin_prefetch(from, 0, 2);
    }

  private:
    const rv_call &call;
    const rv_tensor &tensor;
    const int64_t batch, head, stride;
    int64_t first = 0, end = 0;
    const char *begin = nullptr;
};

RV_INLINE bool is_heard(const rv_call &call, int64_t batch, int64_t key_head, int64_t n) {
    if (n >= length_of(call, batch)) return false;
    return !call.heard || call.heard[batch * call.heard_stride[0] + key_head * call.heard_stride[1] + n];
}

// Whether rows of a tensor can be read in place. If they are far apart, every step of the depth would read another page.
template <class Kind> bool lies_well(const rv_tensor &tensor, int64_t width) {
    bool whole = width % Kind::grain == 0 && tensor.stride[2] % Kind::step == 0;
    bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % sizeof(typename Kind::Pack) == 0 &&
                   tensor.stride[0] % Kind::step == 0 && tensor.stride[1] % Kind::step == 0;
    return whole && aligned && tensor.stride[2] <= 2 * width;
}

template <class Kind> class Keys {
    using Pack = typename Kind::Pack;

  public:
    // What all threads of a call share: nothing.
    struct Store {
        explicit Store(const rv_call &) {}
    };

    Keys(const rv_call &call, Store &, Room &room) : call(call) {
        bool direct = reads_directly<Kind>(call.dtype);
        key_width = packs<Kind>(call.dim);
        key_direct = direct && lies_well<Kind>(call.key, call.dim);
        value_direct = direct && Kind::step == 1 && !call.heard && lies_well<Kind>(call.value, call.value_dim);
        // Of short blocks the rows are fetched ahead and copied; and sums over short depths are read and written often.
        if (call.table && call.block_size < LONG_BLOCK) key_direct = false;
        if (call.table && call.block_size % TILE) value_direct = false;
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

    // Makes the tile that begins at `first`, unless it exists.
    void need(int64_t first, int64_t) {
        if ((key_direct && value_direct) || made[first / TILE]) return;
        made[first / TILE] = 1;
        int64_t length = length_of(call, batch), end = std::min(first + TILE, length);
        Walk keys(call, call.key, batch, key_head), values(call, call.value, batch, key_head);
        Walk keys_ahead = keys, values_ahead = values;
        for (int64_t n = first; n < end && !key_direct; n++) {
            if (call.table) keys_ahead.fetch(std::min(n + AHEAD, length - 1), call.dim);
            pack_row<Kind>(keys.row(n), call.dtype, key_rows + n * key_width, call.dim, key_width);
        }
        // Null where no query hears it, or where there is no such key: 0 x NaN is NaN, so such a value is not read.
        auto value = [&](int64_t n) { return is_heard(call, batch, key_head, n) ? values.row(n) : nullptr; };
        for (int64_t n = first; n < end && !value_direct; n += Kind::step) {
            for (int64_t i = n; call.table && i < n + Kind::step; i++)
                values_ahead.fetch(std::min(i + AHEAD, length - 1), call.value_dim);
            const char *one = value(n), *other = Kind::step == 2 ? value(n + 1) : nullptr;
            pack_across<Kind>(one, other, call.dtype, value_rows + n / Kind::step * call.value_dim, call.value_dim,
                              call.value_dim);
        }
    }

    // The keys from `n` up to here are the rows of one operand.
    int64_t end_of_keys(int64_t n) const { return key_direct ? end_of_run(call, n) : call.k_len; }

    // ALONG: keys from `n` on are the rows.
    Operand<Pack> keys(int64_t n) const {
        if (!key_direct) return {key_rows + n * key_width, key_width};
        auto *row = reinterpret_cast<const Pack *>(key_at(call, call.key, batch, key_head, n));
        return {row, call.key.stride[2] / Kind::step};
    }

    // ACROSS: the values' dims are the rows, and keys from `n` on the depth.
    Operand<Pack> values(int64_t n) const {
        if (!value_direct) return {value_rows + n / Kind::step * call.value_dim, call.value_dim};
        return {reinterpret_cast<const Pack *>(key_at(call, call.value, batch, key_head, n)), call.value.stride[2]};
    }

  private:
    const rv_call &call;
    bool key_direct, value_direct;
    int64_t key_width;
    Pack *key_rows = nullptr, *value_rows = nullptr;
    uint8_t *made = nullptr;
    int64_t batch = -1, key_head = -1;
};

} // namespace RV_NAMESPACE
