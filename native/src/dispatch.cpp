// The C interface: checks the call and uses the fastest instruction set that was compiled and that this machine has.
#include "kernel.hpp"

#include <atomic>
#include <initializer_list>
#include <new>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace {

constexpr int64_t WIDEST_HEAD = 256;

std::atomic<int64_t> forced{-1};

const rv::Kernel *built(int64_t isa) {
    switch (isa) {
    case RV_PORTABLE: return rv::portable;
#ifdef RV_WITH_AVX2
    case RV_AVX2: return rv::avx2;
#endif
#ifdef RV_WITH_AVX512
    case RV_AVX512: return rv::avx512;
#endif
#ifdef RV_WITH_AVX512_BF16
    case RV_AVX512_BF16: return rv::avx512_bf16;
#endif
#ifdef RV_WITH_AMX
    case RV_AMX: return rv::amx;
#endif
    }
    return nullptr;
}

#if defined(__x86_64__)
// Whether the processor has tiles for bfloat16 and this process may use them. Linux saves their large state only for
// processes that have asked for it, once and for all threads.
bool may_use_tiles() {
#if defined(RV_EMULATE_TILES)
    return true;
#elif defined(__linux__)
    static const bool granted = [] {
        constexpr unsigned BFLOAT16 = 1u << 22, TILE = 1u << 24;
        constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (~edx & (BFLOAT16 | TILE))) return false;
        return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }();
    return granted;
#else
    return false;
#endif
}
#endif

bool machine_has(int64_t isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    switch (isa) {
    case RV_AVX2: return avx2;
    case RV_AVX512: return avx512;
    case RV_AVX512_BF16: return avx512 && __builtin_cpu_supports("avx512bf16");
    case RV_AMX: return avx512 && __builtin_cpu_supports("avx512bf16") && may_use_tiles();
    }
#endif
    return isa == RV_PORTABLE;
}

// Intel's dot product of bfloat16 pairs takes longer than the two products in float32 (68 and 86 GFLOP/s on Sapphire
// Rapids, where tiles are what bfloat16 is meant for); AMD's takes half as long.
bool pairs_are_slow() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

int64_t best() {
    static const int64_t found = [] {
        if (rv_isa_available(RV_AMX)) return int64_t(RV_AMX);
        int64_t isa = pairs_are_slow() ? RV_AVX512 : RV_AVX512_BF16;
        while (!rv_isa_available(isa)) isa--;
        return isa;
    }();
    return found;
}

bool is_tensor(const rv_tensor &tensor, int64_t dtype) {
    return tensor.data && tensor.dtype == dtype && tensor.stride[3] == 1;
}

bool is_float(int64_t dtype) { return dtype >= RV_FLOAT32 && dtype <= RV_FLOAT64; }

// Checks what every kind of call reads: sizes, query and key, ranges, bias.
bool has_scores(const rv_call &call) {
    if (!is_float(call.dtype)) return false;
    if (call.batch < 0 || call.q_len < 0 || call.k_len < 0 || call.key_heads < 1 || call.heads < 1) return false;
    if (call.heads % call.key_heads || call.dim < 1 || call.dim > WIDEST_HEAD) return false;
    if (!call.lse || !call.starts || !call.ends || call.ranges < 1) return false;
    if (!is_tensor(call.query, call.dtype) || !is_tensor(call.key, call.dtype)) return false;
    return !call.bias.data || is_float(call.bias.dtype);
}

bool has_pages(const rv_call &call) {
    if (!call.table || !call.lengths || call.block_size < 1) return false;
    for (int64_t b = 0; b < call.batch; b++)
        if (call.lengths[b] < 0 || call.lengths[b] > call.k_len) return false;
    return true;
}

