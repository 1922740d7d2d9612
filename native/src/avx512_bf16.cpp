// AVX-512 with the dot product of bfloat16 pairs.
#define RV_NAMESPACE rv_avx512_bf16
#define RV_VECTOR_BYTES 64
#define RV_COLUMNS 4
#include "isa.hpp"

namespace rv {
const Kernel *const avx512_bf16 = &rv_avx512_bf16::kernel;
}
