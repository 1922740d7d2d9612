// The definition behind the interface of the kernel, to test the binding independently of the kernel.
//
//     python native/build.py --kernel reference
#include <algorithm>
#include <numeric>

#include "reference.hpp"

namespace {

uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

reference::Keep keep_of(const rv_call &call) {
    const uint64_t seed = call.seed;
    const double dropout = call.dropout;
    return [seed, dropout](int64_t b, int64_t h, int64_t q, int64_t k) {
        uint64_t x = seed;
        for (int64_t each : {b, h, q, k}) x = mixed(x + 0x9e3779b97f4a7c15u + uint64_t(each));
        return double(x >> 11) * 0x1p-53 >= dropout;
    };
}

// Every element of a tensor [batch, heads, time, dim].
void fill(const rv_tensor &tensor, const rv_call &call, int64_t heads, int64_t time, int64_t dim,
          const std::vector<double> &numbers) {
    size_t index = 0;
    for (int64_t b = 0; b < call.batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t t = 0; t < time; t++)
                for (int64_t d = 0; d < dim; d++)
                    reference::store(tensor, reference::at(tensor, b, h, t, d), numbers[index++]);
}

bool makes_sense(const rv_call *call, int64_t threads) {
    if (!call || threads < 1 || call->dtype < RV_FLOAT32 || call->dtype > RV_FLOAT64) return false;
    if (call->key_heads < 1 || call->heads % call->key_heads || call->ranges < 1 || call->dropout >= 1) return false;
    if (call->dim < 1 || call->dim > 256 || call->value_dim < 1 || call->value_dim > 256) return false;
    if (bool(call->table) != bool(call->lengths)) return false;
    for (const rv_tensor *tensor : {&call->query, &call->key, &call->value, &call->out})
        if (!tensor->data || tensor->dtype != call->dtype || tensor->stride[3] != 1) return false;
    return true;
}

bool makes_sense(const rv_statistics_call *call, int64_t threads) {
    if (!call || threads < 1) return false;
    const rv_call &attention = call->attention;
    if (attention.k_len < 1 || attention.dim < 1 || attention.dim > 256 || call->histogram_bins < 2) return false;
    for (const void *output : {attention.lse, call->entropy, call->top, call->distance, call->first, call->received})
        if (!output) return false;
    if (call->links && !(call->link_weight && call->link_query && call->link_key)) return false;
    const int64_t end = attention.q_start + attention.q_len - call->map_origin;
    return call->bin_width ? call->map_rows * call->bin_width >= end : !call->map;
}

} // namespace

extern "C" {

int64_t rv_abi(void) { return RV_ABI; }
int64_t rv_call_size(void) { return int64_t(sizeof(rv_call)); }
int64_t rv_statistics_call_size(void) { return int64_t(sizeof(rv_statistics_call)); }

int rv_forward(const rv_call *call, int64_t threads) {
    if (!makes_sense(call, threads)) return RV_BAD_CALL;
    const reference::Output answer = reference::forward(*call, keep_of(*call));
    const rv_tensor lse{call->lse, call->dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32, {}};
    for (size_t i = 0; i < answer.lse.value.size(); i++) reference::store(lse, int64_t(i), answer.lse.value[i]);
    fill(call->out, *call, call->heads, call->q_len, call->value_dim, answer.out.value);
    return RV_OK;
}

int rv_backward(const rv_call *call, int64_t threads) {
    if (!makes_sense(call, threads)) return RV_BAD_CALL;
    const reference::Gradients answer = reference::backward(*call, keep_of(*call));
    fill(call->d_query, *call, call->heads, call->q_len, call->dim, answer.query.value);
    fill(call->d_key, *call, call->key_heads, call->k_len, call->dim, answer.key.value);
    fill(call->d_value, *call, call->key_heads, call->k_len, call->value_dim, answer.value.value);
    const rv_tensor d_sinks{call->d_sinks, call->dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32, {}};
    for (int64_t h = 0; call->d_sinks && h < call->heads; h++) reference::store(d_sinks, h, answer.sinks.value[size_t(h)]);
    size_t index = 0;
    for (int64_t b = 0; call->d_bias.data && b < call->batch; b++)
        for (int64_t h = 0; h < call->heads; h++)
            for (int64_t q = 0; q < call->q_len; q++)
                for (int64_t k = 0; k < call->k_len; k++) {
                    const int64_t to = reference::at(call->d_bias, b, h, q, k);
                    reference::store(call->d_bias, to, reference::load(call->d_bias, to) + answer.bias.value[index++]);
                }
    return RV_OK;
}

int rv_statistics(const rv_statistics_call *call, int64_t threads) {
    if (!makes_sense(call, threads)) return RV_BAD_CALL;
    const rv_call &attention = call->attention;
    const int64_t sums = attention.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32;
    const reference::Statistics all = reference::statistics(*call);
    auto write = [&](void *to, const std::vector<double> &numbers) {
        for (size_t i = 0; i < numbers.size(); i++) reference::store({to, sums, {}}, int64_t(i), numbers[i]);
    };
    write(attention.lse, all.lse.value);
    write(call->entropy, all.entropy.value);
    write(call->top, all.top.value);
    write(call->distance, all.distance.value);
    write(call->first, all.first.value);
    write(call->received, all.received.value);
    write(call->histogram, all.histogram.value);
    write(call->map, all.map.value);
    write(call->rows_heard, all.rows_heard.value);
    const int64_t pairs = attention.q_len * attention.k_len;
    for (int64_t head = 0; head < attention.batch * attention.heads; head++) {
        const double *weights = all.weights.value.data() + head * pairs;
        std::vector<int64_t> order(static_cast<size_t>(pairs));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return weights[a] > weights[b]; });
        for (int64_t n = 0; n < call->links; n++) {
            const int64_t to = head * call->links + n, pair = n < pairs ? order[size_t(n)] : -1;
            const bool there = pair >= 0 && weights[pair] > 0;
            reference::store({call->link_weight, sums, {}}, to, there ? weights[pair] : 0);
            call->link_query[to] = there ? attention.q_start + pair / attention.k_len : -1;
            call->link_key[to] = there ? pair % attention.k_len : -1;
        }
    }
    return RV_OK;
}

int rv_linear(const rv_linear_call *call, int64_t threads) {
    if (!call || threads < 1 || !call->weight) return RV_BAD_CALL;
    for (int64_t r = 0; r < call->rows; r++)
        for (int64_t o = 0; o < call->outs; o++) {
            double sum = call->bias ? call->bias[o] : 0;
            for (int64_t d = 0; d < call->depth; d++)
                sum += double(call->x[r * call->x_stride + d]) * call->weight[o * call->weight_stride + d];
            call->out[r * call->out_stride + o] = float(sum);
        }
    return RV_OK;
}

int rv_activation(const rv_activation_call *call, int64_t threads) {
    if (!call || threads < 1 || call->function < RV_RELU || call->function > RV_GELU_TANH) return RV_BAD_CALL;
    for (int64_t n = 0; n < call->count; n++) call->out[n] = float(reference::activation(call->function, call->x[n]));
    return RV_OK;
}

int rv_isa_available(int64_t isa) { return isa == RV_PORTABLE; }
int64_t rv_isa(void) { return RV_PORTABLE; }
int rv_isa_force(int64_t isa) { return isa == RV_PORTABLE || isa == -1 ? RV_OK : RV_BAD_CALL; }
void rv_set_parallel(rv_parallel) {}
}
