// A few queries over many keys: a step with a cache. What counts is how fast keys and values come from memory, so a
// score is a dot product along the key as it lies there. The keys are split into pieces of a fixed length, which any
// thread may take; the last one of a head adds them up, in order.
#pragma once

#include "forward.hpp"

#include <atomic>
#include <cstdlib>
#include <memory>

namespace RV_NAMESPACE {

template <class T> RV_INLINE T sum_of(Vec<T> v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return _mm512_reduce_add_ps(v);
#endif
    T sum = 0;
    for (int i = 0; i < WIDTH<T>; i++) sum += v[i];
    return sum;
}

// The first `bytes` of a vector, and zeros: nothing behind them is read.
template <class T> RV_INLINE Vec<T> load_part(const char *from, int64_t bytes) {
    Vec<T> v{};
#if defined(__AVX512BW__)
    __m512i part = _mm512_maskz_loadu_epi8((uint64_t(1) << bytes) - 1, from);
    std::memcpy(&v, &part, sizeof v);
#else
    std::memcpy(&v, from, size_t(bytes));
#endif
    return v;
}

template <class Kind> class Decode {
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<Acc>;
    static constexpr Acc NOTHING = -std::numeric_limits<Acc>::infinity();
    static constexpr int64_t PIECE = 512;

    // What all threads share: for each head and piece, the rows' tops, totals and sums of values.
    struct Plan {
        const rv_call &call;
        Rows rows;
        int64_t pieces, width, size;
        Acc *parts;
        std::atomic<int64_t> *left; // pieces of each head that are not done
    };

  public:
    static constexpr int MOST = 8;

    // So few queries that most lanes of a vector would be empty.
    static bool suits(const rv_call &call) {
        return call.k_len > 0 && call.heads / call.key_heads * call.q_len <= MOST;
    }

    static void run(const rv_call &call, int64_t threads) {
        Rows rows(call);
        int64_t heads = call.batch * call.key_heads;
        Plan plan{call, rows, (call.k_len + PIECE - 1) / PIECE, round_up(call.value_dim, W), 0, nullptr, nullptr};
        plan.size = rows.group * call.q_len * (plan.width + W);
        std::unique_ptr<char, void (*)(void *)> memory(
            static_cast<char *>(std::aligned_alloc(
                64, size_t(round_up(heads * (plan.pieces * plan.size * int64_t(sizeof(Acc)) + 8), 64) + 64))),
            std::free);
        if (!memory) throw std::bad_alloc();
        plan.parts = reinterpret_cast<Acc *>(memory.get());
        plan.left = reinterpret_cast<std::atomic<int64_t> *>(plan.parts + heads * plan.pieces * plan.size);
        for (int64_t i = 0; i < heads; i++) new (plan.left + i) std::atomic<int64_t>(plan.pieces);
        rv::share(heads * plan.pieces, threads, work, &plan);
    }

  private:
    static void work(rv::Tasks &tasks, const void *argument) {
        const Plan &plan = *static_cast<const Plan *>(argument);
        Decode decode(plan);
        for (int64_t task; tasks.take(task);) {
            int64_t head = task / plan.pieces;
            decode.piece(head, task % plan.pieces);
            if (plan.left[head].fetch_sub(1, std::memory_order_acq_rel) == 1) decode.add_up(head);
        }
    }

    explicit Decode(const Plan &plan)
        : plan(plan), call(plan.call), depth(round_up(packs<Kind>(call.dim), W)),
          count(int(plan.rows.group * call.q_len)), plain(is_plain(call)) {
        key_direct = reads_directly<Kind>(call.dtype);
        key_bytes = key_direct ? call.dim * int64_t(size_of(call.dtype)) : depth * int64_t(sizeof(Pack));
        value_direct = key_direct && Kind::step == 1 && call.value_dim % W == 0 && !call.heard;
        query = room.take<Pack>(size_t(count * depth));
        key_row = room.take<Pack>(size_t(depth));
        scores = room.take<Acc>(size_t(count * PIECE));
        weights = Kind::step == 1 ? reinterpret_cast<Pack *>(scores) : room.take<Pack>(size_t(count * PIECE / 2));
        values = value_direct ? nullptr : room.take<Pack>(size_t(TILE / Kind::step * plan.width));
        lanes.starts = room.take<int32_t>(size_t(call.ranges * LANES));
        lanes.ends = room.take<int32_t>(size_t(call.ranges * LANES));
        intervals = room.take<Interval>(size_t(call.ranges * LANES));
        row = room.take<Acc>(size_t(plan.width));
    }

    void turn_to(int64_t index) {
        if (index == head) return;
        head = index;
        lanes.fill(call, plan.rows, head / call.key_heads, head % call.key_heads, 0);
        heard = lanes.heard(intervals);
        if (call.dropout) dropout.fill(call, lanes);
        for (int r = 0; r < count; r++)
            pack_row<Kind>(lanes.row(call.query, r), call.dtype, query + r * depth, call.dim, depth);
    }

    // [top, total, ..., sum of values] of a row.
    Acc *part(int64_t of_head, int64_t index, int r) const {
        return plan.parts + (of_head * plan.pieces + index) * plan.size + r * (plan.width + W);
    }

    void piece(int64_t of_head, int64_t index) {
        turn_to(of_head);
        int64_t first = index * PIECE, last = std::min(first + PIECE, call.k_len);
        for (int r = 0; r < count; r++) {
            Acc *mine = part(head, index, r);
            mine[0] = NOTHING, mine[1] = 0;
            std::memset(mine + W, 0, size_t(plan.width) * sizeof(Acc));
        }
        for (int i = 0; i < heard; i++) {
            // From a multiple of the step on, so that pairs are pairs; what that adds is masked.
            int64_t from = std::max(intervals[i].from, first), to = std::min(intervals[i].to, last);
            if (from < to) stretch(index, from - from % Kind::step, to);
        }
    }

    void stretch(int64_t index, int64_t from, int64_t to) {
        score(from, to);
        int64_t padded = round_up(to - from, Kind::step);
        for (int r = 0; r < count; r++) {
            Acc *s = scores + r * PIECE, *mine = part(head, index, r);
            if (!plain) finish(r, from, to, s);
            hide_row(r, from, to, s);
            for (int64_t n = to - from; n < round_up(padded, W); n++) s[n] = NOTHING;
            Vec<Acc> tops = splat(mine[0]);
            for (int64_t n = 0; n < padded; n += W) tops = larger<Acc>(tops, load(s + n));
            Acc top = mine[0];
            for (int i = 0; i < W; i++) top = std::max(top, tops[i]);
            Acc factor = Acc(left_to_scale(call) * LOG2E);
            Acc level = top == NOTHING ? Acc(0) : top;
            Acc shrink = exp2<Kind::exp_terms, Acc>(splat<Acc>((mine[0] - level) * factor))[0];
            for (int64_t e = W; e < W + plan.width; e += W) store(mine + e, load(mine + e) * shrink);
            mine[0] = top;
            mine[1] = mine[1] * shrink + weigh(r, from, padded, s, factor, level);
        }
        for (int64_t n = from; n < to;) {
            int64_t end = std::min((n / TILE + 1) * TILE, to);
            gather_values(n, end);
            product<Kind, ALONG>({weights + (n - from) / Kind::step, PIECE / Kind::step}, tile_values, tile_stride,
                                 part(head, index, 0) + W, plan.width + W, count, plan.width / W,
                                 packs<Kind>(end - n), true);
            n = end;
        }
    }

    void score(int64_t from, int64_t to) {
        for (int64_t n = from; n < to; n++) {
            const char *key = at(call.key, lanes.batch, head % call.key_heads, n);
            const char *numbers = key;
            if (!key_direct) {
                pack_row<Kind>(key, call.dtype, key_row, call.dim, depth);
                numbers = reinterpret_cast<const char *>(key_row);
            }
            switch (count) {
            case 1: dots<1>(numbers, 0, n - from); break;
            case 2: dots<2>(numbers, 0, n - from); break;
            case 3: dots<3>(numbers, 0, n - from); break;
            case 4: dots<4>(numbers, 0, n - from); break;
            default:
                dots<4>(numbers, 0, n - from);
                for (int r = 4; r < count; r++) dots<1>(numbers, r, n - from);
            }
        }
    }

    template <int R> RV_INLINE void dots(const char *key, int first, int64_t place) {
        Vec<Acc> acc[R] = {};
        constexpr int64_t BYTES = sizeof(Vec<Acc>);
        const Pack *q = query + first * depth;
        int64_t at = 0;
        for (; at + BYTES <= key_bytes; at += BYTES, q += W) {
            Vec<Acc> k;
            std::memcpy(&k, key + at, BYTES);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) acc[r] = Kind::times(acc[r], load(q + r * depth), k);
        }
        if (at < key_bytes) {
            Vec<Acc> k = load_part<Acc>(key + at, key_bytes - at);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) acc[r] = Kind::times(acc[r], load(q + r * depth), k);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) scores[(first + r) * PIECE + place] = sum_of<Acc>(acc[r]);
    }

    void finish(int r, int64_t from, int64_t to, Acc *s) {
        const char *bias = call.bias.data ? lanes.row(call.bias, r) : nullptr;
        int64_t bias_step = call.bias.stride[3] * int64_t(size_of(call.bias.dtype));
        Acc position = Acc(call.q_start + lanes.query[r]), cap = Acc(call.softcap);
        for (int64_t n = from; n < to; n++) {
            Acc x = s[n - from] * Acc(call.scale);
            if (cap != 0) x = std::tanh(x / cap) * cap;
            if (call.slopes) x -= Acc(call.slopes[lanes.head[r]]) * std::abs(position - Acc(n));
            if (bias) x += Acc(number_at(bias + n * bias_step, call.bias.dtype));
            s[n - from] = x;
        }
    }

    void hide_row(int r, int64_t from, int64_t to, Acc *s) {
        int64_t next = from;
        for (int64_t i = 0; i < lanes.ranges; i++) {
            int64_t start = std::min<int64_t>(lanes.starts[i * LANES + r], to);
            for (; next < start; next++) s[next - from] = NOTHING;
            next = std::max(next, std::min<int64_t>(lanes.ends[i * LANES + r], to));
        }
        for (; next < to; next++) s[next - from] = NOTHING;
    }

    // exp(score - top) of a row, in the form that the product reads; returns their sum. The top is subtracted first:
    // of huge scores the difference is exact.
    Acc weigh(int r, int64_t from, int64_t padded, Acc *s, Acc factor, Acc level) {
        Vec<Acc> sum{};
        for (int64_t n = 0; n < padded; n += W) {
            Vec<Acc> w = exp2<Kind::exp_terms, Acc>((load(s + n) - level) * factor);
            sum += w;
            if (call.dropout)
                for (int i = 0; i < W; i++) w[i] *= dropout.factor_of(r, from + n + i);
            store(s + n, w);
        }
        if (Kind::step == 2)
            write_row<Acc>(s, reinterpret_cast<char *>(weights + r * PIECE / 2), RV_BFLOAT16, padded, Acc(1));
        return sum_of<Acc>(sum);
    }

    void gather_values(int64_t from, int64_t to) {
        int64_t key_head = head % call.key_heads;
        if (value_direct) {
            tile_values = reinterpret_cast<const Pack *>(at(call.value, lanes.batch, key_head, from));
            tile_stride = call.value.stride[2];
            return;
        }
        auto value = [&](int64_t n) -> const char * {
            return n < to && is_heard(call, lanes.batch, key_head, n) ? at(call.value, lanes.batch, key_head, n) : nullptr;
        };
        for (int64_t n = from; n < to; n += Kind::step)
            pack_across<Kind>(value(n), Kind::step == 2 ? value(n + 1) : nullptr, call.dtype,
                              values + (n - from) / Kind::step * plan.width, call.value_dim, plan.width);
        tile_values = values, tile_stride = plan.width;
    }

    void add_up(int64_t of_head) {
        turn_to(of_head);
        for (int r = 0; r < count; r++) {
            Acc top = NOTHING, total = 0;
            for (int64_t i = 0; i < plan.pieces; i++) top = std::max(top, part(head, i, r)[0]);
            std::memset(row, 0, size_t(plan.width) * sizeof(Acc));
            Acc factor = Acc(left_to_scale(call) * LOG2E);
            for (int64_t i = 0; i < plan.pieces && top != NOTHING; i++) {
                const Acc *one = part(head, i, r);
                Acc shrink = exp2<Kind::exp_terms, Acc>(splat<Acc>((one[0] - top) * factor))[0];
                total += one[1] * shrink;
                for (int64_t e = 0; e < plan.width; e += W) store(row + e, load(row + e) + load(one + W + e) * shrink);
            }
            write_row(row, lanes.row(call.out, r), call.dtype, call.value_dim, total == 0 ? Acc(0) : 1 / total);
            static_cast<Acc *>(call.lse)[lanes.place(call, r)] =
                total == 0 ? NOTHING : rounded(top * Acc(left_to_scale(call))) + std::log(total);
        }
    }

    const Plan &plan;
    const rv_call &call;
    Room room;
    const int64_t depth;
    const int count;
    const bool plain;
    bool key_direct, value_direct;
    int64_t key_bytes;
    Pack *query, *key_row, *weights, *values;
    Acc *scores, *row;
    Lanes lanes;
    Interval *intervals;
    Dropout<Acc> dropout;
    const Pack *tile_values = nullptr;
    int64_t tile_stride = 0, head = -1;
    int heard = 0;
};

} // namespace RV_NAMESPACE
