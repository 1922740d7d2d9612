// The definition, one pair at a time, in double precision. The kernel is compared with it.
#ifndef REARVIEW_REFERENCE_HPP
#define REARVIEW_REFERENCE_HPP

#include <cmath>
#include <functional>
#include <vector>

#include "rearview.h"

namespace reference {

// Whether dropout keeps the weight of (batch, head, query, key).
using Keep = std::function<bool(int64_t, int64_t, int64_t, int64_t)>;

// Contiguous numbers, and for each the size of the terms that it sums: its rounding error is a small multiple of that
// size times the resolution of the dtype. Sums are compensated (Kahan's): a plain sum of tens of thousands of terms would
// be less exact than a kernel in float64, which sums in parts.
struct Numbers {
    std::vector<double> value, size;

    explicit Numbers(int64_t count = 0) : value(size_t(count), 0), size(size_t(count), 0), lost(size_t(count), 0) {}
    void add(int64_t index, double term, double its_size) {
        const size_t i = size_t(index);
        const double exact = term - lost[i], sum = value[i] + exact;
        lost[i] = std::isfinite(sum) ? (sum - value[i]) - exact : 0;
        value[i] = sum;
        size[i] += its_size;
    }

  private:
    std::vector<double> lost; // what the last sum has too much
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
