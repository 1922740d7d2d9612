// Any machine: vectors of 16 bytes, which are SSE2 on x86 and NEON on ARM.
#define RV_NAMESPACE rv_portable
#define RV_VECTOR_BYTES 16
#define RV_COLUMNS 2
#include "isa.hpp"

namespace rv {
const Kernel *const portable = &rv_portable::kernel;
}
