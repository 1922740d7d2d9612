/* Masked attention on a CPU, behind a plain C interface: pointers, strides and ranges.
 *
 * softmax(softcap(scale x Q K^T) + bias, over the keys that each query hears) x V, forward and backward; statistics of
 * the weights; and what a batch-invariant model computes around attention.
 *
 * No type of any other library appears here, so one build serves every version of torch. Every field of a call is
 * eight bytes wide, so a caller in another language writes them one after another. Strides count elements.
 */
#ifndef REARVIEW_H
#define REARVIEW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define RV_API __declspec(dllexport)
#else
#define RV_API __attribute__((visibility("default")))
#endif

/* The version of this interface. A caller compares it before its first call. */
#define RV_ABI 4

/* Element types. */
enum { RV_FLOAT32 = 0, RV_BFLOAT16 = 1, RV_FLOAT16 = 2, RV_FLOAT64 = 3 };

/* Instruction sets, from the most portable to the fastest. */
enum { RV_PORTABLE = 0, RV_AVX2 = 1, RV_AVX512 = 2, RV_AVX512_BF16 = 3, RV_AMX = 4, RV_ISAS = 5 };

/* Return values of calls. */
enum { RV_OK = 0, RV_NO_MEMORY = 1, RV_BAD_CALL = 2 };

/* A tensor [batch, head, time, dim]. The last stride must be 1, except for a bias. `data` is null if not given. */
typedef struct {
    void *data;
    int64_t dtype;
    int64_t stride[4];
} rv_tensor;

typedef struct {
    /* The type of query, key, value, out and their gradients. Scores and sums are float32 (float64 for RV_FLOAT64). */
    int64_t dtype;
    int64_t batch, heads, key_heads, q_len, k_len;
    int64_t dim, value_dim; /* of query and key; of value and out. At most 256 each. */
    int64_t q_start;        /* the position of the first query, for the slopes */

    rv_tensor query, key, value;
    rv_tensor out; /* forward, it may be in the type of the sums */
    void *lse;     /* [batch, heads, q_len], contiguous, in the type of the sums; -inf where nothing is heard */

    /* The ranges [start, end) that each query hears: int32 [batch, head, query, range], sorted and disjoint; a range whose
     * start is its end is empty. A stride of 0 broadcasts; the ranges of a row are contiguous. */
    const int32_t *starts, *ends;
    int64_t range_stride[3];
    int64_t ranges;

    /* Keys that some query hears: bytes [batch, key head, k_len], or null if all are. Other keys may hold anything. */
    const uint8_t *heard;
    int64_t heard_stride[2];

    /* Pages, forward only: key and value are pools of blocks, [block, key head, place in the block, dim]. Key n of an item
     * is at place n % block_size of block table[item * table_stride + n / block_size]. Item b has lengths[b] keys, at most
     * k_len, and its queries stand at the last of them, whatever q_start says. Null, null: no pages. */
    const int32_t *table;
    int64_t table_stride, block_size;
    const int32_t *lengths;

    rv_tensor bias;      /* any float type; a stride of 0 broadcasts */
    const float *slopes; /* [heads]: -slope x |query position - key position| is added; or null */
    /* [heads] in the type of the sums: logits that take part in each softmax and are no key; or null. Then lse counts
     * them in, and the weights of a row sum to less than 1. */
    const void *sinks;
    double scale;
    double softcap; /* 0: none */
    double dropout; /* the share that is dropped; 0: none */
    uint64_t seed;  /* of the dropout: forward and backward draw the same from the same seed */
    /* Not 0: the sums of a row are made in an order that depends on its position and its ranges alone, so its bits in out
     * and lse are the same in any batch, with any number of queries, and with any keys after those that it hears. */
    int64_t batch_invariant;

    /* Backward only. d_bias is in the type of the sums, zeroed by the caller, with strides of 0 where it broadcasts. */
    rv_tensor d_out;
    const void *d_lse; /* as lse, or null */
    rv_tensor d_query, d_key, d_value;
    rv_tensor d_bias;
    void *d_sinks; /* [heads] in the type of the sums, or null */
} rv_call;

