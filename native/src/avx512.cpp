// AVX-512: vectors of 64 bytes.
#define RV_NAMESPACE rv_avx512
#define RV_VECTOR_BYTES 64
#define RV_COLUMNS 4
#include "isa.hpp"

namespace rv {
const Kernel *const avx512 = &rv_avx512::kernel;
}
