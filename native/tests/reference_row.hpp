// The common first step of the definitions of forward, backward and statistics.
#ifndef REARVIEW_REFERENCE_ROW_HPP
#define REARVIEW_REFERENCE_ROW_HPP

#include <limits>

#include "reference.hpp"

namespace reference {

// One query: the keys that it hears, with their weights before and after dropout, and the slope of the softcap.
struct Row {
    std::vector<int64_t> keys;
    std::vector<double> weight, weight_size, slope, kept;
    double lse = -std::numeric_limits<double>::infinity(), score_size = 0, sink_weight = 0;
};

Row row_of(const rv_call &call, const Keep &keep, int64_t b, int64_t h, int64_t q);

} // namespace reference
#endif