bool makes_sense(const rv_call *call, bool backward) {
    if (!call || !has_scores(*call)) return false;
    if (call->value_dim < 1 || call->value_dim > WIDEST_HEAD) return false;
    if (!(call->dropout >= 0 && call->dropout < 1)) return false;
    if ((call->table || call->lengths) && (backward || !has_pages(*call))) return false;
    int64_t sums = call->dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32;
    bool unrounded = !backward && is_tensor(call->out, sums);
    if (!is_tensor(call->value, call->dtype) || !(is_tensor(call->out, call->dtype) || unrounded)) return false;
    if (!backward) return true;
    if (call->d_sinks && !call->sinks) return false;
    for (const rv_tensor *tensor : {&call->d_out, &call->d_query, &call->d_key, &call->d_value})
        if (!is_tensor(*tensor, call->dtype)) return false;
    return !call->d_bias.data || (call->bias.data && call->d_bias.dtype == sums);
}

bool makes_sense(const rv_statistics_call *call) {
    if (!call || !has_scores(call->attention)) return false;
    const rv_call &attention = call->attention;
    if (attention.k_len < 1 || call->histogram_bins < 2 || attention.table || attention.lengths) return false;
    for (const void *output : {call->entropy, call->top, call->distance, call->first, call->received, call->histogram})
        if (!output) return false;
    if (call->links < 0 || (call->links && !(call->link_weight && call->link_query && call->link_key))) return false;
    if (!call->bin_width) return !call->map && !call->rows_heard;
    if (call->bin_width < 0 || !call->map || !call->rows_heard || call->map_origin > attention.q_start) return false;
    int64_t rows = attention.q_start + attention.q_len - call->map_origin;
    return call->map_rows >= (rows + call->bin_width - 1) / call->bin_width &&
           call->map_columns >= (attention.k_len + call->bin_width - 1) / call->bin_width;
}

bool makes_sense(const rv_linear_call *call) {
    if (!call || call->rows < 0 || call->outs < 0 || call->depth < 0) return false;
    // Tensors without elements may have no memory.
    return (call->x || call->rows * call->depth == 0) && (call->weight || call->outs * call->depth == 0) &&
           (call->out || call->rows * call->outs == 0);
}

bool makes_sense(const rv_activation_call *call) {
    if (!call || call->function < RV_RELU || call->function > RV_GELU_TANH || call->count < 0) return false;
    return !call->count || (call->x && call->out);
}

template <class Call>
int run(void (*rv::Kernel::*what)(const Call &, int64_t), const Call *call, bool sensible, int64_t threads) {
    if (!sensible || threads < 1) return RV_BAD_CALL;
    try {
        (built(rv_isa())->*what)(*call, threads);
    } catch (const std::bad_alloc &) {
        return RV_NO_MEMORY;
    }
    return RV_OK;
}

} // namespace

extern "C" {

int64_t rv_abi(void) { return RV_ABI; }
int64_t rv_call_size(void) { return sizeof(rv_call); }
int64_t rv_statistics_call_size(void) { return sizeof(rv_statistics_call); }

int rv_forward(const rv_call *call, int64_t threads) {
    return run(&rv::Kernel::forward, call, makes_sense(call, false), threads);
}
int rv_backward(const rv_call *call, int64_t threads) {
    return run(&rv::Kernel::backward, call, makes_sense(call, true), threads);
}
int rv_statistics(const rv_statistics_call *call, int64_t threads) {
    return run(&rv::Kernel::statistics, call, makes_sense(call), threads);
}
int rv_linear(const rv_linear_call *call, int64_t threads) {
    return run(&rv::Kernel::linear, call, makes_sense(call), threads);
}
int rv_activation(const rv_activation_call *call, int64_t threads) {
    return run(&rv::Kernel::activation, call, makes_sense(call), threads);
}

int rv_isa_available(int64_t isa) { return built(isa) && machine_has(isa); }
int64_t rv_isa(void) {
    int64_t isa = forced.load(std::memory_order_relaxed);
    return isa < 0 ? best() : isa;
}
int rv_isa_force(int64_t isa) {
    if (isa >= 0 && !rv_isa_available(isa)) return RV_BAD_CALL;
    forced.store(isa < 0 ? -1 : isa);
    return RV_OK;
}
}
