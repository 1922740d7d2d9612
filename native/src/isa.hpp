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

// How bfloat16 is multiplied: many queries, and a few, which are a matter of reading keys.
#if defined(RV_TILES)
using Bfloat16 = Tiles;
using FewBfloat16 = Pairs;
#elif defined(__AVX512BF16__)
using Bfloat16 = Pairs;
using FewBfloat16 = Pairs;
#else
using Bfloat16 = Float;
using FewBfloat16 = Float;
#endif

template <class Kind, class FewKind = Kind> void forward_of(const rv_call &call, int64_t threads) {
    if (call.batch_invariant ? Step<Kind>::suits(call) : Decode<FewKind>::suits(call))
        return call.batch_invariant ? Step<Kind>::run(call, threads) : Decode<FewKind>::run(call, threads);
    Forward<Kind>::run(call, threads);
}

inline void forward(const rv_call &call, int64_t threads) {
    if (call.dtype == RV_FLOAT64) return forward_of<Double>(call, threads);
    if (call.dtype == RV_BFLOAT16) return forward_of<Bfloat16, FewBfloat16>(call, threads);
    forward_of<Float>(call, threads);
}

inline void backward(const rv_call &call, int64_t threads) {
    if (call.dtype == RV_FLOAT64) return Backward<Double>::run(call, threads);
    if (call.dtype == RV_BFLOAT16) return Backward<Bfloat16>::run(call, threads);
    Backward<Float>::run(call, threads);
}

inline void statistics(const rv_statistics_call &call, int64_t threads) {
    if (call.attention.dtype == RV_FLOAT64) return Statistics<Double>::run(call, threads);
    if (call.attention.dtype == RV_BFLOAT16) return Statistics<Bfloat16>::run(call, threads);
    Statistics<Float>::run(call, threads);
}

static const rv::Kernel kernel{forward, backward, statistics, Linear::run, Activation::run};

} // namespace RV_NAMESPACE
