// Up to LANES queries that share a key head, one per lane of a vector, and the keys that they hear.
//
// The scores of a block are stored transposed, [key, lane]: the softmax of a query then runs down a lane and never
// across lanes, and ranges are compared lane by lane.
#pragma once

#include "numbers.hpp"

#include <algorithm>
#include <limits>

namespace RV_NAMESPACE {

constexpr int LANES = 64;

// Keys [from, to), for the vectors of lanes [first, last).
struct Segment {
    int64_t from, to;
    int first, last;
};

struct Interval {
    int64_t from, to;
};

// The queries of one key head are consecutive rows (query head of the group, query). A block has rows of one query head
// only, unless they are so few that several heads fit.
struct Rows {
    int64_t group, q_len;

    explicit Rows(const rv_call &call) : group(call.heads / call.key_heads), q_len(call.q_len) {}
    bool mixed() const { return q_len < LANES; }
    int64_t blocks_of_head() const { return (q_len + LANES - 1) / LANES; }
    int64_t blocks() const { return mixed() ? (group * q_len + LANES - 1) / LANES : group * blocks_of_head(); }
    int64_t first(int64_t block) const {
        if (mixed()) return block * LANES;
        return block / blocks_of_head() * q_len + block % blocks_of_head() * LANES;
    }
    int count(int64_t block) const {
        int64_t end = mixed() ? group * q_len : (block / blocks_of_head() + 1) * q_len;
        return int(std::min<int64_t>(LANES, end - first(block)));
    }
};

struct Lanes {
    int count = 0;
    int64_t batch = 0;
    int64_t head[LANES], query[LANES];
    // [range, lane]; unused lanes hear nothing.
    int64_t ranges = 0;
    int32_t *starts = nullptr, *ends = nullptr;
    // The keys that all lanes hear, if there is one range per row; otherwise empty.
    int32_t common_start = 0, common_end = 0;
    // No lane hears anything outside [low, high).
    int32_t low = 0, high = 0;

    // The row of a lane in a tensor with one row per query.
    char *row(const rv_tensor &tensor, int lane) const { return at(tensor, batch, head[lane], query[lane]); }

    // Its index in a contiguous [batch, heads, q_len].
    int64_t place(const rv_call &call, int lane) const {
        return (batch * call.heads + head[lane]) * call.q_len + query[lane];
    }

    template <class Acc> int vectors() const { return (count + WIDTH<Acc> - 1) / WIDTH<Acc>; }

    // `starts` and `ends` have room for ranges x LANES numbers.
    void fill(const rv_call &call, const Rows &rows, int64_t item, int64_t key_head, int64_t block) {
        int64_t row = rows.first(block);
        fill(call, item, key_head * rows.group + row / call.q_len, row % call.q_len, rows.count(block));
    }

    // The rows from query `first` of a head on; the first query of the next head follows the last one.
    void fill(const rv_call &call, int64_t item, int64_t of_head, int64_t first, int rows) {
        count = rows;
        batch = item;
        ranges = call.ranges;
        common_start = 0;
        common_end = ranges == 1 ? int32_t(call.k_len) : 0;
        low = int32_t(call.k_len), high = 0;
        for (int lane = 0; lane < count; lane++) {
            head[lane] = of_head;
            query[lane] = first;
            int64_t offset = item * call.range_stride[0] + of_head * call.range_stride[1] + first * call.range_stride[2];
            for (int64_t r = 0; r < ranges; r++) {
                starts[r * LANES + lane] = call.starts[offset + r];
                ends[r * LANES + lane] = call.ends[offset + r];
                if (call.starts[offset + r] < call.ends[offset + r]) {
                    low = std::min(low, call.starts[offset + r]);
                    high = std::max(high, call.ends[offset + r]);
                }
            }
            common_start = std::max(common_start, call.starts[offset]);
            common_end = std::min(common_end, call.ends[offset]);
            if (++first == call.q_len) first = 0, of_head++;
        }
        for (int64_t r = 0; r < ranges; r++)
            for (int lane = count; lane < LANES; lane++)
                starts[r * LANES + lane] = ends[r * LANES + lane] = int32_t(call.k_len);
    }

