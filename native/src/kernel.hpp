// The functions of one instruction set.
#pragma once

#include "rearview.h"

namespace rv {

struct Kernel {
    void (*forward)(const rv_call &call, int64_t threads);
    void (*backward)(const rv_call &call, int64_t threads);
    void (*statistics)(const rv_statistics_call &call, int64_t threads);
    void (*linear)(const rv_linear_call &call, int64_t threads);
    void (*activation)(const rv_activation_call &call, int64_t threads);
};

extern const Kernel *const portable, *const avx2, *const avx512, *const avx512_bf16, *const amx;

} // namespace rv
