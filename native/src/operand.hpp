// The first operand of a product.
#pragma once

#include <cstdint>

namespace RV_NAMESPACE {

// How A lies in memory: ALONG its rows the depth is contiguous; ACROSS, the rows are.
enum Layout { ALONG, ACROSS };

template <class Pack> struct Operand {
    const Pack *data;
    int64_t stride; // between rows (ALONG), or between steps of the depth (ACROSS)
};

} // namespace RV_NAMESPACE
