// Statistics of the weights, strip by strip: first those of each row; then a pass over the strip adds up its columns
// and its diagonals, and collects the strongest weights.
#pragma once

#include "collected.hpp"
#include "query_parts.hpp"
#include "strip.hpp"
#include "strongest.hpp"
#include "threads.hpp"

#include <atomic>
#include <memory>

namespace RV_NAMESPACE {

template <class Kind> class Statistics {
    using Acc = typename Kind::Acc;
    using Stretch = typename Strip<Kind>::Stretch;
    static constexpr int W = WIDTH<Acc>;

    // State shared by all threads.
    struct Plan {
        const rv_statistics_call &call;
        int64_t parts, rows;        // per head; per strip
        const int64_t *boundaries;  // the boundaries of the parts, in queries
        double *memory;             // the sums of the parts, if a head has several
        Link *links;                // the links of the parts: [head, part, 2 x links]
        int64_t *found;             // their number: [head, part]
        std::atomic<int64_t> *left; // the number of unfinished parts of each head
    };

  public:
    static void run(const rv_statistics_call &call, int64_t threads) {
        const rv_call &attention = call.attention;
        int64_t heads = attention.batch * attention.heads, parts = query_parts(heads, attention.q_len);
        std::unique_ptr<int64_t[]> boundaries(new int64_t[size_t(parts + 1)]);
        cut_queries(attention, parts, boundaries.get());
        std::unique_ptr<double[]> memory;
        std::unique_ptr<Link[]> links(new Link[size_t(heads * parts * 2 * call.links)]);
        std::unique_ptr<int64_t[]> found(new int64_t[size_t(heads * parts)]);
        std::unique_ptr<std::atomic<int64_t>[]> left(new std::atomic<int64_t>[size_t(heads)]);
        for (int64_t i = 0; i < heads; i++) left[size_t(i)].store(parts, std::memory_order_relaxed);
        if (parts > 1) memory.reset(new double[size_t(heads * parts * PartLayout(call).size())]);
        Plan plan{call, parts, Strip<Kind>::rows_for(attention), boundaries.get(), memory.get(),
                  links.get(), found.get(), left.get()};
        rv::share(heads * parts, threads, work, &plan);
    }

  private:
    static void work(rv::Tasks &tasks, const void *argument) {
        const Plan &plan = *static_cast<const Plan *>(argument);
        [[maybe_unused]] typename Kind::Scope scope;
        Statistics statistics(plan);
        for (int64_t task; tasks.take(task);) statistics.part(task / plan.parts, task % plan.parts);
    }

    explicit Statistics(const Plan &plan)
        : plan(plan), call(plan.call.attention), strip(call, plan.rows, room),
          collected(plan.call, round_up(call.k_len, TILE), room) {
        diagonals = room.take<Acc>(size_t(round_up(call.k_len, TILE) + LANES + 2 * W));
        own_part = plan.parts > 1 ? nullptr : room.take<double>(size_t(PartLayout(plan.call).size()));
    }

    void part(int64_t head, int64_t index) {
        int64_t size = PartLayout(plan.call).size(), first = plan.boundaries[index], end = plan.boundaries[index + 1];
        double *parts = own_part ? own_part : plan.memory + head * plan.parts * size;
        collected.begin(head, first, end, parts + index * size);
        strongest.begin(plan.links + (head * plan.parts + index) * 2 * plan.call.links, plan.call.links);
        heard = 0;
        for (int64_t at = first; at < end; at += plan.rows) {
            strip.fill(head / call.heads, head % call.heads, at, int(std::min(plan.rows, end - at)));
            add_strip(at);
        }
        plan.found[head * plan.parts + index] = strongest.sort();
        if (plan.left[head].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        collected.write(head, parts, plan.parts);
        write_links(head);
    }

    void add_strip(int64_t first) {
        for (int r = 0; r < strip.rows; r++) finish(r);
        for_diagonals([&](int64_t from, int64_t width) { std::fill_n(diagonals + from, width, Acc(0)); });
        // One bin of queries at a time.
        for (int64_t at = first, end = first + strip.rows; at < end;) {
            int64_t bin_end = collected.bin_end(at), to = std::min(bin_end, end);
            for (int i = 0; i < strip.stretch_count; i++) sweep(i, int(at - first), int(to - first));
            for (int r = int(at - first); r < int(to - first); r++) heard += strip.top[r] != Strip<Kind>::NOTHING;
            if (to == bin_end) collected.end_bin(at, heard), heard = 0;
            at = to;
        }
        for (int r = 0; r < strip.rows; r++) add_links(r);
        for_diagonals([&](int64_t from, int64_t width) {
            collected.add_offsets(from - LANES - call.q_start - first, width, diagonals + from);
        });
    }

    // The index of a sum in `diagonals`: key - row of the strip + LANES. Neighbouring stretches share some of them.
    template <class Use> void for_diagonals(Use use) {
        for (int i = 0; i < strip.stretch_count;) {
            int64_t reach = strip.rows - 1, from = strip.stretches[i].from - reach, to = from;
            for (; i < strip.stretch_count && strip.stretches[i].from - reach <= to; i++)
                to = strip.stretches[i].from + strip.stretches[i].width + W;
            use(from + LANES, to - from);
        }
    }

    // The statistics of a row; `share` is the factor that is still to be applied to its weights.
    void finish(int r) {
        int64_t place = strip.lanes.place(call, r);
        double sum = strip.total_of(r), lse = -std::numeric_limits<double>::infinity(), mass = 0;
        double sink = call.sinks ? double(static_cast<const Acc *>(call.sinks)[strip.lanes.head[r]]) : lse;
        bool is_heard = strip.top[r] != Strip<Kind>::NOTHING || sum != 0; // NaN must stay visible
        double logarithm = is_heard ? std::log(sum) : 0;
        if (is_heard) {
            lse = double(strip.top[r]) * left_to_scale(call) + logarithm;
            mass = call.sinks ? 1 / (1 + std::exp(sink - lse)) : 1;
        }
        double part = is_heard ? mass / sum : 0;
        share[r] = Acc(part);
        // -sum of w log w, where log w = log 2^x - log sum + log mass.
        double entropy = mass * logarithm - strip.below_of(r) * part / LOG2E;
        if (mass > 0) entropy -= mass * std::log(mass);
        if (sink > -std::numeric_limits<double>::infinity())
            lse = std::max(lse, sink) + std::log1p(std::exp(-std::abs(lse - sink)));
        static_cast<Acc *>(call.lse)[place] = Acc(lse);
        static_cast<Acc *>(plan.call.entropy)[place] = Acc(entropy < 0 ? 0 : entropy);
        static_cast<Acc *>(plan.call.top)[place] = share[r];
        static_cast<Acc *>(plan.call.distance)[place] = Acc(strip.back_of(r) * part);
        Acc *first = static_cast<Acc *>(plan.call.first) + 3 * place;
        first[0] = first[1] = first[2] = 0;
    }

    // Adds up the weights of some rows in a stretch, by column and by diagonal.
    void sweep(int index, int from, int to) {
        const Stretch &stretch = strip.stretches[index];
        for (int r = from; r < to; r++) scaled[r] = share[r] * strip.shrink(index, r);
        if (stretch.from < 8) add_first(stretch, from, to);
        Acc sums[TILE];
        int64_t n = 0;
        for (; n + 4 * W <= stretch.width; n += 4 * W) columns_of<4>(stretch, from, to, n, sums);
        for (; n < stretch.width; n += W) columns_of<1>(stretch, from, to, n, sums);
        collected.add_columns(stretch.from, stretch.width, sums);
        for (int r = from; r < to; r += W) {
            int rows = std::min(W, to - r);
            for (n = 0; n + W <= stretch.width; n += 2 * W) diagonals_of<2>(stretch, r, rows, n);
            for (; n <= stretch.width; n += W) diagonals_of<1>(stretch, r, rows, n);
        }
    }

    template <int VECTORS> void columns_of(const Stretch &stretch, int from, int to, int64_t n, Acc *sums) {
        Vec<Acc> sum[VECTORS] = {};
        for (int r = from; r < to; r++)
            for (int v = 0; v < VECTORS; v++) sum[v] += load(stretch.row(r) + n + v * W) * scaled[r];
        for (int v = 0; v < VECTORS; v++) store(sums + n + v * W, sum[v]);
    }

    // From n on, for rows of which the last has its key n there; the memory to the left and right of a row is 0.
    template <int VECTORS> void diagonals_of(const Stretch &stretch, int r, int rows, int64_t n) {
        Acc *to = diagonals + LANES + stretch.from + n - (r + rows - 1);
        const Acc *row = stretch.row(r) + n - (rows - 1);
        Vec<Acc> sum[VECTORS];
        for (int v = 0; v < VECTORS; v++) sum[v] = load(to + v * W);
        for (int i = 0; i < rows; i++, row += stretch.stride() + 1)
            for (int v = 0; v < VECTORS; v++) sum[v] += load(row + v * W) * scaled[r + i];
        for (int v = 0; v < VECTORS; v++) store(to + v * W, sum[v]);
    }

    // The mass on the first 1, 4 and 8 keys.
    void add_first(const Stretch &stretch, int from, int to) {
        for (int r = from; r < to; r++) {
            Acc *first = static_cast<Acc *>(plan.call.first) + 3 * strip.lanes.place(call, r);
            for (int64_t n = 0; n < stretch.width && stretch.from + n < 8; n++) {
                Acc weight = stretch.row(r)[n] * scaled[r];
                if (stretch.from + n < 1) first[0] += weight;
                if (stretch.from + n < 4) first[1] += weight;
                first[2] += weight;
            }
        }
    }

    void add_links(int r) {
        if (!strongest.takes(share[r])) return; // the largest weight of the row
        for (int i = 0; i < strip.stretch_count; i++) {
            const Stretch &stretch = strip.stretches[i];
            Acc scale = share[r] * strip.shrink(i, r);
            strongest.add_row(stretch.row(r), stretch.width, scale, strip.lanes.query[r], stretch.from);
        }
    }

    // The links of all parts, the strongest first.
    void write_links(int64_t head) {
        const int64_t wanted = plan.call.links, room_for = 2 * wanted;
        const Link *links = plan.links + head * plan.parts * room_for;
        const int64_t *found = plan.found + head * plan.parts;
        Acc *weight = static_cast<Acc *>(plan.call.link_weight) + head * wanted;
        int64_t *of_query = plan.call.link_query + head * wanted, *of_key = plan.call.link_key + head * wanted;
        std::fill_n(taken, plan.parts, int64_t(0));
        for (int64_t n = 0; n < wanted; n++) {
            int64_t best = -1;
            for (int64_t p = 0; p < plan.parts; p++) {
                if (taken[p] == found[p]) continue;
                if (best < 0 || is_stronger(links[p * room_for + taken[p]], links[best * room_for + taken[best]])) best = p;
            }
            const Link link = best < 0 ? Link{0, -1, -1} : links[best * room_for + taken[best]++];
            weight[n] = Acc(link.weight);
            of_query[n] = best < 0 ? -1 : call.q_start + link.query;
            of_key[n] = link.key;
        }
    }

    const Plan &plan;
    const rv_call &call;
    Room room;
    Strip<Kind> strip;
    Collected<Acc> collected;
    Strongest<Acc> strongest;
    Acc *diagonals;
    double *own_part;
    int64_t heard = 0, taken[MOST_PARTS]; // queries of the bin that hear anything; links written per part
    Acc share[LANES], scaled[LANES];      // per row: the weight of its top, and the weight of 1 in a stretch
};

} // namespace RV_NAMESPACE
