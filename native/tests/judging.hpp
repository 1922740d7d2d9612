// What a check says of a number: right, or by how much not.
#ifndef REARVIEW_TESTS_JUDGING_HPP
#define REARVIEW_TESTS_JUDGING_HPP

#include <cmath>
#include <cstdio>

#include "memory.hpp"

// How many units of the dtype's resolution an answer may be off, in the size of what it is summed from.
constexpr double UNITS = 8;

inline int failures = 0;
inline double worst = 0;
inline std::string place, worst_place;

inline void fail(const std::string &what) {
    std::printf("FAILED: %s\n    %s\n", what.c_str(), place.c_str());
    failures++;
}

inline void compare_one(const char *name, double came, double right, double size, int64_t dtype, int64_t resolution) {
    const double limit = UNITS * reference::epsilon(resolution) * size + UNITS * reference::smallest(dtype);
    if (came == right) return;
    const double error = std::fabs(came - right);
    if (size > 0 && error / limit > worst) {
        worst = error / limit;
        worst_place = std::string(name) + ", " + place;
    }
    if (!(error <= limit) || size == 0) {
        char text[200];
        std::snprintf(text, sizeof text, "%s: expected %.9g, came %.9g, off by %.2g (allowed %.2g)", name, right, came,
                      error, limit);
        fail(text);
    }
}

inline void compare(const char *name, const Tensor &came, const reference::Numbers &right, int64_t resolution) {
    if (came.wrote_outside()) fail(std::string(name) + ": something was written outside of it");
    const auto &shape = came.shape();
    size_t index = 0;
    const int before = failures;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t t = 0; t < shape[2]; t++)
                for (int64_t d = 0; d < shape[3]; d++, index++) {
                    compare_one(name, came.get(b, h, t, d), right.value[index], right.size[index], came.view.dtype,
                                resolution);
                    if (failures > before) return;
                }
}

#endif
