// What is done for a few queries over many keys: a step with a cache. Each query is a row, as it lies in memory.
#pragma once

#include "keys.hpp"
#include "scores.hpp"

namespace RV_NAMESPACE {

template <class Kind> class FewQueries {
  public:
    static constexpr int MOST = 8;

    // So few queries that most lanes of a vector would be empty.
    static bool suits(const rv_call &call) {
        return call.k_len > 0 && call.heads / call.key_heads * call.q_len <= MOST;
    }

  protected:
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<Acc>;
    static constexpr Acc NOTHING = -std::numeric_limits<Acc>::infinity();

    explicit FewQueries(const rv_call &call)
        : call(call), rows(call), depth(round_up(packs<Kind>(call.dim), W)), width(round_up(call.value_dim, W)),
          count(int(rows.group * call.q_len)), key_direct(reads_directly<Kind>(call.dtype)),
          value_direct(key_direct && Kind::step == 1 && call.value_dim % W == 0 && !call.heard) {
        query = room.take<Pack>(size_t(count * depth));
        values = value_direct ? nullptr : room.take<Pack>(size_t(TILE / Kind::step * width));
        lanes.starts = room.take<int32_t>(size_t(call.ranges * LANES));
        lanes.ends = room.take<int32_t>(size_t(call.ranges * LANES));
        intervals = room.take<Interval>(size_t(call.ranges * LANES));
    }

    void turn_to(int64_t index) {
        if (index == head) return;
        head = index;
        lanes.fill(call, rows, head / call.key_heads, head % call.key_heads, 0);
        heard = lanes.heard(intervals);
        if (call.dropout) dropout.fill(call, lanes);
        for (int r = 0; r < count; r++)
            pack_row<Kind>(lanes.row(call.query, r), call.dtype, query + r * depth, call.dim, depth);
    }

    Walk keys() const { return Walk(call, call.key, lanes.batch, head % call.key_heads); }

    // -inf where the row does not hear a key of [from, to).
    void hide_row(int r, int64_t from, int64_t to, Acc *s) const {
        int64_t next = from;
        for (int64_t i = 0; i < lanes.ranges; i++) {
            int64_t start = std::min<int64_t>(lanes.starts[i * LANES + r], to);
            for (; next < start; next++) s[next - from] = NOTHING;
            next = std::max(next, std::min<int64_t>(lanes.ends[i * LANES + r], to));
        }
        for (; next < to; next++) s[next - from] = NOTHING;
    }

    // Adds weights x values of the keys [from, to) to rows of `out`, `stride` apart; those of `from` are the first
    // `weights`. Before `first` nothing is read.
    void add_values(const Pack *weights, int64_t weights_stride, int64_t first, int64_t from, int64_t to, Acc *out,
                    int64_t stride) {
        for (int64_t n = from; n < to;) {
            int64_t end = std::min((n / TILE + 1) * TILE, to);
            if (value_direct) end = std::min(end, end_of_run(call, n));
            gather_values(first, n, end);
            product<Kind, ALONG>({weights + (n - from) / Kind::step, weights_stride}, tile_values, tile_stride, out, stride,
                                 count, width / W, packs<Kind>(end - n), true);
            n = end;
        }
    }

    const rv_call &call;
    const Rows rows;
    Room room;
    const int64_t depth, width;
    const int count;
    const bool key_direct, value_direct;
    Pack *query;
    Lanes lanes;
    Interval *intervals;
    int heard = 0;
    Dropout<Acc> dropout;
    int64_t head = -1;

  private:
    void gather_values(int64_t first, int64_t from, int64_t to) {
        int64_t key_head = head % call.key_heads;
        Walk walk(call, call.value, lanes.batch, key_head);
        if (value_direct) {
            tile_values = reinterpret_cast<const Pack *>(walk.row(from));
            tile_stride = call.value.stride[2];
            return;
        }
        auto value = [&](int64_t n) {
            bool there = n >= first && n < to && is_heard(call, lanes.batch, key_head, n);
            return there ? walk.row(n) : nullptr;
        };
        for (int64_t n = from; n < to; n += Kind::step) {
            const char *one = value(n), *other = Kind::step == 2 ? value(n + 1) : nullptr;
            pack_across<Kind>(one, other, call.dtype, values + (n - from) / Kind::step * width, call.value_dim, width);
        }
        tile_values = values, tile_stride = width;
    }

    Pack *values;
    const Pack *tile_values = nullptr;
    int64_t tile_stride = 0;
};

} // namespace RV_NAMESPACE
