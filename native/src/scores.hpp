// Operations on scores between the product and the softmax, and their gradients: scale, softcap, slopes, bias, dropout.
#pragma once

#include "lanes.hpp"
#include "pack.hpp"

#include <cmath>

namespace RV_NAMESPACE {

constexpr double LOG2E = 1.44269504088896340736;

// A weight is 2^(score x factor - exponent), computed in one fused step. For exponents above this limit, rounding
// changes the exponent of the largest score by 2^-14 or more in float32, so its weight is not exactly 1; at 2^31 the
// error is unbounded. The few rows with such scores subtract first, which is exact.
constexpr int LARGE_EXPONENT = 2048;

template <class Acc> RV_INLINE Mask<Acc> is_large(Vec<Acc> exponent) {
    return ~((exponent < Acc(LARGE_EXPONENT)) & (exponent > Acc(-LARGE_EXPONENT)));
}

// The rows of the lanes, transposed: [dim, lane]. `strip` has room for a vector of rows.
template <class Kind>
void pack_lanes(const rv_tensor &tensor, int64_t dim, const Lanes &lanes, typename Kind::Pack *strip,
                typename Kind::Pack *to) {
    constexpr int W = WIDTH<typename Kind::Acc>;
    int64_t padded = round_up(packs<Kind>(dim), W);
    bool whole = reads_directly<Kind>(tensor.dtype) && dim % (W * Kind::step) == 0 && tensor.stride[2] % Kind::step == 0;
    for (int v = 0; v < lanes.vectors<typename Kind::Acc>(); v++) {
        const typename Kind::Pack *rows = strip;
        int64_t stride = padded;
        int first = v * W, last = first + W - 1;
        const char *row = lanes.row(tensor, first);
        bool aligned = reinterpret_cast<uintptr_t>(row) % sizeof *strip == 0;
        if (whole && aligned && last < lanes.count && lanes.head[first] == lanes.head[last]) {
            // Rows of one head, in place.
            rows = reinterpret_cast<const typename Kind::Pack *>(row);
            stride = tensor.stride[2] / Kind::step;
        } else {
            for (int lane = first; lane <= last; lane++) {
                typename Kind::Pack *to_row = strip + (lane - first) * padded;
                if (lane < lanes.count)
                    pack_row<Kind>(lanes.row(tensor, lane), tensor.dtype, to_row, dim, padded);
                else
                    std::memset(to_row, 0, size_t(padded) * sizeof *to_row);
            }
        }
        for (int64_t d = 0; d < padded; d += W) transpose(rows + d, stride, to + d * LANES + first, LANES);
    }
}

// Whether there is only a positive scale, which is then part of the exponential.
RV_INLINE bool is_plain(const rv_call &call) {
    return call.scale > 0 && call.softcap == 0 && !call.bias.data && !call.slopes;
}

// The factor that is still to be applied to a score of a plain call; other scores are complete.
RV_INLINE double left_to_scale(const rv_call &call) { return is_plain(call) ? call.scale : 1.0; }

// The position of a query, for the slopes.
RV_INLINE int64_t position_of(const rv_call &call, int64_t batch, int64_t query) {
    return (call.lengths ? call.lengths[batch] - call.q_len : call.q_start) + query;
}

// How the softmax of a row ends: what its values are multiplied with, and its log-sum-exp.
template <class Acc> struct RowEnd {
    Acc factor = 0, lse = -std::numeric_limits<Acc>::infinity();

    RowEnd(const rv_call &call, int64_t head, Acc top, Acc total) {
        if (total != 0) {
            factor = 1 / total;
            lse = rounded(top * Acc(left_to_scale(call))) + std::log(total);
        }
        if (!call.sinks) return;
        Acc sink = static_cast<const Acc *>(call.sinks)[head];
        if (total == 0) {
            lse = sink;
        } else if (sink > lse) {
            Acc less = std::exp(lse - sink);
            factor *= less / (1 + less);
            lse = sink + std::log1p(less);
        } else {
            Acc less = std::exp(sink - lse);
            factor /= 1 + less;
            lse += std::log1p(less);
        }
    }
};

// A 32-bit hash (Wellons' lowbias32).
template <class V> RV_INLINE V mixed(V x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

// Which weights are dropped: a function of (seed, batch, head, query, key), independent of threads and order.
template <class Acc> class Dropout {
  public:
    void fill(const rv_call &call, const Lanes &lanes) {
        limit = uint32_t(call.dropout * 16777216.0); // in 24 bits
        kept = Acc(1 / (1 - call.dropout));
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t row = lane < lanes.count ? uint64_t(lanes.place(call, lane)) : 0;
            uint32_t x = mixed(uint32_t(call.seed) ^ mixed(uint32_t(row)));
            rows[lane] = mixed(x ^ uint32_t(call.seed >> 32) ^ mixed(uint32_t(row >> 32) + 0x9e3779b9U));
        }
    }
    // 0 if the weight of `key` is dropped, otherwise the factor that compensates for the dropped ones.
    RV_INLINE Vec<Acc> factor(int v, int64_t key) const {
        constexpr int W = WIDTH<Acc>;
        Vec<Acc> factor;
        for (int i = 0; i < W; i++) factor[i] = factor_of(v * W + i, key);
        return factor;
    }
    RV_INLINE Acc factor_of(int lane, int64_t key) const {
        uint32_t salt = mixed(uint32_t(key) * 0x9e3779b1U + 1);
        return (mixed(rows[lane] ^ salt) >> 8) < limit ? Acc(0) : kept;
    }

  private:
    uint32_t rows[LANES];
    uint32_t limit = 0;
    Acc kept = 1;
};

// One vector of lanes of scores, keys [from, to), in place: softcap(scale x score) - slope x distance + bias. `slope`,
// if given, takes the derivative by the product. Rows of `scores` and `slope` are LANES wide and begin at key `origin`.
template <class Acc>
void finish_scores(const rv_call &call, const Lanes &lanes, int v, int64_t from, int64_t to, int64_t origin,
                   Acc *scores, Acc *slope) {
    constexpr int W = WIDTH<Acc>;
    int first = v * W, end = std::min(lanes.count, first + W);
    Vec<Acc> slopes{}, position{};
    const char *bias[W];
    int64_t bias_step = 0;
    for (int i = 0; i < W; i++) {
        int lane = std::min(first + i, end - 1); // unused lanes repeat the last one
        if (call.slopes) slopes[i] = Acc(call.slopes[lanes.head[lane]]);
        position[i] = Acc(position_of(call, lanes.batch, lanes.query[lane]));
        if (call.bias.data) bias[i] = lanes.row(call.bias, lane);
    }
    if (call.bias.data) bias_step = call.bias.stride[3] * int64_t(size_of(call.bias.dtype));
    Acc cap = Acc(call.softcap);
    for (int64_t key = from; key < to; key++) {
        Acc *where = scores + (key - origin) * LANES + first;
        Vec<Acc> s = load(where) * Acc(call.scale);
        Vec<Acc> d = splat<Acc>(Acc(call.scale));
        if (cap != 0) {
            Vec<Acc> t = tanh<Acc>(s / cap);
            s = t * cap;
            d *= Acc(1) - t * t;
        }
        if (call.slopes) {
            Vec<Acc> distance = position - Acc(key);
            s -= slopes * (distance < Acc(0) ? -distance : distance);
        }
        if (call.bias.data) {
            Vec<Acc> b;
            for (int i = 0; i < W; i++) b[i] = Acc(number_at(bias[i] + key * bias_step, call.bias.dtype));
            s += b;
        }
        store(where, s);
        if (slope) store(slope + (key - origin) * LANES + first, d);
    }
}

// Sets -inf where a lane does not hear a key.
template <class Acc>
void hide(const Lanes &lanes, const Cut<Acc> &cut, int v, int64_t from, int64_t to, int64_t origin, Acc *scores) {
    constexpr int W = WIDTH<Acc>;
    for (int64_t key = from; key < to; key++) {
        if (key >= cut.inside_from[v] && key < cut.inside_to[v]) continue;
        Acc *where = scores + (key - origin) * LANES + v * W;
        store(where, select<Acc>(hears<Acc>(lanes, v, key), load(where),
                                 splat<Acc>(-std::numeric_limits<Acc>::infinity())));
    }
}

} // namespace RV_NAMESPACE
