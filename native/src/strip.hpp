// The weights of some queries of a head, a strip, over the keys that they hear: one product and one exponential per
// pair, one stretch of a tile at a time, with a running top as in the forward pass. The final weight is known after the
// last stretch; until then it is 2^(score - the current top).
#pragma once

#include "key_columns.hpp"
#include "row_scores.hpp"

namespace RV_NAMESPACE {

template <class Kind> class Strip {
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<Acc>;
    // Products are always as accurate as the sums.
    static constexpr int EXP_TERMS = sizeof(Acc) == 8 ? 13 : 5;
    // Below this 2^x is 0; the factors of 2^x must be finite.
    static constexpr Acc LOWEST = sizeof(Acc) == 8 ? Acc(-1100) : Acc(-200);
    // For this number of queries or fewer, the keys of a key head are not transposed.
    static constexpr int64_t FEW = 4;

  public:
    static constexpr Acc NOTHING = -std::numeric_limits<Acc>::infinity();

    // Keys [from, from + width) of a strip: its scores, then its weights before they are scaled, [row, width + W], each
    // row with zeros on both sides. Whole vectors, within one tile.
    struct Stretch {
        int64_t from, width;
        Acc *data;
        int64_t stride() const { return width + W; }
        Acc *row(int r) const { return data + r * stride(); }
    };

    Strip(const rv_call &call, int64_t most_rows, Room &room)
        : call(call), padded(round_up(call.k_len, TILE)), few(call.heads / call.key_heads * call.q_len <= FEW),
          plain(is_plain(call)), factor(Acc(left_to_scale(call) * LOG2E)),
          keys(call, room, !few && (most_rows < call.q_len || call.heads > call.key_heads)) {
        lanes.starts = room.take<int32_t>(size_t(call.ranges * LANES));
        lanes.ends = room.take<int32_t>(size_t(call.ranges * LANES));
        intervals = room.take<Interval>(size_t(call.ranges * LANES));
        // Stretches are aligned to vectors and do not overlap; each tile, and each gap between ranges, adds one.
        int64_t most = std::min(padded / TILE + call.ranges * most_rows, padded / W);
        stretches = room.take<Stretch>(size_t(most));
        tops = room.take<Acc>(size_t(most * LANES));
        scores = room.take<Acc>(size_t(most_rows * (padded + most * W) + W));
        query = room.take<Pack>(size_t(most_rows * keys.depth));
    }

    // The number of queries per strip, so that a strip fits into the cache if possible; a multiple of the rows of a
    // product.
    static int64_t rows_for(const rv_call &call) {
        constexpr int64_t UNIT = Kind::in_tiles ? W : ROWS, MOST = 48, FEWEST = Kind::in_tiles ? W : 18;
        constexpr int64_t BYTES = 48 * 4096 * 4;
        static_assert(MOST <= LANES, "a row is a lane");
        int64_t rows = BYTES / int64_t(sizeof(Acc)) / std::max<int64_t>(call.k_len, 1) / UNIT * UNIT;
        return std::min(call.q_len, std::max(FEWEST, std::min(MOST, rows)));
    }

    // Queries [first, first + count) of a head.
    void fill(int64_t batch, int64_t head, int64_t first, int count) {
        rows = count;
        lanes.fill(call, batch, head, first, rows);
        keys.turn_to(batch, head / (call.heads / call.key_heads));
        for (int r = 0; r < rows; r++) {
            pack_row<Kind>(lanes.row(call.query, r), call.dtype, query + r * keys.depth, call.dim, keys.depth);
            top[r] = NOTHING, next[r] = 0;
            for (Acc *sums : {total, below, back}) store(sums + r * W, Vec<Acc>{});
        }
        lay_out();
        for (int i = 0; i < stretch_count; i++) weigh(i);
    }

    // Sums of a row: of 2^x, of 2^x x, and of 2^x (query position - key position).
    double total_of(int r) const { return sum_of_lanes(total + r * W); }
    double below_of(int r) const { return sum_of_lanes(below + r * W); }
    double back_of(int r) const { return sum_of_lanes(back + r * W); }

    // The factor of the numbers of a row in a stretch, once the top of the row is known.
    Acc shrink(int index, int r) const {
        Acc then = tops[index * LANES + r];
        if (then == top[r]) return 1;
        return then == NOTHING ? Acc(0) : exp2<EXP_TERMS, Acc>(splat<Acc>((then - top[r]) * factor))[0];
    }

    int rows = 0, stretch_count = 0;
    Stretch *stretches;
    Lanes lanes;
    Acc top[LANES]; // the largest score of each row

  private:
    // The stretches of the strip, and the memory of their scores.
    void lay_out() {
        stretch_count = 0;
        Acc *data = scores + W;
        store(scores, Vec<Acc>{});
        int found = lanes.heard(intervals);
        for (int i = 0; i < found; i++)
            for (int64_t from = intervals[i].from / W * W; from < intervals[i].to;) {
                int64_t to = std::min((from / TILE + 1) * TILE, round_up(intervals[i].to, W));
                stretches[stretch_count++] = {from, to - from, data};
                data += rows * (to - from + W);
                from = to;
            }
    }

    // Computes scores and 2^(score - top), where the top is the largest score so far.
    void weigh(int index) {
        const Stretch &stretch = stretches[index];
        int64_t from = stretch.from, to = from + stretch.width, tile = from / TILE * TILE;
        if (few)
            for (int r = 0; r < rows; r++)
                for (int64_t n = 0; n < stretch.width; n += W)
                    keys.score(from + n, query + r * keys.depth, stretch.row(r) + n);
        else
            product<Kind, ALONG>({query, keys.depth}, keys.tile(tile) + (from - tile), TILE, stretch.data,
                                 stretch.stride(), rows, stretch.width / W, depth_of<Kind>(call.dim), false);
        bool all_heard = lanes.common_start <= from && to <= lanes.common_end;
        for (int r = 0; r < rows; r++) {
            Acc *row = stretch.row(r);
            store(row + stretch.width, Vec<Acc>{});
            if (!plain) finish_row(call, lanes, r, from, std::min(to, call.k_len) - from, row);
            if (!all_heard) hide_row(lanes, r, next[r], from, to, row);
            weigh_row(r, from, stretch.width, row);
            tops[index * LANES + r] = top[r];
        }
    }

    void weigh_row(int r, int64_t from, int64_t width, Acc *row) {
        Vec<Acc> most = load(row);
        for (int64_t n = W; n < width; n += W) most = larger<Acc>(most, load(row + n));
        if (some_larger<Acc>(most, splat<Acc>(top[r]))) raise(r, most);
        Vec<Acc> high = splat<Acc>(top[r] == NOTHING ? Acc(0) : top[r]), distance;
        for (int i = 0; i < W; i++) distance[i] = Acc(call.q_start + lanes.query[r] - from - i);
        Vec<Acc> sum = load(total + r * W), sum_below = load(below + r * W), sum_back = load(back + r * W);
        for (int64_t n = 0; n < width; n += W) {
            Vec<Acc> x = larger<Acc>(splat<Acc>(LOWEST), (load(row + n) - high) * factor);
            Vec<Acc> e = exp2<EXP_TERMS, Acc>(x);
            store(row + n, e);
            sum += e, sum_below += e * x, sum_back += e * distance;
            distance -= Acc(W);
        }
        store(total + r * W, sum), store(below + r * W, sum_below), store(back + r * W, sum_back);
    }

    void raise(int r, Vec<Acc> most) {
        Acc before = top[r];
        for (int i = 0; i < W; i++) top[r] = std::max(top[r], most[i]);
        if (before == NOTHING) return;
        Acc step = (before - top[r]) * factor;
        Vec<Acc> shrink = exp2<EXP_TERMS, Acc>(splat<Acc>(std::max(step, LOWEST)));
        store(below + r * W, (load(below + r * W) + load(total + r * W) * step) * shrink);
        store(total + r * W, load(total + r * W) * shrink);
        store(back + r * W, load(back + r * W) * shrink);
    }

    static double sum_of_lanes(const Acc *lanes) {
        double sum = 0;
        for (int i = 0; i < W; i++) sum += double(lanes[i]);
        return sum;
    }

    const rv_call &call;
    const int64_t padded;
    const bool few, plain;
    const Acc factor; // the factor from a score to the exponent of a power of 2
    KeyColumns<Kind> keys;
    Interval *intervals;
    Acc *tops, *scores; // the top of each row when a stretch was computed; the rows of all stretches
    Pack *query;
    int64_t next[LANES];
    Acc total[LANES * W], below[LANES * W], back[LANES * W];
};

} // namespace RV_NAMESPACE