    // The keys that some lane hears, as intervals; `found` has room for ranges x LANES. A gap that is shorter than a
    // step of work is not cut out, and its keys are masked.
    int heard(Interval *found) const {
        constexpr int64_t SHORT = 16;
        int n = 0;
        bool sorted = true;
        for (int64_t r = 0; r < ranges; r++)
            for (int lane = 0; lane < count; lane++) {
                Interval one{starts[r * LANES + lane], ends[r * LANES + lane]};
                if (one.from >= one.to) continue;
                if (n && found[n - 1].from <= one.from && one.from <= found[n - 1].to + SHORT) {
                    found[n - 1].to = std::max(found[n - 1].to, one.to);
                    continue;
                }
                sorted = sorted && (n == 0 || found[n - 1].to < one.from);
                found[n++] = one;
            }
        if (sorted) return n;
        std::sort(found, found + n, [](const Interval &a, const Interval &b) { return a.from < b.from; });
        int kept = 0;
        for (int i = 1; i < n; i++) {
            if (found[i].from <= found[kept].to + SHORT)
                found[kept].to = std::max(found[kept].to, found[i].to);
            else
                found[++kept] = found[i];
        }
        return n ? kept + 1 : 0;
    }
};

// The part of a tile that a block hears: pieces to compute, and where in them no comparison with the mask is needed.
template <class Acc> struct Cut {
    static constexpr int VECTORS = LANES / WIDTH<Acc>;
    Segment segments[2 * VECTORS];
    int count = 0;
    bool masked = false;
    // For each vector of lanes, the keys that all of its lanes hear (when masked).
    int64_t inside_from[VECTORS], inside_to[VECTORS];

    // Keys [from, to); pieces begin and end at multiples of `step`.
    Cut(const Lanes &lanes, int64_t from, int64_t to, int step) {
        int vectors = lanes.vectors<Acc>();
        if (lanes.common_start <= from && to <= lanes.common_end) {
            segments[count++] = {from, to, 0, vectors};
            return;
        }
        masked = true;
        int64_t first[VECTORS], last[VECTORS], edges[2 * VECTORS];
        int n = 0;
        bool all_inside = true;
        for (int v = 0; v < vectors; v++) {
            hull(lanes, v, from, to, first[v], last[v]);
            if (first[v] >= last[v]) {
                first[v] = last[v] = from;
                all_inside = false;
                continue;
            }
            all_inside = all_inside && inside_from[v] <= from && inside_to[v] >= to;
            first[v] -= first[v] % step;
            last[v] += (step - last[v] % step) % step;
            edges[n++] = first[v], edges[n++] = last[v];
        }
        if (all_inside) {
            masked = false;
            segments[count++] = {from, to, 0, vectors};
            return;
        }
        std::sort(edges, edges + n);
        for (int i = 0; i + 1 < n; i++) {
            if (edges[i] == edges[i + 1]) continue;
            Segment one{edges[i], edges[i + 1], vectors, 0};
            for (int v = 0; v < vectors; v++)
                if (first[v] <= one.from && one.to <= last[v] && first[v] < last[v]) {
                    one.first = std::min(one.first, v);
                    one.last = v + 1;
                }
            if (one.first >= one.last) continue;
            Segment *before = count ? &segments[count - 1] : nullptr;
            if (before && before->to == one.from && before->first == one.first && before->last == one.last)
                before->to = one.to;
            else
                segments[count++] = one;
        }
    }

  private:
    void hull(const Lanes &lanes, int v, int64_t from, int64_t to, int64_t &first, int64_t &last) {
        constexpr int W = WIDTH<Acc>;
        first = to, last = from;
        inside_from[v] = inside_to[v] = from;
        int end = std::min(lanes.count, (v + 1) * W);
        for (int64_t r = 0; r < lanes.ranges; r++) {
            int64_t all_from = from, all_to = to;
            for (int lane = v * W; lane < end; lane++) {
                int64_t s = std::max<int64_t>(from, lanes.starts[r * LANES + lane]);
                int64_t e = std::min<int64_t>(to, lanes.ends[r * LANES + lane]);
                all_from = std::max(all_from, s), all_to = std::min(all_to, e);
                if (s < e) first = std::min(first, s), last = std::max(last, e);
            }
            if (all_to - all_from > inside_to[v] - inside_from[v]) inside_from[v] = all_from, inside_to[v] = all_to;
        }
    }
};

// Whether each lane of vector `v` hears `key`.
template <class Acc> RV_INLINE Mask<Acc> hears(const Lanes &lanes, int v, int64_t key) {
    constexpr int W = WIDTH<Acc>;
    using Lane = typename VectorOf<Acc>::lane;
    Mask<Acc> any{};
    for (int64_t r = 0; r < lanes.ranges; r++) {
        Mask<Acc> start, end;
        for (int i = 0; i < W; i++) {
            start[i] = Lane(lanes.starts[r * LANES + v * W + i]);
            end[i] = Lane(lanes.ends[r * LANES + v * W + i]);
        }
        any |= (start <= Lane(key)) & (end > Lane(key));
    }
    return any;
}

} // namespace RV_NAMESPACE
