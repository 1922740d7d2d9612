// A few queries over many keys, as in a step with a cache. The time is that of reading keys and values from memory, so
// a score is a dot product along the key in its own layout. The keys are split into pieces of a fixed length, which any
// thread may take; the last thread of a head adds the pieces in order.
#pragma once

#include "few_queries.hpp"
#include "threads.hpp"

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

// The first `bytes` of a vector, and zeros; nothing beyond them is read.
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

template <class Kind> class Decode : FewQueries<Kind> {
    using Few = FewQueries<Kind>;
    using typename Few::Acc;
    using typename Few::Pack;
    using Few::W, Few::NOTHING, Few::call, Few::rows, Few::room, Few::depth, Few::width, Few::count, Few::key_direct,
        Few::query, Few::lanes, Few::intervals, Few::heard, Few::dropout, Few::head;
    static constexpr int64_t PIECE = 512;

    // State shared by all threads: per head and piece, the maxima, totals and sums of values of the rows.
    struct Plan {
        const rv_call &call;
        int64_t pieces, size;
        Acc *parts;
        std::atomic<int64_t> *left; // the number of unfinished pieces of each head
    };

  public:
    using Few::suits;

    static void run(const rv_call &call, int64_t threads) {
        int64_t heads = call.batch * call.key_heads;
        Plan plan{call, (call.k_len + PIECE - 1) / PIECE, 0, nullptr, nullptr};
        plan.size = call.heads / call.key_heads * call.q_len * (round_up(call.value_dim, W) + W);
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
        [[maybe_unused]] typename Kind::Scope scope;
        Decode decode(plan);
        for (int64_t task; tasks.take(task);) {
            int64_t head = task / plan.pieces;
            decode.piece(head, task % plan.pieces);
            if (plan.left[head].fetch_sub(1, std::memory_order_acq_rel) == 1) decode.add_up(head);
        }
    }

    explicit Decode(const Plan &plan) : Few(plan.call), plan(plan), plain(is_plain(call)) {
        key_bytes = key_direct ? call.dim * int64_t(size_of(call.dtype)) : depth * int64_t(sizeof(Pack));
        key_row = room.template take<Pack>(size_t(depth));
        scores = room.template take<Acc>(size_t(count * PIECE));
        weights = Kind::step == 1 ? reinterpret_cast<Pack *>(scores)
                                  : room.template take<Pack>(size_t(count * PIECE / 2));
        row = room.template take<Acc>(size_t(width));
    }

    // [top, total, ..., sum of values] of a row.
    Acc *part(int64_t of_head, int64_t index, int r) const {
        return plan.parts + (of_head * plan.pieces + index) * plan.size + r * (width + W);
    }

    void piece(int64_t of_head, int64_t index) {
        this->turn_to(of_head);
        int64_t first = index * PIECE, last = std::min(first + PIECE, call.k_len);
        for (int r = 0; r < count; r++) {
            Acc *mine = part(head, index, r);
            mine[0] = NOTHING, mine[1] = 0;
            std::memset(mine + W, 0, size_t(width) * sizeof(Acc));
        }
        for (int i = 0; i < heard; i++) {
            // Begins at a multiple of the step, so that pairs stay aligned; the keys that this adds are masked.
            int64_t from = std::max(intervals[i].from, first), to = std::min(intervals[i].to, last);
            if (from < to) stretch(index, from, to);
        }
    }

    void stretch(int64_t index, int64_t first, int64_t to) {
        int64_t from = first - first % Kind::step;
        score(from, to);
        int64_t padded = round_up(to - from, Kind::step);
        for (int r = 0; r < count; r++) {
            Acc *s = scores + r * PIECE, *mine = part(head, index, r);
            if (!plain) finish(r, from, to, s);
            this->hide_row(r, from, to, s);
            for (int64_t n = to - from; n < round_up(padded, W); n++) s[n] = NOTHING;
            Vec<Acc> tops = splat(mine[0]);
            for (int64_t n = 0; n < padded; n += W) tops = larger<Acc>(tops, load(s + n));
            Acc top = mine[0];
            for (int i = 0; i < W; i++) top = std::max(top, tops[i]);
            Acc factor = Acc(left_to_scale(call) * LOG2E);
            Acc level = top == NOTHING ? Acc(0) : top;
            Acc shrink = exp2<Kind::exp_terms, Acc>(splat<Acc>((mine[0] - level) * factor))[0];
            for (int64_t e = W; e < W + width; e += W) store(mine + e, load(mine + e) * shrink);
            mine[0] = top;
            mine[1] = mine[1] * shrink + weigh(r, from, padded, s, factor, level);
        }
        this->add_values(weights, PIECE / Kind::step, first, from, to, part(head, index, 0) + W, width + W);
    }

    void score(int64_t from, int64_t to) {
        Walk keys = this->keys(), ahead = keys, values(call, call.value, lanes.batch, head % call.key_heads);
        for (int64_t n = from; n < to; n++) {
            if (call.table) ahead.fetch(std::min(n + AHEAD, to - 1), call.dim), values.fetch(n, call.value_dim);
            score_key(keys.row(n), n - from);
        }
    }

    void score_key(const char *key, int64_t place) {
        if (!key_direct) {
            pack_row<Kind>(key, call.dtype, key_row, call.dim, depth);
            key = reinterpret_cast<const char *>(key_row);
        }
        switch (count) {
        case 1: dots<1>(key, 0, place); break;
        case 2: dots<2>(key, 0, place); break;
        case 3: dots<3>(key, 0, place); break;
        case 4: dots<4>(key, 0, place); break;
        default:
            dots<4>(key, 0, place);
            for (int r = 4; r < count; r++) dots<1>(key, r, place);
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
        Acc position = Acc(position_of(call, lanes.batch, lanes.query[r])), cap = Acc(call.softcap);
        for (int64_t n = from; n < to; n++) {
            Acc x = s[n - from] * Acc(call.scale);
            if (cap != 0) x = std::tanh(x / cap) * cap;
            if (call.slopes) x -= Acc(call.slopes[lanes.head[r]]) * std::abs(position - Acc(n));
            if (bias) x += Acc(number_at(bias + n * bias_step, call.bias.dtype));
            s[n - from] = x;
        }
    }

    // exp(score - top) of a row, in the form that the product reads; returns the sum. The top is subtracted first,
    // because the difference of huge scores is exact.
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

    void add_up(int64_t of_head) {
        this->turn_to(of_head);
        for (int r = 0; r < count; r++) {
            Acc top = NOTHING, total = 0;
            for (int64_t i = 0; i < plan.pieces; i++) top = std::max(top, part(head, i, r)[0]);
            std::memset(row, 0, size_t(width) * sizeof(Acc));
            Acc factor = Acc(left_to_scale(call) * LOG2E);
            for (int64_t i = 0; i < plan.pieces && top != NOTHING; i++) {
                const Acc *one = part(head, i, r);
                Acc shrink = exp2<Kind::exp_terms, Acc>(splat<Acc>((one[0] - top) * factor))[0];
                total += one[1] * shrink;
                for (int64_t e = 0; e < width; e += W) store(row + e, load(row + e) + load(one + W + e) * shrink);
            }
            RowEnd<Acc> end(call, lanes.head[r], top, total);
            write_row(row, lanes.row(call.out, r), call.out.dtype, call.value_dim, end.factor);
            static_cast<Acc *>(call.lse)[lanes.place(call, r)] = end.lse;
        }
    }

    const Plan &plan;
    const bool plain;
    int64_t key_bytes;
    Pack *key_row, *weights;
    Acc *scores, *row;
};

} // namespace RV_NAMESPACE
