// The definition, one pair at a time, in double precision. The kernel is compared with it.
#ifndef REARVIEW_REFERENCE_HPP
#define REARVIEW_REFERENCE_HPP

#include <functional>
#include <vector>

#include "rearview.h"

namespace reference {

// Whether dropout keeps the weight of (batch, head, query, key).
using Keep = std::function<bool(int64_t, int64_t, int64_t, int64_t)>;

// Contiguous numbers, and for each the size of the terms that it sums: its rounding error is a small multiple of that
// size times the resolution of the dtype.
struct Numbers {
    std::vector<double> value, size;

    explicit Numbers(int64_t count = 0) : value(size_t(count), 0), size(size_t(count), 0) {}
    void add(int64_t index, double term, double its_size) {
        value[size_t(index)] += term;
        size[size_t(index)] += its_size;
    }
};

struct Output {
    Numbers out; // [batch, heads, q_len, value_dim]
    Numbers lse; // [batch, heads, q_len]
};

struct Gradients {
    Numbers query, key, value; // [batch, (key) heads, time, dim]
    Numbers bias;              // [batch, heads, q_len, k_len], if d_bias is given: before it is summed over axes
    Numbers sinks;             // [heads]
};

// Backward computes its own output and log-sum-exp, and does not rely on a forward pass.
Output forward(const rv_call &call, const Keep &keep);
Gradients backward(const rv_call &call, const Keep &keep);

// All outputs of rv_statistics, [batch, heads, ...], and the weights, [batch, heads, q_len, k_len].
struct Statistics {
    Numbers lse, entropy, top, distance, first, received, histogram, map, rows_heard, weights;
};
Statistics statistics(const rv_statistics_call &call);

double activation(int64_t function, double x);

// Element `index` of a tensor, whatever its dtype.
double load(const rv_tensor &tensor, int64_t index);
void store(const rv_tensor &tensor, int64_t index, double value);
int64_t at(const rv_tensor &tensor, int64_t b, int64_t h, int64_t t, int64_t d);
// The same for key or value `k` of an item, which may be in a block.
int64_t key_at(const rv_call &call, const rv_tensor &tensor, int64_t b, int64_t h, int64_t k, int64_t d);

// Resolution of a dtype, of its sums, and its smallest step.
double epsilon(int64_t dtype);
double smallest(int64_t dtype);

} // namespace reference
#endif
