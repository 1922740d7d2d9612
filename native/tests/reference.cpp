// Written to be compared with the formula, independently of the kernel, and not for speed.
#include "reference_row.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace reference {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Half precision in software, so that it depends on no compiler option and no instruction.
float from_bfloat16(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t to_bfloat16(float value) {
    if (std::isnan(value)) return 0x7fc0;
    const uint32_t bits = bits_of(value);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_float16(uint16_t bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? std::numeric_limits<float>::quiet_NaN() : float(sign * infinity);
    if (exponent == 0) return float(sign * std::ldexp(fraction, -24));
    return float(sign * std::ldexp(1024 + fraction, exponent - 25));
}

uint16_t to_float16(float value) {
    const uint16_t sign = uint16_t(bits_of(value) >> 16 & 0x8000);
    if (std::isnan(value)) return 0x7e00;
    const double size = std::fabs(double(value));
    if (size >= 65520) return uint16_t(sign | 0x7c00);
    int exponent = 0;
    std::frexp(size, &exponent);
    // Steps of a half with this exponent; nearbyint rounds to even. A carry out of the fraction is the next exponent.
    const int step = (size == 0 || exponent < -13 ? -13 : exponent) - 11;
    const long steps = long(std::nearbyint(std::ldexp(size, -step)));
    return uint16_t(sign | (long(step + 24) * 1024 + steps));
}

Numbers output_of(const rv_call &call, const Row &row, int64_t b, int64_t key_head) {
    Numbers out(call.value_dim);
    for (size_t i = 0; i < row.keys.size(); i++)
        for (int64_t d = 0; d < call.value_dim; d++) {
            const double value = row.kept[i] * load(call.value, key_at(call, call.value, b, key_head, row.keys[i], d));
            out.add(d, row.weight[i] * value, row.weight_size[i] * std::fabs(value));
        }
    return out;
}

} // namespace

Row row_of(const rv_call &call, const Keep &keep, int64_t b, int64_t h, int64_t q) {
    Row row;
    std::vector<double> score, score_size;
    const int64_t key_head = h / (call.heads / call.key_heads);
    const int64_t start = call.lengths ? call.lengths[b] - call.q_len : call.q_start;
    const int64_t first = b * call.range_stride[0] + h * call.range_stride[1] + q * call.range_stride[2];
    for (int64_t r = 0; r < call.ranges; r++) {
        for (int64_t k = call.starts[first + r]; k < call.ends[first + r]; k++) {
            double s = 0, size = 0, slope = 1;
            for (int64_t d = 0; d < call.dim; d++) {
                const double term =
                    load(call.query, at(call.query, b, h, q, d)) * load(call.key, key_at(call, call.key, b, key_head, k, d));
                s += term * call.scale;
                size += std::fabs(term * call.scale);
            }
            if (call.softcap != 0) {
                const double t = std::tanh(s / call.softcap);
                s = call.softcap * t;
                slope = 1 - t * t;
                size += call.softcap;
            }
            if (call.bias.data) {
                const double bias = load(call.bias, at(call.bias, b, h, q, k));
                s += bias;
                size += std::fabs(bias);
            }
            if (call.slopes) {
                const double distance = double(call.slopes[h]) * double(std::llabs(start + q - k));
                s -= distance;
                size += std::fabs(distance);
            }
            row.keys.push_back(k);
            row.slope.push_back(slope);
            score.push_back(s);
            score_size.push_back(size);
            row.score_size = std::fmax(row.score_size, size);
        }
    }
    double top = -infinity, sink = -infinity;
    if (call.sinks) {
        sink = load({const_cast<void *>(call.sinks), call.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32, {}}, h);
        if (sink > -infinity) row.score_size += std::fabs(sink);
    }
    long double total = 0;
    for (double s : score) top = std::fmax(top, s);
    top = std::fmax(top, sink);
    if (top == -infinity) return row;
    for (double s : score) total += std::exp(s - top);
    row.lse = top + double(std::log(total + std::exp(sink - top)));
    row.sink_weight = std::exp(sink - row.lse);
    // A score is off by its own size in the resolution of the sums, and its exponential by as much of itself.
    const double sums = epsilon(call.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32) / epsilon(call.dtype);
    for (size_t i = 0; i < score.size(); i++) {
        row.weight.push_back(std::exp(score[i] - row.lse));
        row.weight_size.push_back(row.weight[i] * (1 + sums * (score_size[i] + row.score_size)));
        const bool kept = call.dropout == 0 || keep(b, h, q, row.keys[i]);
        row.kept.push_back(kept ? 1 / (1 - call.dropout) : 0);
    }
    return row;
}

double activation(int64_t function, double x) {
    const double cubic = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
    switch (function) {
    case RV_RELU: return x < 0 ? 0 : x;
    case RV_SILU: return x / (1 + std::exp(-x));
    case RV_GELU: return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    default: return x * (1 + std::tanh(cubic)) / 2;
    }
}

double epsilon(int64_t dtype) {
    switch (dtype) {
    case RV_FLOAT64: return std::ldexp(1, -52);
    case RV_FLOAT32: return std::ldexp(1, -23);
    case RV_BFLOAT16: return std::ldexp(1, -7);
    default: return std::ldexp(1, -10);
    }
}

double smallest(int64_t dtype) {
    return dtype == RV_FLOAT16 ? std::ldexp(1, -24) : dtype == RV_FLOAT64 ? std::ldexp(1, -1000) : std::ldexp(1, -120);
}

int64_t at(const rv_tensor &tensor, int64_t b, int64_t h, int64_t t, int64_t d) {
    return b * tensor.stride[0] + h * tensor.stride[1] + t * tensor.stride[2] + d * tensor.stride[3];
}

int64_t key_at(const rv_call &call, const rv_tensor &tensor, int64_t b, int64_t h, int64_t k, int64_t d) {
    if (!call.table) return at(tensor, b, h, k, d);
    return at(tensor, call.table[b * call.table_stride + k / call.block_size], h, k % call.block_size, d);
}

double load(const rv_tensor &tensor, int64_t index) {
    switch (tensor.dtype) {
    case RV_FLOAT64: return static_cast<const double *>(tensor.data)[index];
    case RV_FLOAT32: return static_cast<const float *>(tensor.data)[index];
    case RV_BFLOAT16: return from_bfloat16(static_cast<const uint16_t *>(tensor.data)[index]);
    default: return from_float16(static_cast<const uint16_t *>(tensor.data)[index]);
    }
}

void store(const rv_tensor &tensor, int64_t index, double value) {
    switch (tensor.dtype) {
    case RV_FLOAT64: static_cast<double *>(tensor.data)[index] = value; break;
    case RV_FLOAT32: static_cast<float *>(tensor.data)[index] = float(value); break;
    case RV_BFLOAT16: static_cast<uint16_t *>(tensor.data)[index] = to_bfloat16(float(value)); break;
    default: static_cast<uint16_t *>(tensor.data)[index] = to_float16(float(value));
    }
}

Output forward(const rv_call &call, const Keep &keep) {
    const int64_t rows = call.batch * call.heads * call.q_len;
    Output answer{Numbers(rows * call.value_dim), Numbers(rows)};
    for (int64_t b = 0; b < call.batch; b++)
        for (int64_t h = 0; h < call.heads; h++)
            for (int64_t q = 0; q < call.q_len; q++) {
                const Row row = row_of(call, keep, b, h, q);
                const Numbers out = output_of(call, row, b, h / (call.heads / call.key_heads));
                const int64_t index = (b * call.heads + h) * call.q_len + q;
                for (int64_t d = 0; d < call.value_dim; d++)
                    answer.out.add(index * call.value_dim + d, out.value[size_t(d)], out.size[size_t(d)]);
                answer.lse.add(index, row.lse, 1 + std::fabs(row.lse) + row.score_size);
            }
    return answer;
}

Gradients backward(const rv_call &call, const Keep &keep) {
    const int64_t group = call.heads / call.key_heads;
    const int64_t queries = call.batch * call.heads * call.q_len, keys = call.batch * call.key_heads * call.k_len;
    Gradients answer{Numbers(queries * call.dim), Numbers(keys * call.dim), Numbers(keys * call.value_dim),
                     Numbers(call.d_bias.data ? queries * call.k_len : 0), Numbers(call.heads)};
    for (int64_t b = 0; b < call.batch; b++)
        for (int64_t h = 0; h < call.heads; h++)
            for (int64_t q = 0; q < call.q_len; q++) {
                const int64_t key_head = h / group, index = (b * call.heads + h) * call.q_len + q;
                const Row row = row_of(call, keep, b, h, q);
                const Numbers out = output_of(call, row, b, key_head);
                // The kernel reads its output back, rounded: a small half is off by its smallest step, not by a share.
                const double least = smallest(call.dtype) / epsilon(call.dtype);
                double delta = 0, delta_size = 0;
                for (int64_t d = 0; d < call.value_dim; d++) {
                    const double d_out = load(call.d_out, at(call.d_out, b, h, q, d));
                    delta += d_out * out.value[size_t(d)];
                    delta_size += std::fabs(d_out) * (out.size[size_t(d)] + least);
                }
                if (call.d_lse) {
                    const rv_tensor sums{const_cast<void *>(call.d_lse), call.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32, {}};
                    delta -= load(sums, index);
                    delta_size += std::fabs(load(sums, index));
                }
                answer.sinks.add(h, -row.sink_weight * delta, row.sink_weight * (1 + row.score_size) * delta_size);
                for (size_t i = 0; i < row.keys.size(); i++) {
                    const int64_t k = row.keys[i], key_row = (b * call.key_heads + key_head) * call.k_len + k;
                    double d_weight = 0, d_weight_size = 0;
                    for (int64_t d = 0; d < call.value_dim; d++) {
                        const double d_out = load(call.d_out, at(call.d_out, b, h, q, d));
                        const double term = d_out * load(call.value, key_at(call, call.value, b, key_head, k, d));
                        d_weight += term;
                        d_weight_size += std::fabs(term);
                        answer.value.add(key_row * call.value_dim + d, row.weight[i] * row.kept[i] * d_out,
                                         row.weight_size[i] * row.kept[i] * std::fabs(d_out));
                    }
                    double d_score = row.weight[i] * (row.kept[i] * d_weight - delta);
                    double size = row.weight_size[i] * (row.kept[i] * d_weight_size + delta_size);
                    if (call.d_bias.data) answer.bias.add(index * call.k_len + k, d_score, size);
                    // The slope of the softcap comes from a tanh that is itself rounded.
                    const double softcap_size = call.softcap == 0 ? 1 : 2;
                    d_score *= row.slope[i] * call.scale;
                    size *= softcap_size * std::fabs(call.scale);
                    for (int64_t d = 0; d < call.dim; d++) {
                        const double key = load(call.key, key_at(call, call.key, b, key_head, k, d));
                        const double query = load(call.query, at(call.query, b, h, q, d));
                        answer.query.add(index * call.dim + d, d_score * key, size * std::fabs(key));
                        answer.key.add(key_row * call.dim + d, d_score * query, size * std::fabs(query));
                    }
                }
            }
    return answer;
}

} // namespace reference
