// The kernel of one instruction set: the kind of product for each dtype.
#pragma once

#include "activation.hpp"
#include "backward.hpp"
#include "decode.hpp"
#include "kernel.hpp"
#include "linear.hpp"
#include "statistics.hpp"
#include "step.hpp"

namespace RV_NAMESPACE {

template <class Kind> void forward_of(const rv_call &call, int64_t threads) {
    if (call.batch_invariant ? Step<Kind>::suits(call) : Decode<Kind>::suits(call))
        return call.batch_invariant ? Step<Kind>::run(call, threads) : Decode<Kind>::run(call, threads);
    Forward<Kind>::run(call, threads);
}

inline void forward(const rv_call &call, int64_t threads) {
    if (call.dtype == RV_FLOAT64) return forward_of<Double>(call, threads);
#if defined(__AVX512BF16__)
    if (call.dtype == RV_BFLOAT16) return forward_of<Pairs>(call, threads);
#endif
    forward_of<Float>(call, threads);
}

inline void backward(const rv_call &call, int64_t threads) {
    if (call.dtype == RV_FLOAT64) return Backward<Double>::run(call, threads);
#if defined(__AVX512BF16__)
    if (call.dtype == RV_BFLOAT16) return Backward<Pairs>::run(call, threads);
#endif
    Backward<Float>::run(call, threads);
}

inline void statistics(const rv_statistics_call &call, int64_t threads) {
    if (call.attention.dtype == RV_FLOAT64) return Statistics<Double>::run(call, threads);
#if defined(__AVX512BF16__)
    if (call.attention.dtype == RV_BFLOAT16) return Statistics<Pairs>::run(call, threads);
#endif
    Statistics<Float>::run(call, threads);
}

static const rv::Kernel kernel{forward, backward, statistics, Linear::run, Activation::run};

} // namespace RV_NAMESPACE
