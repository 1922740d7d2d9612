// Statistics by their definition, from all weights of a row; `size` is in units of the resolution of the sums.
#include <cmath>
#include <limits>

#include "reference_row.hpp"

namespace reference {

namespace {

int64_t bin_of_distance(int64_t distance, int64_t bins) {
    if (distance < 0) return 0;
    int64_t bin = 1;
    while (bin + 1 < bins && distance >= (int64_t(1) << (bin - 1))) bin++;
    return bin;
}

} // namespace

Statistics statistics(const rv_statistics_call &call) {
    rv_call attention = call.attention;
    attention.dropout = 0; // weights are those before it
    const int64_t heads = attention.batch * attention.heads, rows = heads * attention.q_len;
    const int64_t bins = call.histogram_bins, map_rows = call.map_rows, map_columns = call.map_columns;
    Statistics all{Numbers(rows), Numbers(rows), Numbers(rows), Numbers(rows), Numbers(3 * rows),
                   Numbers(heads * attention.k_len), Numbers(heads * bins), Numbers(heads * map_rows * map_columns),
                   Numbers(heads * map_rows), Numbers(rows * attention.k_len)};
    for (int64_t index = 0; index < rows; index++) {
        const int64_t head = index / attention.q_len, q = index % attention.q_len;
        const int64_t position = attention.q_start + q;
        const Row row = row_of(attention, nullptr, head / attention.heads, head % attention.heads, q);
        all.lse.add(index, row.lse, 1 + std::fabs(row.lse) + row.score_size);
        const int64_t map_row = call.bin_width ? head * map_rows + (position - call.map_origin) / call.bin_width : 0;
        if (call.bin_width && !row.keys.empty()) all.rows_heard.add(map_row, 1, 1);
        double top = 0;
        const double unsure = 2 + 2 * row.score_size + (attention.sinks ? std::fabs(row.lse) : 0);
        for (size_t i = 0; i < row.keys.size(); i++) {
            const int64_t k = row.keys[i], distance = position - k;
            const double weight = row.weight[i], size = weight * unsure;
            const double bits = weight > 0 ? std::fabs(std::log(weight)) : 0;
            all.weights.add(index * attention.k_len + k, weight, size);
            all.entropy.add(index, weight > 0 ? -weight * std::log(weight) : 0,
                            size * (1 + bits + std::log(double(row.keys.size()))));
            all.distance.add(index, weight * double(distance), size * std::fabs(double(distance)));
            top = std::fmax(top, weight);
            for (int n = 0; n < 3; n++)
                if (k < (n == 0 ? 1 : 4 * n)) all.first.add(3 * index + n, weight, size);
            all.received.add(head * attention.k_len + k, weight, size);
            all.histogram.add(head * bins + bin_of_distance(distance, bins), weight, size);
            if (call.bin_width) all.map.add(map_row * map_columns + k / call.bin_width, weight, size);
        }
        all.top.add(index, top, top * unsure);
    }
    return all;
}

} // namespace reference
