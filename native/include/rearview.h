/* Masked attention on a CPU, behind a plain C interface: pointers, strides and ranges.
 *
 * softmax(softcap(scale x Q K^T) + bias, over the keys that each query hears) x V, forward and backward; and
 * statistics of the weights.
 *
 * No type of any other library appears here, so one build serves every version of torch. Every field of a call is
 * eight bytes wide: a caller in another language writes them one behind the other. Strides count elements.
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

/* Changes with the interface. A caller compares before its first call. */
#define RV_ABI 2

/* Element types. */
enum { RV_FLOAT32 = 0, RV_BFLOAT16 = 1, RV_FLOAT16 = 2, RV_FLOAT64 = 3 };

/* Instruction sets, from the plainest to the best. */
enum { RV_PORTABLE = 0, RV_AVX2 = 1, RV_AVX512 = 2, RV_AVX512_BF16 = 3, RV_ISAS = 4 };

/* What a call returns. */
enum { RV_OK = 0, RV_NO_MEMORY = 1, RV_BAD_CALL = 2 };

/* A tensor [batch, head, time, dim]. The last stride of everything but a bias must be 1. `data` null: not given. */
typedef struct {
    void *data;
    int64_t dtype;
    int64_t stride[4];
} rv_tensor;

typedef struct {
    /* query, key, value, out and their gradients; scores and sums are float32 (float64 for RV_FLOAT64). */
    int64_t dtype;
    int64_t batch, heads, key_heads, q_len, k_len;
    int64_t dim, value_dim; /* of query and key; of value and out. At most 256 each. */
    int64_t q_start;        /* the position of the first query, for the slopes */

    rv_tensor query, key, value;
    rv_tensor out;
    void *lse; /* [batch, heads, q_len], contiguous, in the type of the sums; -inf where nothing is heard */

    /* The ranges [start, end) that each query hears: int32 [batch, head, query, range], sorted, disjoint, empty ones
     * last as (k_len, k_len). A stride of 0 broadcasts; the ranges of one row lie side by side. */
    const int32_t *starts, *ends;
    int64_t range_stride[3];
    int64_t ranges;

    /* Keys that some query hears: bytes [batch, key head, k_len], or null when all are. Others may hold anything. */
    const uint8_t *heard;
    int64_t heard_stride[2];

    rv_tensor bias;      /* any float type; a stride of 0 broadcasts */
    const float *slopes; /* [heads]: -slope x |query position - key position| is added; or null */
    double scale;
    double softcap; /* 0: none */
    double dropout; /* the share that is dropped; 0: none */
    uint64_t seed;  /* of the dropout: forward and backward draw the same from the same seed */

    /* Backward only. d_bias is in the type of the sums, zeroed by the caller, with strides of 0 where it broadcasts. */
    rv_tensor d_out;
    const void *d_lse; /* as lse, or null */
    rv_tensor d_query, d_key, d_value;
    rv_tensor d_bias;
} rv_call;

/* What the weights of a call do, without ever holding all of them. Every output is contiguous, in the type of the sums,
 * [batch, heads, ...]; `attention.lse` is one of them. */
typedef struct {
    /* Read: dtype and sizes, q_start, query, key, ranges, bias, slopes, scale, softcap. The rest does not matter. */
    rv_call attention;
    /* [heads] in the type of the sums: logits that take part in each softmax and are no key; or null. Then lse counts
     * them in, and the weights of a row sum to less than 1. */
    const void *sinks;

    void *entropy;  /* [.., q_len] -sum of w log w */
    void *top;      /* [.., q_len] the largest weight */
    void *distance; /* [.., q_len] sum of w x (query position - key position) */
    void *first;    /* [.., q_len, 3] the sum over the first 1, 4 and 8 keys */
    void *received; /* [.., k_len] for each key the sum over queries */

    /* [.., histogram_bins] the sum by distance: bin 0 is below 0, bin 1 is 0, bin n from 2^(n-2) up to 2^(n-1); what is
     * further than the last counts there. */
    void *histogram;
    int64_t histogram_bins;

    /* [.., map_rows, map_columns] the sum by bins of bin_width positions, and [.., map_rows] how many queries of a bin
     * hear anything; zeroed by the caller. Bins of keys are counted from 0 and those of queries from map_origin, which
     * is at most q_start. Null, with a bin_width of 0: no map. */
    void *map, *rows_heard;
    int64_t bin_width, map_rows, map_columns, map_origin;

    /* [.., links] the largest weights of each head, the largest first; equal ones in the order of query and key. Positions
     * of query and key; where there are fewer that are not 0: weight 0, positions -1. */
    void *link_weight;
    int64_t *link_query, *link_key;
    int64_t links;
} rv_statistics_call;

/* Run `task(argument)` on up to `threads` threads at once, this one included, and return when all are done. */
typedef void (*rv_parallel)(void (*task)(void *), void *argument, unsigned threads, unsigned flags);

RV_API int64_t rv_abi(void);
RV_API int64_t rv_call_size(void);
RV_API int64_t rv_statistics_call_size(void);

/* Fills out and lse. */
RV_API int rv_forward(const rv_call *call, int64_t threads);
/* Reads out and lse; fills d_query, d_key, d_value, and adds to d_bias where it is given. */
RV_API int rv_backward(const rv_call *call, int64_t threads);
/* Fills all of its outputs. */
RV_API int rv_statistics(const rv_statistics_call *call, int64_t threads);

/* Was this instruction set built in, and has this machine it? */
RV_API int rv_isa_available(int64_t isa);
/* The one in use: the best that is available, unless another was forced. rv_isa_force(-1) chooses again. */
RV_API int64_t rv_isa(void);
RV_API int rv_isa_force(int64_t isa);

/* How threads are made. The signature is that of GOMP_parallel: given torch's own, both share one pool. Null (the
 * default): threads of this library. In a forked child the given function is not used: its pool did not survive. */
RV_API void rv_set_parallel(rv_parallel parallel);

#ifdef __cplusplus
}
#endif
#endif
