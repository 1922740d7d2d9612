// AVX2 with FMA: vectors of 32 bytes.
#define RV_NAMESPACE rv_avx2
#define RV_VECTOR_BYTES 32
#define RV_COLUMNS 2
#include "isa.hpp"

namespace rv {
const Kernel *const avx2 = &rv_avx2::kernel;
}
