// A linear layer, batch-invariant: out [rows, outs] = x [rows, depth] x weight [outs, depth]^T + bias.
//
// Both operands are contiguous along the depth, so a vector of an accumulator holds one output: lane n sums the terms n,
// n + W, ... in order, and the lanes are then added as a tree. Which rows and outputs are computed together does not
// enter into these sums, so a step of one row has the bits of a prompt.
#pragma once

#include "rearview.h"
#include "simd.hpp"
#include "threads.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

class Linear {
    static constexpr int W = WIDTH<float>;
    // Accumulators that fit into the registers: 24 of 32 with AVX-512, otherwise 12 of 16.
    static constexpr int M = RV_VECTOR_BYTES == 64 ? 4 : 3, N = RV_VECTOR_BYTES == 64 ? 6 : 4;
    // A task: its rows stay in the second cache while the weights pass by, and its weights are many pages.
    static constexpr int64_t TASK_ROWS = 16 * M, TASK_OUTS = 16 * N;
    // Fewer multiplications are done before another thread has started.
    static constexpr int64_t FEW = 1 << 16;

  public:
    static void run(const rv_linear_call &call, int64_t threads) {
        if (call.rows * call.outs * call.depth < FEW) threads = 1;
        rv::share(row_tasks(call) * out_tasks(call), threads, work, &call);
    }

  private:
    static int64_t row_tasks(const rv_linear_call &call) { return (call.rows + TASK_ROWS - 1) / TASK_ROWS; }
    static int64_t out_tasks(const rv_linear_call &call) { return (call.outs + TASK_OUTS - 1) / TASK_OUTS; }

    static void work(rv::Tasks &tasks, const void *argument) {
        const rv_linear_call &call = *static_cast<const rv_linear_call *>(argument);
        for (int64_t task; tasks.take(task);) {
            int64_t row = task / out_tasks(call) * TASK_ROWS, out = task % out_tasks(call) * TASK_OUTS;
            int64_t last_row = std::min(row + TASK_ROWS, call.rows), last_out = std::min(out + TASK_OUTS, call.outs);
            for (; last_out - out >= N; out += N) panel<N>(call, row, last_row, out);
            for (; out < last_out; out++) panel<1>(call, row, last_row, out);
        }
    }

    // Outputs [out, out + n) of the rows [row, last): their weights stay in the first cache.
    template <int n> static void panel(const rv_linear_call &call, int64_t row, int64_t last, int64_t out) {
        for (; last - row >= M; row += M) tile<M, n>(call, row, out);
        for (; row < last; row++) tile<1, n>(call, row, out);
    }

    template <int m, int n> static void tile(const rv_linear_call &call, int64_t row, int64_t out) {
        const float *x = call.x + row * call.x_stride, *weight = call.weight + out * call.weight_stride;
        const int64_t whole = call.depth / W * W, rest = call.depth - whole;
        Vec<float> sums[m][n] = {};
        for (int64_t k = 0; k < whole; k += W)
            step<m, n>(sums, x + k, call.x_stride, weight + k, call.weight_stride);
        if (rest) {
            float last_x[m][W] = {}, last_weight[n][W] = {};
            for (int i = 0; i < m; i++) std::copy_n(x + i * call.x_stride + whole, rest, last_x[i]);
            for (int j = 0; j < n; j++) std::copy_n(weight + j * call.weight_stride + whole, rest, last_weight[j]);
            step<m, n>(sums, last_x[0], W, last_weight[0], W);
        }
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                float sum = tree(sums[i][j]);
                call.out[(row + i) * call.out_stride + out + j] = call.bias ? sum + call.bias[out + j] : sum;
            }
    }

    template <int m, int n>
    static RV_INLINE void step(Vec<float> (&sums)[m][n], const float *x, int64_t x_stride, const float *weight,
                               int64_t weight_stride) {
        Vec<float> rows[m];
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) rows[i] = load(x + i * x_stride);
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            Vec<float> column = load(weight + j * weight_stride);
#pragma GCC unroll 8
            for (int i = 0; i < m; i++) sums[i][j] = fused<float>(rows[i], column, sums[i][j]);
        }
    }

    static RV_INLINE float tree(Vec<float> v) {
        float lanes[W];
        store(lanes, v);
        for (int half = W / 2; half; half /= 2)
#pragma GCC unroll 8
            for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
        return lanes[0];
    }
};

} // namespace RV_NAMESPACE