/* Statistics of the weights of a call, without storing them. Every output is contiguous, in the type of the sums,
 * [batch, heads, ...]; `attention.lse` is one of them. */
typedef struct {
    /* These fields are read: dtype and sizes, q_start, query, key, ranges, bias, slopes, sinks, scale, softcap. There are
     * no pages. */
    rv_call attention;

    void *entropy;  /* [.., q_len] -sum of w log w */
    void *top;      /* [.., q_len] the largest weight */
    void *distance; /* [.., q_len] sum of w x (query position - key position) */
    void *first;    /* [.., q_len, 3] the sum over the first 1, 4 and 8 keys */
    void *received; /* [.., k_len] for each key the sum over queries */

    /* [.., histogram_bins] the sums by distance: bin 0 is below 0, bin 1 is 0, bin n from 2^(n-2) up to 2^(n-1). Larger
     * distances count in the last bin. */
    void *histogram;
    int64_t histogram_bins;

    /* [.., map_rows, map_columns] the sums by bins of bin_width positions, and [.., map_rows] the number of queries that
     * hear anything; zeroed by the caller. Bins of keys are counted from 0, and bins of queries from map_origin, which
     * is at most q_start. Null, with a bin_width of 0, for no map. */
    void *map, *rows_heard;
    int64_t bin_width, map_rows, map_columns, map_origin;

    /* [.., links] the largest weights of each head in descending order, equal ones by query and key; and the positions
     * of query and key. If there are fewer weights above 0, the rest has weight 0 and positions -1. */
    void *link_weight;
    int64_t *link_query, *link_key;
    int64_t links;
} rv_statistics_call;

/* out [rows, outs] = x [rows, depth] x weight [outs, depth]^T + bias, in float32. The last axes are contiguous. The bits
 * of a row depend on that row alone: not on the other rows, their number, or the number of threads. */
typedef struct {
    int64_t rows, depth, outs;
    const float *x;
    int64_t x_stride;
    const float *weight;
    int64_t weight_stride;
    const float *bias; /* [outs], or null */
    float *out;
    int64_t out_stride;
} rv_linear_call;

/* Activation functions. RV_GELU is x times the normal distribution function, RV_GELU_TANH its usual approximation. */
enum { RV_RELU = 0, RV_SILU = 1, RV_GELU = 2, RV_GELU_TANH = 3 };

/* out[n] = function(x[n]) for `count` float32 numbers; the bits of a number do not depend on where it is. */
typedef struct {
    int64_t function;
    int64_t count;
    const float *x;
    float *out;
} rv_activation_call;

/* Run `task(argument)` on up to `threads` threads at once, this one included, and return when all are done. */
typedef void (*rv_parallel)(void (*task)(void *), void *argument, unsigned threads, unsigned flags);

RV_API int64_t rv_abi(void);
RV_API int64_t rv_call_size(void);
RV_API int64_t rv_statistics_call_size(void);

/* Fills `out` and `lse`. */
RV_API int rv_forward(const rv_call *call, int64_t threads);
/* Reads `out` and `lse`, fills d_query, d_key, d_value and d_sinks, and adds to d_bias if it is given. */
RV_API int rv_backward(const rv_call *call, int64_t threads);
/* Fills all outputs. */
RV_API int rv_statistics(const rv_statistics_call *call, int64_t threads);
/* Fill `out`. */
RV_API int rv_linear(const rv_linear_call *call, int64_t threads);
RV_API int rv_activation(const rv_activation_call *call, int64_t threads);

/* Whether this instruction set was compiled, and this machine has it. */
RV_API int rv_isa_available(int64_t isa);
/* The instruction set in use: the fastest available one, unless another was forced. rv_isa_force(-1) undoes that. */
RV_API int64_t rv_isa(void);
RV_API int rv_isa_force(int64_t isa);

/* The function that runs tasks on threads. It has the signature of GOMP_parallel; with torch's, both share one pool.
 * Null (the default) means threads of this library. A forked child does not use it: its pool has no threads there. */
RV_API void rv_set_parallel(rv_parallel parallel);

#ifdef __cplusplus
}
#endif
#endif
