// AVX-512 with products of bfloat16 numbers in matrix tiles.
#define RV_NAMESPACE rv_amx
#define RV_VECTOR_BYTES 64
#define RV_COLUMNS 4
#define RV_TILES 1
#include "isa.hpp"

namespace rv {
const Kernel *const amx = &rv_amx::kernel;
}
