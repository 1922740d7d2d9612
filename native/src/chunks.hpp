// Division of the keys of a head among tasks where there are few heads: chunks of tiles of equal visible area.
#pragma once

#include "keys.hpp"
#include "lanes.hpp"

#include <memory>

namespace RV_NAMESPACE {

// The number of chunks for `heads` heads. It depends only on the shape, because the thread count must not change a sum.
inline int64_t chunks_for(int64_t heads, int64_t tiles) {
    // Each chunk costs memory and another pass over the gradients of the queries, so that there are as many as dozens of
    // threads need, the more the longer they are, and many heads have none.
    struct {
        int64_t tasks, shortest; // in tiles
    } constexpr some{32, 4}, more{64, 8};
    if (heads < 1) return 1;
    return std::max({int64_t(1), std::min((some.tasks + heads - 1) / heads, tiles / some.shortest),
                     std::min((more.tasks + heads - 1) / heads, tiles / more.shortest)});
}

// Whether so many equal tasks would leave some threads without work for a tenth of the time or more.
inline bool leaves_threads_idle(int64_t tasks, int64_t threads) {
    int64_t rounds = (tasks + threads - 1) / threads;
    return tasks * 10 < rounds * threads * 9;
}

// The boundaries of the chunks in tiles, [chunks + 1], by the visible area of the first head.
inline void balance(const rv_call &call, const Rows &rows, int64_t tiles, int64_t chunks, int64_t *boundaries) {
    boundaries[0] = 0;
    boundaries[chunks] = tiles;
    if (chunks == 1) return;
    std::unique_ptr<int64_t[]> area(new int64_t[size_t(tiles + 1)]());
    std::unique_ptr<int32_t[]> edges(new int32_t[size_t(2 * call.ranges * LANES)]);
    Lanes lanes;
    lanes.starts = edges.get(), lanes.ends = edges.get() + call.ranges * LANES;
    for (int64_t block = 0; block < rows.blocks(); block++) {
        lanes.fill(call, rows, 0, 0, block);
        if (lanes.low >= lanes.high) continue;
        // The running sum of the number of blocks that hear each tile.
        area[size_t(lanes.low / TILE)]++;
        area[size_t((lanes.high - 1) / TILE + 1)]--;
    }
    int64_t total = 0, height = 0;
    for (int64_t t = 0; t < tiles; t++) total += height += area[size_t(t)];
    int64_t sum = 0, chunk = 1;
    height = 0;
    for (int64_t t = 0; t < tiles; t++) {
        sum += height += area[size_t(t)];
        while (chunk < chunks && sum * chunks >= total * chunk) boundaries[chunk++] = t + 1;
    }
    while (chunk < chunks) boundaries[chunk++] = tiles;
}

} // namespace RV_NAMESPACE
