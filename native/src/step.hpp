// A few queries over many keys, batch-invariant: the very sums of Forward, in the same order, without its empty lanes.
//
// A score is summed up along the dims and a row's values along the keys, one after the other, so vectors run across keys
// here and across dims there. Tiles, tops and totals are those of Forward.
#pragma once

#include "few_queries.hpp"
#include "threads.hpp"

namespace RV_NAMESPACE {

template <class Kind> class Step : FewQueries<Kind> {
    using Few = FewQueries<Kind>;
    using typename Few::Acc;
    using typename Few::Pack;
    using Few::W, Few::NOTHING, Few::call, Few::rows, Few::room, Few::depth, Few::width, Few::count, Few::query,
        Few::lanes, Few::intervals, Few::heard, Few::head;

  public:
    // What scores go through besides the scale, and odd widths, are left to Forward.
    static bool suits(const rv_call &call) {
        return Few::suits(call) && is_plain(call) && !call.dropout && call.value_dim % W == 0;
    }

    static void run(const rv_call &call, int64_t threads) {
        rv::share(call.batch * call.key_heads, threads, work, &call);
    }

  private:
    static void work(rv::Tasks &tasks, const void *argument) {
        [[maybe_unused]] typename Kind::Scope scope;
        Step step(*static_cast<const rv_call *>(argument));
        for (int64_t head; tasks.take(head);) step.run_head(head);
    }

    explicit Step(const rv_call &call) : Few(call) {
        strip = room.template take<Pack>(size_t(W * depth));
        across = room.template take<Pack>(size_t(depth * TILE));
        scores = room.template take<Acc>(size_t(count * TILE));
        weights = Kind::step == 1 ? reinterpret_cast<Pack *>(scores)
                                  : room.template take<Pack>(size_t(count * TILE / 2));
        out = room.template take<Acc>(size_t(count * width));
    }

    void run_head(int64_t index) {
        this->turn_to(index);
        std::memset(out, 0, size_t(count * width) * sizeof(Acc));
        for (int r = 0; r < count; r++) top[r] = NOTHING, total[r] = 0;
        // What is heard of a tile is one piece, from its first key to its last: see Forward.
        for (int i = 0; i < heard;) {
            int64_t from = intervals[i].from, to = intervals[i].to, tile_end = (from / TILE + 1) * TILE;
            if (to >= tile_end) {
                tile(from, tile_end);
                intervals[i].from = tile_end;
                i += to == tile_end;
                continue;
            }
            for (i++; i < heard && intervals[i].from < tile_end; i++) {
                to = std::min(intervals[i].to, tile_end);
                if (intervals[i].to > tile_end) {
                    intervals[i].from = tile_end;
                    break;
                }
            }
            tile(from, to);
        }
        head = -1; // the intervals are used up
        for (int r = 0; r < count; r++) {
            RowEnd<Acc> end(call, lanes.head[r], top[r], total[r]);
            write_row(out + r * width, lanes.row(call.out, r), call.out.dtype, call.value_dim, end.factor);
            static_cast<Acc *>(call.lse)[lanes.place(call, r)] = end.lse;
        }
    }

    // Keys [first, to), in one tile.
    void tile(int64_t first, int64_t to) {
        int64_t from = first - first % Kind::grain, padded = round_up(to - from, W);
        for (int64_t n = 0; n < padded; n += W) turn_keys(first, from + n, std::min(from + n + W, to), across + n);
        product<Kind, ALONG>({query, depth}, across, TILE, scores, TILE, count, padded / W, depth_of<Kind>(call.dim), false);
        Acc factor = Acc(left_to_scale(call) * LOG2E), sums[Few::MOST] = {};
        for (int r = 0; r < count; r++) {
            Acc *s = scores + r * TILE;
            this->hide_row(r, from, to, s);
            for (int64_t n = to - from; n < padded; n++) s[n] = NOTHING;
            weigh(r, padded, s, factor);
        }
        for (int64_t n = 0; n < to - from; n++)
            for (int r = 0; r < count; r++) sums[r] += scores[r * TILE + n];
        for (int r = 0; r < count; r++) {
            total[r] += sums[r];
            if (Kind::step == 2)
                write_row<Acc>(scores + r * TILE, reinterpret_cast<char *>(weights + r * TILE / 2), RV_BFLOAT16, padded,
                               Acc(1));
        }
        this->add_values(weights, TILE / Kind::step, first, from, to, out, width);
    }

    // Keys [n, to), at most a vector of them, as the columns of `turned`.
    void turn_keys(int64_t first, int64_t n, int64_t to, Pack *turned) {
        Walk keys = this->keys(), values(call, call.value, lanes.batch, head % call.key_heads);
        for (int i = 0; i < W; i++) {
            bool there = n + i >= first && n + i < to;
            if (there && call.table) values.fetch(n + i, call.value_dim);
            if (there)
                pack_row<Kind>(keys.row(n + i), call.dtype, strip + i * depth, call.dim, depth);
            else
                std::memset(strip + i * depth, 0, size_t(depth) * sizeof(Pack));
        }
        for (int64_t d = 0; d < depth; d += W) transpose(strip + d, depth, turned + d * TILE, TILE);
    }

    // Scores of a row become weights; what was summed up so far is measured by the new top. As in Forward, term by term.
    void weigh(int r, int64_t padded, Acc *s, Acc factor) {
        Vec<Acc> tops = splat(top[r]);
        for (int64_t n = 0; n < padded; n += W) tops = larger<Acc>(tops, load(s + n));
        Acc before = top[r];
        for (int i = 0; i < W; i++) top[r] = std::max(top[r], tops[i]);
        Acc level = top[r] == NOTHING ? Acc(0) : top[r];
        Vec<Acc> offset = splat(rounded(level * factor)), highest = splat(level);
        if (before != top[r]) {
            Vec<Acc> shrink = exp2<Kind::exp_terms, Acc>(splat<Acc>((before - level) * factor));
            total[r] *= shrink[0];
            for (int64_t e = 0; e < width; e += W) store(out + r * width + e, load(out + r * width + e) * shrink);
        }
        bool large = is_large<Acc>(offset)[0];
        for (int64_t n = 0; n < padded; n += W) {
            Vec<Acc> x = load(s + n) * factor - offset;
            if (large) x = (load(s + n) - highest) * factor;
            store(s + n, exp2<Kind::exp_terms, Acc>(x));
        }
    }

    Pack *strip, *across, *weights;
    Acc *scores, *out;
    Acc top[Few::MOST], total[Few::MOST];
};

} // namespace RV_NAMESPACE
