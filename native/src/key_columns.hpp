// The keys of one head, transposed: tiles of [dim, key], so that the scores of a query are contiguous. Tiles are made
// on first use, so keys that the mask leaves out are never read.
#pragma once

#include "keys.hpp"

namespace RV_NAMESPACE {

template <class Kind> class KeyColumns {
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<Acc>;

  public:
    // If each tile is used once, only one tile is kept.
    KeyColumns(const rv_call &call, Room &room, bool keep)
        : depth(round_up(packs<Kind>(call.dim), W)), call(call), tiles(round_up(call.k_len, TILE) / TILE), keep(keep) {
        columns = room.take<Pack>(size_t((keep ? tiles : 1) * TILE * depth));
        rows = room.take<Pack>(size_t(W * depth));
        made = room.take<uint8_t>(size_t(tiles));
        whole = reads_directly<Kind>(call.dtype) && call.dim % (W * Kind::step) == 0 &&
                call.key.stride[2] % Kind::step == 0;
    }

    void turn_to(int64_t item, int64_t head) {
        if (item == batch && head == key_head) return;
        batch = item, key_head = head;
        std::memset(made, 0, size_t(tiles));
    }

    // The tile that begins at `first`: rows of TILE numbers, one row per step of the depth.
    const Pack *tile(int64_t first) {
        Pack *to = columns + (keep ? first * depth : 0);
        if (keep && made[first / TILE]) return to;
        made[first / TILE] = 1;
        for (int64_t n = first; n < std::min(first + TILE, call.k_len); n += W) turn(n, to + (n - first));
        return to;
    }

    // One query, as `depth` packs, times the keys from `n` on, as many as a vector has lanes. The products are summed
    // along each key, and only the sums are transposed, which for few queries is less work than transposing the keys.
    void score(int64_t n, const Pack *query, Acc *to) {
        Operand<Pack> keys = rows_from(n);
        Acc sums[W * W], turned[W * W];
        for (int i = 0; i < W; i++) {
            Vec<Acc> sum{};
            for (int64_t d = 0; d < depth; d += W)
                sum = Kind::times(sum, load(query + d), load(keys.data + i * keys.stride + d));
            store(sums + i * W, sum);
        }
        transpose(sums, W, turned, W);
        Vec<Acc> total = load(turned);
        for (int i = 1; i < W; i++) total += load(turned + i * W);
        store(to, total);
    }

    const int64_t depth; // packs of a query and of a key, padded with zeros to whole vectors

  private:
    void turn(int64_t n, Pack *to) {
        Operand<Pack> keys = rows_from(n);
        for (int64_t d = 0; d < depth; d += W) transpose(keys.data + d, keys.stride, to + d * TILE, TILE);
    }

    // As many keys as a vector has lanes, in place or packed; zeros after the last key.
    Operand<Pack> rows_from(int64_t n) {
        const char *first = at(call.key, batch, key_head, n);
        if (whole && n + W <= call.k_len && reinterpret_cast<uintptr_t>(first) % sizeof(Pack) == 0)
            return {reinterpret_cast<const Pack *>(first), call.key.stride[2] / Kind::step};
        for (int i = 0; i < W; i++) {
            Pack *row = rows + i * depth;
            if (n + i < call.k_len)
                pack_row<Kind>(at(call.key, batch, key_head, n + i), call.dtype, row, call.dim, depth);
            else
                std::memset(row, 0, size_t(depth) * sizeof *row);
        }
        return {rows, depth};
    }

    const rv_call &call;
    const int64_t tiles;
    const bool keep;
    bool whole;
    Pack *columns, *rows;
    uint8_t *made;
    int64_t batch = -1, key_head = -1;
};

} // namespace RV_NAMESPACE
