// The verdict on a number: correct, or its error.
#ifndef REARVIEW_TESTS_JUDGING_HPP
#define REARVIEW_TESTS_JUDGING_HPP

#include <cmath>
#include <cstdio>

#include "memory.hpp"

// The largest allowed error, in units of the resolution of the dtype times the size of the summed terms.
constexpr double UNITS = 8;
// What 2^x is off by, relative to itself, where it is a series of 4 terms: see Series in simd.hpp.
constexpr double SERIES = 3.4e-6;

inline int failures = 0;
inline double worst = 0;
inline std::string place, worst_place;

inline void fail(const std::string &what) {
    std::printf("FAILED: %s\n    %s\n", what.c_str(), place.c_str());
    failures++;
}

// `approximated` is allowed besides the rounding errors.
inline void compare_one(const char *name, double got, double right, double size, int64_t dtype, int64_t resolution,
                        double approximated = 0) {
    const double limit =
        UNITS * reference::epsilon(resolution) * size + UNITS * reference::smallest(dtype) + approximated;
    if (got == right) return;
    const double error = std::fabs(got - right);
    if (size > 0 && error / limit > worst) {
        worst = error / limit;
        worst_place = std::string(name) + ", " + place;
    }
    if (!(error <= limit) || size == 0) {
        char text[200];
        std::snprintf(text, sizeof text, "%s: expected %.9g, got %.9g, off by %.2g (allowed %.2g)", name, right, got,
                      error, limit);
        fail(text);
    }
}

inline void compare(const char *name, const Tensor &got, const reference::Numbers &right, int64_t resolution,
                    double approximated = 0) {
    if (got.wrote_outside()) fail(std::string(name) + ": something was written outside of it");
    const auto &shape = got.shape();
    size_t index = 0;
    const int before = failures;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t t = 0; t < shape[2]; t++)
                for (int64_t d = 0; d < shape[3]; d++, index++) {
                    compare_one(name, got.get(b, h, t, d), right.value[index], right.size[index], got.view.dtype,
                                resolution, approximated);
                    if (failures > before) return;
                }
}

#endif
