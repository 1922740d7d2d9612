// What the definitions of forward, backward and statistics begin with.
#ifndef REARVIEW_REFERENCE_ROW_HPP
#define REARVIEW_REFERENCE_ROW_HPP

#include <limits>

#include "reference.hpp"

namespace reference {

// One query: the keys that it hears, and of each the weight, what dropout makes of it, and the slope of the softcap.
struct Row {
    std::vector<int64_t> keys;
    std::vector<double> weight, weight_size, slope, kept;
    double lse = -std::numeric_limits<double>::infinity(), score_size = 0;
};

Row row_of(const rv_call &call, const Keep &keep, int64_t b, int64_t h, int64_t q);

} // namespace reference
#endif
