// Contiguous scores of one query, and the operations on them between the product and the softmax.
#pragma once

#include "scores.hpp"

#include <cmath>

namespace RV_NAMESPACE {

// Row `r` over `count` keys from `from` on (padded to whole vectors), in place:
// softcap(scale x score) - slope x distance + bias.
template <class Acc>
void finish_row(const rv_call &call, const Lanes &lanes, int r, int64_t from, int64_t count, Acc *s) {
    constexpr int W = WIDTH<Acc>;
    Acc cap = Acc(call.softcap), slope = call.slopes ? Acc(call.slopes[lanes.head[r]]) : Acc(0);
    Vec<Acc> distance;
    for (int i = 0; i < W; i++) distance[i] = Acc(call.q_start + lanes.query[r] - from - i);
    for (int64_t n = 0; n < count; n += W) {
        Vec<Acc> x = load(s + n) * Acc(call.scale);
        if (cap != 0) x = tanh<Acc>(x / cap) * cap;
        if (call.slopes) x -= slope * (distance < Acc(0) ? -distance : distance);
        distance -= Acc(W);
        store(s + n, x);
    }
    if (!call.bias.data) return;
    int64_t size = int64_t(size_of(call.bias.dtype)), step = call.bias.stride[3] * size;
    const char *bias = lanes.row(call.bias, r) + from * step;
    int64_t n = 0;
    if (sizeof(Acc) == 4 && call.bias.dtype == RV_FLOAT32 && step == size)
        for (; n + W <= count; n += W) {
            Vec<Acc> x;
            std::memcpy(&x, bias + n * size, sizeof x);
            store(s + n, load(s + n) + x);
        }
    for (; n < count; n++) s[n] += Acc(number_at(bias + n * step, call.bias.dtype));
}

// Sets -inf where row `r` does not hear a key of [from, to). `next` is the first of its ranges that ends after the
// previous keys; stretches are processed from left to right.
template <class Acc>
void hide_row(const Lanes &lanes, int r, int64_t &next, int64_t from, int64_t to, Acc *s) {
    while (next < lanes.ranges && lanes.ends[next * LANES + r] <= from) next++;
    int64_t done = from;
    for (int64_t i = next; i < lanes.ranges && done < to; i++) {
        int64_t start = std::min<int64_t>(lanes.starts[i * LANES + r], to), end = lanes.ends[i * LANES + r];
        for (; done < start; done++) s[done - from] = -std::numeric_limits<Acc>::infinity();
        done = std::max(done, std::min(end, to));
    }
    for (; done < to; done++) s[done - from] = -std::numeric_limits<Acc>::infinity();
}

} // namespace RV_NAMESPACE
