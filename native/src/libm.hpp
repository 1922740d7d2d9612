// Functions of the C library in the version that all supported systems have. glibc 2.29 changed how `exp` and `log` report
// errors, which nothing here reads; a library linked to the new versions would not load on older systems.
#pragma once

#include <cmath>

#if defined(__GLIBC__)
#if defined(__x86_64__)
#define RV_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define RV_OLDEST "GLIBC_2.17"
#endif
#if defined(RV_OLDEST)
__asm__(".symver exp, exp@" RV_OLDEST "\n.symver log, log@" RV_OLDEST);
#endif
#endif
