// Division of the queries of a head among tasks where there are few heads: parts of about equal visible area. They
// depend only on the shape, because the thread count must not change a sum.
#pragma once

#include "rearview.h"
#include "simd.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

// Each part has its own sums over all keys, so there are only as many parts as keep many processors busy.
constexpr int64_t MOST_PARTS = 32;

inline int64_t query_parts(int64_t heads, int64_t q_len) {
    constexpr int64_t SHORTEST = 128;
    return std::max<int64_t>(1, std::min(MOST_PARTS / std::max<int64_t>(heads, 1), q_len / SHORTEST));
}

// The boundaries of the parts, [parts + 1], by the visible area of the first head.
inline void cut_queries(const rv_call &call, int64_t parts, int64_t *boundaries) {
    boundaries[0] = 0, boundaries[parts] = call.q_len;
    if (parts == 1) return;
    auto area = [&](int64_t query) {
        int64_t sum = 16, at = query * call.range_stride[2];
        for (int64_t r = 0; r < call.ranges; r++) sum += std::max(0, call.ends[at + r] - call.starts[at + r]);
        return sum;
    };
    int64_t total = 0, sum = 0, part = 1;
    for (int64_t query = 0; query < call.q_len; query++) total += area(query);
    for (int64_t query = 0; query < call.q_len; query++) {
        sum += area(query);
        while (part < parts && sum * parts >= total * part) boundaries[part++] = query + 1;
    }
    while (part < parts) boundaries[part++] = call.q_len;
}

} // namespace RV_NAMESPACE
