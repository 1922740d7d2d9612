// Forward: each block of queries loops over the tiles that it hears, with the running softmax of FlashAttention
// (https://arxiv.org/abs/2205.14135, algorithm 1).
#pragma once

#include "keys.hpp"
#include "tile_keys.hpp"
#include "scores.hpp"
#include "threads.hpp"

#include <cmath>

namespace RV_NAMESPACE {

#if defined(__AVX512BF16__)
// The bfloat16 numbers of two consecutive rows, as pairs.
RV_INLINE __m512i interleaved(__m512i both) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                           5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, both);
}
#endif

// The weights of two keys as one row of packs, or of one key unchanged.
template <class Kind>
RV_INLINE void store_weights(typename Kind::Pack *to, Vec<typename Kind::Acc> first,
                             [[maybe_unused]] Vec<typename Kind::Acc> second) {
#if defined(__AVX512BF16__)
    if constexpr (Kind::step == 2) {
        _mm512_storeu_si512(to, interleaved((__m512i)_mm512_cvtne2ps_pbh(second, first)));
        return;
    }
#endif
    store(to, first);
}

template <class Kind> class Forward {
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<Acc>;
    static constexpr Acc NOTHING = -std::numeric_limits<Acc>::infinity();
    using HeadKeys = KeysOf<Kind>;

  public:
    static void run(const rv_call &call, int64_t threads) {
        typename HeadKeys::Store store(call);
        Plan plan{call, store};
        rv::share(call.batch * call.key_heads * Rows(call).blocks(), threads, work, &plan);
    }

  private:
    // State shared by all threads.
    struct Plan {
        const rv_call &call;
        typename HeadKeys::Store &store;
    };

    static void work(rv::Tasks &tasks, const void *argument) {
        const Plan &plan = *static_cast<const Plan *>(argument);
        const rv_call &call = plan.call;
        [[maybe_unused]] typename Kind::Scope scope;
        Forward forward(plan);
        int64_t blocks = forward.rows.blocks();
        for (int64_t task; tasks.take(task);) {
            int64_t head = task / blocks;
            // Late queries first: under a causal mask they are the most work, and small tasks at the end balance the
            // threads.
            forward.block(head / call.key_heads, head % call.key_heads, blocks - 1 - task % blocks);
        }
    }

    explicit Forward(const Plan &plan)
        : call(plan.call), rows(call), keys(call, plan.store, room), depth(depth_of<Kind>(call.dim)),
          value_rows(Kind::in_tiles ? round_up(call.value_dim, W) : call.value_dim), plain(is_plain(call)) {
        query = room.take<Pack>(size_t(round_up(depth, W) * LANES));
        scores = room.take<Acc>(size_t(TILE * LANES));
        weights = Kind::step == 1 ? reinterpret_cast<Pack *>(scores) : room.take<Pack>(size_t(TILE / 2 * LANES));
        out = room.take<Acc>(size_t(round_up(call.value_dim, W) * LANES));
        strip = room.take<Acc>(size_t(W * round_up(std::max(depth, call.value_dim), W)));
        lanes.starts = room.take<int32_t>(size_t(call.ranges * LANES));
        lanes.ends = room.take<int32_t>(size_t(call.ranges * LANES));
        intervals = room.take<Interval>(size_t(call.ranges * LANES));
    }

    void block(int64_t batch, int64_t key_head, int64_t index) {
        lanes.fill(call, rows, batch, key_head, index);
        keys.turn_to(batch, key_head);
        int vectors = lanes.vectors<Acc>();
        if (call.dropout) dropout.fill(call, lanes);
        pack_lanes<Kind>(call.query, call.dim, lanes, strip, query);
        for (int i = 0; i < vectors * W; i++) top[i] = NOTHING, total[i] = 0;
        for (int64_t e = 0; e < value_rows; e++)
            for (int v = 0; v < vectors; v++) store(out + e * LANES + v * W, Vec<Acc>{});
        int count = lanes.heard(intervals);
        // Where two intervals share a tile, whether they are one or two would show in the last bits of the rows: whether
        // other rows of the block hear what is between them.
        int64_t grain = call.batch_invariant ? TILE : Kind::grain, from = 0;
        for (int i = 0; i < count; i++) {
            from = std::max(from, intervals[i].from - intervals[i].from % grain);
            int64_t last = round_up(intervals[i].to, grain);
            while (from < last) {
                int64_t to = std::min((from / TILE + 1) * TILE, last);
                tile(from, to);
                from = to;
            }
        }
        finish();
    }

    void tile(int64_t from, int64_t to) {
        Cut<Acc> cut(lanes, from, to, Kind::grain);
        if (!cut.count) return;
        keys.need(from - from % TILE, lanes.high);
        int vectors = lanes.vectors<Acc>();
        int64_t keys_there = length_of(call, lanes.batch);
        Acc tile_top[LANES];
        for (int v = 0; v < vectors; v++) {
            store(tile_top + v * W, splat(NOTHING));
            store(tile_total + v * W, Vec<Acc>{});
        }
        bool as_they_are = plain && !cut.masked;
        for (int i = 0; i < cut.count; i++) {
            const Segment &part = cut.segments[i];
            int64_t end = std::min(part.to, keys_there);
            for (int64_t n = part.from, next; n < end; n = next) {
                next = std::min(end, keys.end_of_keys(n));
                Acc *to_scores = scores + (n - from) * LANES + part.first * W;
                product<Kind, ALONG>(keys.keys(n), query + part.first * W, LANES, to_scores, LANES, next - n,
                                     part.last - part.first, depth, false,
                                     as_they_are ? tile_top + part.first * W : nullptr);
            }
            if (as_they_are) continue;
            for (int v = part.first; v < part.last; v++) {
                if (!plain) finish_scores<Acc>(call, lanes, v, part.from, end, from, scores, nullptr);
                if (cut.masked) hide<Acc>(lanes, cut, v, part.from, part.to, from, scores);
                Vec<Acc> most = load(tile_top + v * W);
                for (int64_t key = part.from; key < part.to; key++)
                    most = larger<Acc>(most, load(scores + (key - from) * LANES + v * W));
                store(tile_top + v * W, most);
            }
        }
        raise_top(tile_top, vectors);
        for (int i = 0; i < cut.count; i++) {
            const Segment &part = cut.segments[i];
            for (int v = part.first; v < part.last; v++) weigh(v, part.from, part.to, from);
            product<Kind, Kind::in_tiles ? ALONG : ACROSS>(
                keys.values(part.from), weights + (part.from - from) / Kind::step * LANES + part.first * W, LANES,
                out + part.first * W, LANES, value_rows, part.last - part.first, (part.to - part.from) / Kind::step, true);
        }
        for (int v = 0; v < vectors; v++) store(total + v * W, load(total + v * W) + load(tile_total + v * W));
    }

    // Turns scores into weights exp(score - top), whose sums go to `tile_total`.
    void weigh(int v, int64_t from, int64_t to, int64_t origin) {
        if (large) return weigh<true, true>(v, from, to, origin);
        call.dropout ? weigh<true, false>(v, from, to, origin) : weigh<false, false>(v, from, to, origin);
    }

    template <bool drops, bool apart> void weigh(int v, int64_t from, int64_t to, int64_t origin) {
        Vec<Acc> factor = splat<Acc>(exponent()), offset = load(shift + v * W), sum = load(tile_total + v * W);
        [[maybe_unused]] Vec<Acc> highest = load(level + v * W);
        auto power = [&](const Acc *row) {
            Vec<Acc> x = load(row) * factor - offset;
            // The choice is made per lane, so that the bits of a row do not depend on the size of other rows.
            if (apart) x = select<Acc>(is_large<Acc>(offset), (load(row) - highest) * factor, rounded(x));
            return exp2<Kind::exp_terms, Acc>(x);
        };
        for (int64_t key = from; key < to; key += Kind::step) {
            const Acc *row = scores + (key - origin) * LANES + v * W;
            Vec<Acc> first = power(row), second{};
            sum += first;
            if (Kind::step == 2) {
                second = power(row + LANES);
                sum += second;
            }
            if (drops && call.dropout) {
                first *= dropout.factor(v, key);
                if (Kind::step == 2) second *= dropout.factor(v, key + 1);
            }
            store_weights<Kind>(weights + (key - origin) / Kind::step * LANES + v * W, first, second);
        }
        store(tile_total + v * W, sum);
    }

    // The factor from a score to the exponent of a power of 2.
    Acc exponent() const { return Acc(left_to_scale(call) * LOG2E); }

    void raise_top(const Acc *tile_top, int vectors) {
        Mask<Acc> above{};
        for (int v = 0; v < vectors; v++) {
            Vec<Acc> before = load(top + v * W), after = larger<Acc>(before, load(tile_top + v * W));
            // A lane that has heard nothing so far has the top -inf; it is replaced by 0, because -inf - -inf is NaN.
            Vec<Acc> finite = after == splat(NOTHING) ? Vec<Acc>{} : after;
            store(level + v * W, finite);
            store(shift + v * W, finite * exponent());
            above |= is_large<Acc>(finite * exponent());
            store(top + v * W, after);
            if (all_equal<Acc>(before, after)) continue;
            Vec<Acc> shrink = exp2<Kind::exp_terms, Acc>((before - finite) * exponent());
            store(total + v * W, load(total + v * W) * shrink);
            for (int64_t e = 0; e < call.value_dim; e++) {
                Acc *row = out + e * LANES + v * W;
                store(row, load(row) * shrink);
            }
        }
        large = false;
        for (int i = 0; i < W; i++) large |= above[i] != 0;
    }

    void finish() {
        int64_t padded = round_up(call.value_dim, W);
        Acc *lse = static_cast<Acc *>(call.lse);
        for (int v = 0; v < lanes.vectors<Acc>(); v++) {
            for (int64_t e = 0; e < padded; e += W) transpose(out + e * LANES + v * W, LANES, strip + e, padded);
            for (int i = 0; i < W && v * W + i < lanes.count; i++) {
                int lane = v * W + i;
                RowEnd<Acc> end(call, lanes.head[lane], top[lane], total[lane]);
                write_row(strip + i * padded, lanes.row(call.out, lane), call.out.dtype, call.value_dim, end.factor);
                lse[lanes.place(call, lane)] = end.lse;
            }
        }
    }

    const rv_call &call;
    const Rows rows;
    Room room;
    HeadKeys keys;
    const int64_t depth, value_rows;
    const bool plain;
    Pack *query, *weights;
    Acc *scores, *out, *strip;
    Interval *intervals;
    Lanes lanes;
    Dropout<Acc> dropout;
    // The largest score so far; the same, or 0 where nothing was heard; and that as an exponent of 2.
    Acc top[LANES], total[LANES], tile_total[LANES], level[LANES], shift[LANES];
    bool large = false;
};

} // namespace RV_NAMESPACE
