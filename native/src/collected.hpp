// Sums over the weights of one head, or of a part of its queries: per key, per distance, per bin of the map. The sums
// of a strip are in the type of the sums; sums over strips are double.
#pragma once

#include "numbers.hpp"
#include "room.hpp"

#include <algorithm>
#include <limits>

namespace RV_NAMESPACE {

// The memory of a part: received [key], histogram [bin], and two rows of the map, for the bins that it shares with the
// previous and with the next part. Before a row is its bin, or -1; after it, the number of queries that heard anything.
struct PartLayout {
    const int64_t keys, bins, columns;

    explicit PartLayout(const rv_statistics_call &call)
        : keys(call.attention.k_len), bins(call.histogram_bins), columns(call.bin_width ? call.map_columns : 0) {}
    int64_t histogram() const { return keys; }
    int64_t row(int64_t which) const { return keys + bins + which * (columns + 2); }
    int64_t size() const { return row(2); }
};

template <class Acc> class Collected {
  public:
    // The number of keys is rounded up to the end of the last tile.
    Collected(const rv_statistics_call &call, int64_t padded_keys, Room &room) : call(call), layout(call) {
        mass = room.take<double>(size_t(padded_keys));
        std::fill(mass, mass + padded_keys, 0.0);
        pooled = room.take<double>(size_t(layout.columns + 1));
    }

    // Collects the queries [first, end) of a head into `to`, which has room for layout.size() numbers.
    void begin(int64_t head, int64_t first, int64_t end, double *to) {
        of_head = head, first_query = first, end_query = end;
        part = to;
        std::fill(part, part + layout.size(), 0.0);
        part[layout.row(0)] = part[layout.row(1)] = -1;
    }

    // The end of the bin of a query, within this part.
    int64_t bin_end(int64_t query) const {
        return call.bin_width ? std::min(first_of(bin_of(query) + 1), end_query) : end_query;
    }

    // Adds the sums over some queries of a bin, for keys from `from` on.
    void add_columns(int64_t from, int64_t count, const Acc *sums) {
        low = std::min(low, from), high = std::max(high, from + count);
        for (int64_t i = 0; i < count; i++) mass[from + i] += double(sums[i]);
    }

    // Adds the sums by key position - query position, for the offsets [from, from + count).
    void add_offsets(int64_t from, int64_t count, const Acc *sums) {
        double *histogram = part + layout.histogram();
        int64_t done = 0;
        // From the largest distance to the future: bin n ends with the distance 2^(n-2), bin 1 with 0.
        for (int64_t bin = layout.bins - 1; bin >= 0 && done < count; bin--) {
            int64_t end = bin == 0 ? count : (bin == 1 ? 1 : 1 - (int64_t(1) << (bin - 2))) - from;
            end = std::max(done, std::min(end, count));
            histogram[bin] += sum_of_row(sums + done, end - done);
            done = end;
        }
    }

    // Called when all queries of a bin in this part have been added; `heard` of them hear anything.
    void end_bin(int64_t last_query, int64_t heard) {
        high = std::min(high, layout.keys); // zeros follow the last key
        if (call.bin_width) pool(bin_of(last_query), double(heard));
        for (int64_t k = low; k < high; k++) part[k] += mass[k], mass[k] = 0;
        low = std::numeric_limits<int64_t>::max(), high = 0;
    }

    // Adds all parts of a head in order.
    void write(int64_t head, const double *parts, int64_t count) {
        of_head = head;
        auto sum = [&](int64_t index) {
            double total = 0;
            for (int64_t i = 0; i < count; i++) total += parts[i * layout.size() + index];
            return Acc(total);
        };
        Acc *received = static_cast<Acc *>(call.received) + head * layout.keys;
        Acc *histogram = static_cast<Acc *>(call.histogram) + head * layout.bins;
        for (int64_t k = 0; k < layout.keys; k++) received[k] = sum(k);
        for (int64_t n = 0; n < layout.bins; n++) histogram[n] = sum(layout.histogram() + n);
        // The rows of one bin are consecutive.
        int64_t bin = -1;
        for (int64_t i = 0; i < 2 * count && call.bin_width; i++) {
            const double *row = parts + i / 2 * layout.size() + layout.row(i % 2);
            if (row[0] < 0) continue;
            if (int64_t(row[0]) != bin) {
                if (bin >= 0) write_bin(bin, 0, layout.columns);
                bin = int64_t(row[0]);
                std::fill(pooled, pooled + layout.columns + 1, 0.0);
            }
            for (int64_t c = 0; c <= layout.columns; c++) pooled[c] += row[1 + c];
        }
        if (bin >= 0) write_bin(bin, 0, layout.columns);
    }

  private:
    int64_t before() const { return call.attention.q_start - call.map_origin; }
    int64_t bin_of(int64_t query) const { return (query + before()) / call.bin_width; }
    int64_t first_of(int64_t bin) const { return bin * call.bin_width - before(); }

    void pool(int64_t bin, double heard) {
        int64_t from = low < high ? low / call.bin_width : 0;
        int64_t to = low < high ? (high - 1) / call.bin_width + 1 : 0;
        for (int64_t c = from; c < to; c++) {
            int64_t first = std::max(low, c * call.bin_width), end = std::min(high, (c + 1) * call.bin_width);
            pooled[c] = sum_of_row(mass + first, end - first);
        }
        pooled[layout.columns] = heard;
        bool begins_here = first_query <= std::max<int64_t>(first_of(bin), 0);
        if (begins_here && std::min(first_of(bin + 1), call.attention.q_len) <= end_query)
            return write_bin(bin, from, to);
        double *row = part + layout.row(begins_here);
        row[0] = double(bin);
        std::copy(pooled + from, pooled + to, row + 1 + from);
        row[1 + layout.columns] = heard;
    }

    void write_bin(int64_t bin, int64_t from, int64_t to) {
        int64_t row = of_head * call.map_rows + bin;
        Acc *map = static_cast<Acc *>(call.map) + row * call.map_columns;
        for (int64_t c = from; c < to; c++) map[c] = Acc(pooled[c]);
        static_cast<Acc *>(call.rows_heard)[row] = Acc(pooled[layout.columns]);
    }

    // In several independent sums, which the compiler turns into vectors.
    template <class Number> static double sum_of_row(const Number *row, int64_t count) {
        constexpr int SUMS = 16;
        double sums[SUMS] = {}, total = 0;
        int64_t i = 0;
        for (; i + SUMS <= count; i += SUMS)
            for (int lane = 0; lane < SUMS; lane++) sums[lane] += double(row[i + lane]);
        for (; i < count; i++) total += double(row[i]);
        for (double sum : sums) total += sum;
        return total;
    }

    const rv_statistics_call &call;
    const PartLayout layout;
    double *mass, *pooled, *part = nullptr;
    int64_t of_head = 0, first_query = 0, end_query = 0;
    // The keys to which the bin has added.
    int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
};

} // namespace RV_NAMESPACE
