// Activation functions, batch-invariant: every number goes through the same vector code, also the last few.
#pragma once

#include "rearview.h"
#include "simd.hpp"
#include "threads.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

constexpr float LOG2_E = 1.44269504f;

// x / (1 + e^-y): x times the logistic function of y.
RV_INLINE Vec<float> gated(Vec<float> x, Vec<float> y) {
    Vec<float> power = y * -LOG2_E;
    power = power > 126.0f ? splat(126.0f) : power; // written so that NaN remains NaN
    return x / (exp2<5, float>(power) + 1.0f);
}

// x times the normal distribution function, in which half of erfc(|x| / sqrt(2)) is 2^(|x| p(|x|)) / 2. The polynomial is
// a minimax fit on [0, 6], with an error below 3e-8; from 6 on the tail is below 1e-9 and counts as 0.
RV_INLINE Vec<float> gelu(Vec<float> x) {
    constexpr float c[] = {-1.15110451f, -0.459218414f, -0.0524468195f, 0.00695193235f, -1.57225817e-06f,
                           -0.000279911978f, 7.67104136e-05f, -1.10203044e-05f, 8.62796818e-07f, -2.88901286e-08f};
    Vec<float> size = x < 0.0f ? -x : x, zero{};
    Vec<float> p = splat(c[9]);
#pragma GCC unroll 16
    for (int i = 8; i >= 0; i--) p = p * size + c[i];
    Vec<float> tail = exp2<5, float>(p * size) * 0.5f;
    tail = size >= 6.0f ? zero : tail;
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

RV_INLINE Vec<float> gelu_tanh(Vec<float> x) {
    // (1 + tanh(u)) / 2 is the logistic function of 2 u.
    return gated(x, (x * x * 0.044715f + 1.0f) * x * 1.59576912f); // 2 sqrt(2 / pi)
}

RV_INLINE Vec<float> relu(Vec<float> x) {
    Vec<float> zero{};
    return x < 0.0f ? zero : x;
}

class Activation {
    static constexpr int W = WIDTH<float>;
    static constexpr int64_t TASK = 4096;

  public:
    static void run(const rv_activation_call &call, int64_t threads) {
        rv::share((call.count + TASK - 1) / TASK, threads, work, &call);
    }

  private:
    static void work(rv::Tasks &tasks, const void *argument) {
        const rv_activation_call &call = *static_cast<const rv_activation_call *>(argument);
        for (int64_t task; tasks.take(task);) {
            int64_t first = task * TASK, count = std::min(TASK, call.count - first);
            switch (call.function) {
            case RV_RELU: apply(call, first, count, relu); break;
            case RV_SILU: apply(call, first, count, [](Vec<float> x) { return gated(x, x); }); break;
            case RV_GELU: apply(call, first, count, gelu); break;
            default: apply(call, first, count, gelu_tanh);
            }
        }
    }

    template <class Function>
    static RV_INLINE void apply(const rv_activation_call &call, int64_t first, int64_t count, Function function) {
        const float *x = call.x + first;
        float *out = call.out + first;
        int64_t n = 0;
        for (; n + W <= count; n += W) store(out + n, function(load(x + n)));
        if (n == count) return;
        float last[W] = {};
        std::copy(x + n, x + count, last);
        store(last, function(load(last)));
        std::copy_n(last, count - n, out + n);
    }
};

} // namespace RV_NAMESPACE
