// Backward: each tile of keys loops over the blocks of queries that hear it. Weights are recomputed from the saved log-
// sum-exp (https://arxiv.org/abs/2205.14135, algorithm 4).
//
// The gradients of the keys and values of a tile are summed by one thread in a fixed order. Those of the queries are
// summed over tiles: in chunks of tiles, whose sums are added in order. The chunks depend only on the shape, so the
// thread count does not change the result. If there are enough heads for the threads, one thread does all chunks of a
// head and adds as it goes; otherwise each chunk is a task, and the sums are added at the end.
#pragma once

#include "chunks.hpp"
#include "forward.hpp"
#include "key_tile.hpp"

namespace RV_NAMESPACE {

// A block of queries, with everything that a tile needs of it.
template <class Kind> struct QueryBlock {
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    Lanes lanes;
    Dropout<Acc> dropout;
    Pack *query, *d_out;               // [dim, lane]
    Pack *query_across, *d_out_across; // [lane, dim]
    Acc lse[LANES], exponent[LANES];   // in units of log 2; inf where nothing was heard
    Acc delta[LANES];                  // the row sums of weight x gradient of the weight
    bool large;                        // whether some exponent is that large
    Acc *d_query, *sum;                // [dim, lane]: of this chunk, and of those before
    bool touched, summed;
};

template <class Kind> class Backward {
    using Acc = typename Kind::Acc;
    using Pack = typename Kind::Pack;
    static constexpr int W = WIDTH<Acc>;

    // State shared by all threads.
    struct Plan {
        const rv_call &call;
        Rows rows;
        int64_t blocks, tiles, chunks;
        bool split;                 // whether each chunk is a task
        int64_t batches, heads;     // the axes of tasks; a task does the rest of the batch and heads
        const int64_t *boundaries;  // the boundaries of the chunks in tiles: [chunks + 1]
        Acc *partial;               // [chunk, batch, key head, block, dim, lane], if chunks are tasks
        uint8_t *partial_touched;   // [chunk, batch, key head, block]
    };

  public:
    static void run(const rv_call &call, int64_t threads) {
        if (call.d_sinks) rv::share(call.heads, threads, sinks, &call);
        Plan plan{call, Rows(call), 0, (call.k_len + TILE - 1) / TILE, 1, false, call.batch, call.key_heads, nullptr,
                  nullptr, nullptr};
        plan.blocks = plan.rows.blocks();
        if (call.d_bias.data) {
            // Work that adds to the same elements of the bias is done by one thread.
            if (call.d_bias.stride[0] == 0) plan.batches = 1;
            if (call.d_bias.stride[1] == 0) plan.heads = 1;
        }
        // All chunks add to a bias that is the same for all keys.
        bool apart = !call.d_bias.data || call.d_bias.stride[3] != 0;
        plan.chunks = apart ? chunks_for(plan.batches * plan.heads, plan.tiles) : 1;
        std::unique_ptr<int64_t[]> boundaries(new int64_t[size_t(plan.chunks + 1)]);
        balance(call, plan.rows, plan.tiles, plan.chunks, boundaries.get());
        plan.boundaries = boundaries.get();
        int64_t tasks = plan.batches * plan.heads;
        plan.split = plan.chunks > 1 && leaves_threads_idle(tasks, threads);
        if (!plan.split) {
            rv::share(tasks, threads, work, &plan);
            return;
        }
        size_t parts = size_t(plan.chunks * call.batch * call.key_heads * plan.blocks);
        // Each part is first written by the thread that computes it, so that its memory is near that thread.
        Block<Acc> partial = block_of<Acc>(parts * size_t(call.dim * LANES));
        std::unique_ptr<uint8_t[]> touched(new uint8_t[parts]());
        plan.partial = partial.get();
        plan.partial_touched = touched.get();
        rv::share(plan.chunks * tasks, threads, work, &plan);
        rv::share(call.batch * call.key_heads * plan.blocks, threads, add_up, &plan);
    }

  private:
    static void work(rv::Tasks &tasks, const void *argument) {
        const Plan &plan = *static_cast<const Plan *>(argument);
        const rv_call &call = plan.call;
        [[maybe_unused]] typename Kind::Scope scope;
        Backward backward(plan);
        int64_t parts = plan.split ? plan.chunks : 1;
        for (int64_t task; tasks.take(task);) {
            int64_t chunk = task % parts, head = task / parts % plan.heads, batch = task / parts / plan.heads;
            for (int64_t b = batch; b < call.batch; b += plan.batches)
                for (int64_t h = head; h < call.key_heads; h += plan.heads)
                    plan.split ? backward.one_chunk(chunk, b, h) : backward.all_chunks(b, h);
        }
    }

    // A sink is a key without a value: the gradient of its score is weight x (0 - delta).
    static void sinks(rv::Tasks &tasks, const void *argument) {
        const rv_call &call = *static_cast<const rv_call *>(argument);
        const Acc *lse = static_cast<const Acc *>(call.lse), *d_lse = static_cast<const Acc *>(call.d_lse);
        Room room;
        Acc *strip = room.take<Acc>(size_t(2 * round_up(call.value_dim, W)));
        for (int64_t head; tasks.take(head);) {
            double sink = double(static_cast<const Acc *>(call.sinks)[head]), sum = 0;
            for (int64_t b = 0; b < call.batch && sink > -std::numeric_limits<double>::infinity(); b++)
                for (int64_t q = 0, place = (b * call.heads + head) * call.q_len; q < call.q_len; q++, place++) {
                    Acc delta = product_of(call, at(call.out, b, head, q), at(call.d_out, b, head, q), strip);
                    sum -= std::exp(sink - double(lse[place])) * double(delta - (d_lse ? d_lse[place] : Acc(0)));
                }
            static_cast<Acc *>(call.d_sinks)[head] = Acc(sum);
        }
    }

    explicit Backward(const Plan &plan)
        : plan(plan), call(plan.call), tile(call, room), plain(is_plain(call)),
          query_depth(depth_of<Kind>(call.dim)), value_depth(depth_of<Kind>(call.value_dim)),
          query_width(round_up(call.dim, W)), value_width(round_up(call.value_dim, W)) {
        size_t n = size_t(plan.blocks);
        blocks = room.take<QueryBlock<Kind>>(n);
        size_t query_size = size_t(round_up(query_depth, W) * LANES);
        size_t value_size = size_t(round_up(value_depth, W) * LANES);
        size_t across = size_t(LANES / Kind::step);
        Pack *query = room.take<Pack>(n * query_size), *d_out = room.take<Pack>(n * value_size);
        Pack *query_across = room.take<Pack>(n * across * size_t(query_width));
        Pack *d_out_across = room.take<Pack>(n * across * size_t(value_width));
        int32_t *edges = room.take<int32_t>(n * size_t(2 * call.ranges * LANES));
        size_t gradient = size_t(round_up(call.dim, W) * LANES);
        Acc *d_query = plan.split ? nullptr : room.take<Acc>(n * gradient);
        Acc *sum = plan.split || plan.chunks == 1 ? nullptr : room.take<Acc>(n * gradient);
        for (size_t i = 0; i < n; i++) {
            QueryBlock<Kind> &block = *new (blocks + i) QueryBlock<Kind>();
            block.query = query + i * query_size;
            block.d_out = d_out + i * value_size;
            block.query_across = query_across + i * across * size_t(query_width);
            block.d_out_across = d_out_across + i * across * size_t(value_width);
            block.lanes.starts = edges + i * size_t(2 * call.ranges * LANES);
            block.lanes.ends = block.lanes.starts + call.ranges * LANES;
            block.d_query = d_query ? d_query + i * gradient : nullptr;
            block.sum = sum ? sum + i * gradient : nullptr;
        }
        scores = room.take<Acc>(size_t(TILE * LANES));
        d_weights = room.take<Acc>(size_t(TILE * LANES));
        slope = plain ? nullptr : room.take<Acc>(size_t(TILE * LANES));
        // For kinds of single numbers, scores are overwritten in place: A and B have the same form.
        bool single = Kind::step == 1;
        weights = single ? reinterpret_cast<Pack *>(scores) : room.take<Pack>(size_t(TILE * LANES / 2));
        d_scores = single ? reinterpret_cast<Pack *>(d_weights) : room.take<Pack>(size_t(TILE * LANES / 2));
        d_scores_across = single ? d_scores : room.take<Pack>(size_t(TILE * LANES / 2));
        d_key = room.take<Acc>(size_t(TILE * query_width));
        d_value = room.take<Acc>(size_t(TILE * value_width));
        strip = room.take<Acc>(size_t((W + 2) * std::max(query_width, value_width)));
    }

    void one_chunk(int64_t index, int64_t batch, int64_t key_head) {
        int64_t slot = ((index * call.batch + batch) * call.key_heads + key_head) * plan.blocks;
        fill_blocks(batch, key_head, first_of(index), end_of(index));
        for (int64_t i = 0; i < plan.blocks; i++) blocks[i].d_query = plan.partial + (slot + i) * call.dim * LANES;
        for (int64_t n = first_of(index); n < end_of(index); n += TILE) keys(batch, key_head, n);
        for (int64_t i = 0; i < plan.blocks; i++) plan.partial_touched[slot + i] = blocks[i].touched;
    }

    void all_chunks(int64_t batch, int64_t key_head) {
        fill_blocks(batch, key_head, 0, call.k_len);
        for (int64_t index = 0; index < plan.chunks; index++) {
            for (int64_t n = first_of(index); n < end_of(index); n += TILE) keys(batch, key_head, n);
            for (int64_t i = 0; i < plan.blocks && plan.chunks > 1; i++) add_chunk(blocks[i]);
        }
        for (int64_t i = 0; i < plan.blocks; i++) {
            const QueryBlock<Kind> &block = blocks[i];
            const Acc *d_query = plan.chunks > 1 ? (block.summed ? block.sum : nullptr)
                                                 : (block.touched ? block.d_query : nullptr);
            write_query(call, block.lanes, d_query, strip);
        }
    }

    int64_t first_of(int64_t chunk) const { return plan.boundaries[chunk] * TILE; }
    int64_t end_of(int64_t chunk) const { return std::min(plan.boundaries[chunk + 1] * TILE, call.k_len); }

    // The blocks of a head, with all that is needed of those that hear a key of [first, last).
    void fill_blocks(int64_t batch, int64_t key_head, int64_t first, int64_t last) {
        for (int64_t i = 0; i < plan.blocks; i++) {
            QueryBlock<Kind> &block = blocks[i];
            block.touched = block.summed = false;
            block.lanes.fill(call, plan.rows, batch, key_head, i);
            if (block.lanes.low < last && block.lanes.high > first) fill(block);
        }
    }

    // Adds the gradient of a chunk to that of those before, as `add_up` does.
    void add_chunk(QueryBlock<Kind> &block) {
        if (!block.touched) return;
        if (!block.summed)
            std::swap(block.sum, block.d_query);
        else
            for (int64_t i = 0; i < call.dim * LANES; i += W)
                store(block.sum + i, load(block.sum + i) + load(block.d_query + i));
        block.summed = true, block.touched = false;
    }

    void fill(QueryBlock<Kind> &block) {
        const Lanes &lanes = block.lanes;
        pack_lanes<Kind>(call.query, call.dim, lanes, reinterpret_cast<Pack *>(strip), block.query);
        pack_lanes<Kind>(call.d_out, call.value_dim, lanes, reinterpret_cast<Pack *>(strip), block.d_out);
        for (int lane = 0; lane < lanes.vectors<Acc>() * W; lane += Kind::step) {
            bool pair = Kind::step == 2;
            pack_across<Kind>(row(call.query, lanes, lane), pair ? row(call.query, lanes, lane + 1) : nullptr,
                              call.dtype, block.query_across + lane / Kind::step * query_width, call.dim, query_width);
            pack_across<Kind>(row(call.d_out, lanes, lane), pair ? row(call.d_out, lanes, lane + 1) : nullptr,
                              call.dtype, block.d_out_across + lane / Kind::step * value_width, call.value_dim,
                              value_width);
        }
        const Acc *lse = static_cast<const Acc *>(call.lse), *d_lse = static_cast<const Acc *>(call.d_lse);
        block.large = false;
        for (int lane = 0; lane < LANES; lane++) {
            // exp(score - inf) is 0: the weights of a lane that heard nothing, or is unused, are 0.
            block.lse[lane] = block.exponent[lane] = std::numeric_limits<Acc>::infinity();
            block.delta[lane] = 0;
            if (lane >= lanes.count) continue;
            int64_t at_row = lanes.place(call, lane);
            if (lse[at_row] != -std::numeric_limits<Acc>::infinity()) {
                block.lse[lane] = lse[at_row];
                block.exponent[lane] = lse[at_row] * Acc(LOG2E);
                block.large = block.large || std::abs(block.exponent[lane]) > LARGE_EXPONENT;
            }
            block.delta[lane] = product_of(call, row(call.out, lanes, lane), row(call.d_out, lanes, lane), strip) -
                                (d_lse ? d_lse[at_row] : Acc(0));
        }
        if (call.dropout) block.dropout.fill(call, lanes);
    }

    // Null for an unused lane.
    static const char *row(const rv_tensor &tensor, const Lanes &lanes, int lane) {
        return lane < lanes.count ? lanes.row(tensor, lane) : nullptr;
    }

    // Of two rows of an output; `strip` has room for both.
    static Acc product_of(const rv_call &call, const char *a, const char *b, Acc *strip) {
        int64_t value_width = round_up(call.value_dim, W);
        Acc *x = strip, *y = strip + value_width;
        read_row(a, call.dtype, x, call.value_dim, value_width);
        read_row(b, call.dtype, y, call.value_dim, value_width);
        Vec<Acc> sum{};
        for (int64_t e = 0; e < value_width; e += W) sum += load(x + e) * load(y + e);
        Acc total = 0;
        for (int i = 0; i < W; i++) total += sum[i];
        return total;
    }

    // The gradients of a tile of keys, and its part of the gradients of the queries that hear it.
    void keys(int64_t batch, int64_t key_head, int64_t from) {
        int64_t end = std::min(from + TILE, call.k_len), to = round_up(end, Kind::grain);
        std::memset(d_key, 0, size_t((end - from) * query_width) * sizeof(Acc));
        std::memset(d_value, 0, size_t((end - from) * value_width) * sizeof(Acc));
        bool filled = false;
        for (int64_t i = 0; i < plan.blocks; i++) {
            QueryBlock<Kind> &block = blocks[i];
            if (block.lanes.low >= end || block.lanes.high <= from) continue;
            Cut<Acc> cut(block.lanes, from, to, Kind::grain);
            if (!cut.count) continue;
            if (!filled) tile.fill(batch, key_head, from);
            filled = true;
            if (!block.touched) std::memset(block.d_query, 0, size_t(call.dim * LANES) * sizeof(Acc));
            block.touched = true;
            for (int s = 0; s < cut.count; s++) part(block, cut, cut.segments[s], from);
        }
        for (int64_t n = from; n < end; n++) {
            write_row(d_key + (n - from) * query_width, at(call.d_key, batch, key_head, n), call.dtype, call.dim,
                      Acc(left_to_scale(call)));
            write_row(d_value + (n - from) * value_width, at(call.d_value, batch, key_head, n), call.dtype,
                      call.value_dim, Acc(1));
        }
    }

    void part(QueryBlock<Kind> &block, const Cut<Acc> &cut, const Segment &part, int64_t from) {
        int64_t end = std::min(part.to, call.k_len), rows = end - part.from, row = part.from - from;
        int columns = part.last - part.first, lane = part.first * W;
        product<Kind, ALONG>(tile.keys(part.from), block.query + lane, LANES, scores + row * LANES + lane, LANES, rows,
                             columns, query_depth, false);
        product<Kind, ALONG>(tile.values(part.from), block.d_out + lane, LANES, d_weights + row * LANES + lane, LANES,
                             rows, columns, value_depth, false);
        for (int v = part.first; v < part.last; v++) {
            if (!plain) finish_scores<Acc>(call, block.lanes, v, part.from, end, from, scores, slope);
            differentiate(block, cut, v, part.from, part.to, from);
        }
        int64_t lanes_depth = columns * W / Kind::step;
        Operand<Pack> weight{weights + (row * LANES + lane) / Kind::step, LANES / Kind::step};
        Operand<Pack> d_score{d_scores + (row * LANES + lane) / Kind::step, LANES / Kind::step};
        product<Kind, ALONG>(weight, block.d_out_across + lane / Kind::step * value_width, value_width,
                             d_value + row * value_width, value_width, rows, value_width / W, lanes_depth, true);
        product<Kind, ALONG>(d_score, block.query_across + lane / Kind::step * query_width, query_width,
                             d_key + row * query_width, query_width, rows, query_width / W, lanes_depth, true);
        product<Kind, KeyTile<Kind>::ACROSS_KEYS>(tile.keys_across(part.from), d_scores_across + row / Kind::step * LANES + lane, LANES,
                              block.d_query + lane, LANES, call.dim, columns, (part.to - part.from) / Kind::step, true);
    }

    // Turns scores into weights, and gradients of weights into gradients of scores. Only keys that some lane does not
    // hear cost a mask, and only calls with options cost these.
    void differentiate(QueryBlock<Kind> &block, const Cut<Acc> &cut, int v, int64_t from, int64_t to, int64_t origin) {
        block.large ? differentiate<true>(block, cut, v, from, to, origin)
                    : differentiate<false>(block, cut, v, from, to, origin);
    }

    template <bool large>
    void differentiate(QueryBlock<Kind> &block, const Cut<Acc> &cut, int v, int64_t from, int64_t to, int64_t origin) {
        if (!plain || call.dropout || call.d_bias.data)
            return differentiate<true, true, large>(block, v, from, to, origin);
        if (!cut.masked) return differentiate<false, false, large>(block, v, from, to, origin);
        int64_t inside = std::clamp(round_up(cut.inside_from[v], Kind::step), from, to);
        int64_t outside = std::clamp(cut.inside_to[v] - cut.inside_to[v] % Kind::step, inside, to);
        differentiate<true, false, large>(block, v, from, inside, origin);
        differentiate<false, false, large>(block, v, inside, outside, origin);
        differentiate<true, false, large>(block, v, outside, to, origin);
    }

    // The exponent of a weight where the log-sum-exp would be too coarse: the same product as in forward, so that a row
    // with one key far above all others has a weight of exactly 1 there. No weight is above 1.
    RV_INLINE Vec<Acc> careful(Vec<Acc> score, Vec<Acc> lse) const {
        Vec<Acc> above = rounded(score * Acc(left_to_scale(call))) - lse;
        return select<Acc>(above > Acc(0), Vec<Acc>{}, above) * Acc(LOG2E);
    }

    template <bool masked, bool options, bool large>
    void differentiate(QueryBlock<Kind> &block, int v, int64_t from, int64_t to, int64_t origin) {
        Vec<Acc> factor = splat<Acc>(Acc(left_to_scale(call) * LOG2E));
        Vec<Acc> exponent = load(block.exponent + v * W), delta = load(block.delta + v * W);
        [[maybe_unused]] Vec<Acc> lse = load(block.lse + v * W);
        for (int64_t key = from; key < to; key += Kind::step) {
            Vec<Acc> weight[Kind::step], d_score[Kind::step];
#pragma GCC unroll 2
            for (int j = 0; j < Kind::step; j++) {
                int64_t place = (key + j - origin) * LANES + v * W;
                Vec<Acc> score = load(scores + place), power = score * factor - exponent;
                // The choice is made per lane, so that the bits of a row do not depend on the size of other rows.
                if (large) power = select<Acc>(is_large<Acc>(exponent), careful(score, lse), rounded(power));
                // A key that the lane does not hear may be far above those it hears. Then `w` means nothing; `kept` and `ds`
                // are 0 there.
                Vec<Acc> w = exp2<Kind::exp_terms, Acc>(power);
                Vec<Acc> dw = load(d_weights + place), kept = w;
                if (options && call.dropout) {
                    Vec<Acc> keep = block.dropout.factor(v, key + j);
                    kept *= keep;
                    dw *= keep;
                }
                Vec<Acc> ds = w * (dw - delta);
                Mask<Acc> heard{};
                if (masked) {
                    heard = hears<Acc>(block.lanes, v, key + j);
                    kept = select<Acc>(heard, kept, Vec<Acc>{});
                    // 0 x inf is NaN: a forbidden value whose gradient overflows must have no effect either.
                    ds = select<Acc>(heard, ds, Vec<Acc>{});
                }
                if (options && key + j < call.k_len) {
                    if (call.d_bias.data) add_to_bias(block.lanes, v, key + j, ds);
                    // The slope at a key that is not heard must have no effect either.
                    if (!plain) ds = select<Acc>(heard, ds * load(slope + place), Vec<Acc>{});
                }
                weight[j] = kept, d_score[j] = ds;
            }
            put(key - origin, v, weight, d_score);
        }
    }

    // Weights and gradients of scores ALONG, with a row of lanes per key; the latter ACROSS as well.
    RV_INLINE void put(int64_t row, int v, const Vec<Acc> *weight, const Vec<Acc> *d_score) {
#if defined(__AVX512BF16__)
        if constexpr (Kind::step == 2) {
            int64_t place = row * LANES / 2 + v * W / 2;
            put_halves(weights + place, (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(d_score[1], d_score[0]);
            put_halves(d_scores + place, both);
            _mm512_storeu_si512(d_scores_across + row / 2 * LANES + v * W, interleaved(both));
            return;
        }
#endif
        store(weights + row * LANES + v * W, weight[0]);
        store(d_scores + row * LANES + v * W, d_score[0]);
    }

#if defined(__AVX512BF16__)
    static RV_INLINE void put_halves(Pack *to, __m512i both) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_castsi512_si256(both));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + LANES / 2), _mm512_extracti64x4_epi64(both, 1));
    }
#endif

    void add_to_bias(const Lanes &lanes, int v, int64_t key, Vec<Acc> ds) {
        const rv_tensor &d_bias = call.d_bias;
        for (int i = 0; i < W && v * W + i < lanes.count; i++) {
            int lane = v * W + i;
            int64_t offset = lanes.batch * d_bias.stride[0] + lanes.head[lane] * d_bias.stride[1] +
                             lanes.query[lane] * d_bias.stride[2] + key * d_bias.stride[3];
            static_cast<Acc *>(d_bias.data)[offset] += ds[i];
        }
    }

    static void write_query(const rv_call &call, const Lanes &lanes, const Acc *d_query, Acc *strip) {
        int64_t padded = round_up(call.dim, W);
        for (int v = 0; v < lanes.vectors<Acc>(); v++) {
            for (int64_t d = 0; d < padded; d += W) {
                Acc square[W * W];
                for (int i = 0; i < W; i++)
                    store(square + i * W, d_query && d + i < call.dim ? load(d_query + (d + i) * LANES + v * W)
                                                                      : Vec<Acc>{});
                transpose(square, W, strip + d, padded);
            }
            for (int i = 0; i < W && v * W + i < lanes.count; i++)
                write_row(strip + i * padded, lanes.row(call.d_query, v * W + i), call.dtype, call.dim,
                          Acc(left_to_scale(call)));
        }
    }

    // Adds the parts of the gradient of a block in the order of the chunks.
    static void add_up(rv::Tasks &tasks, const void *argument) {
        const Plan &plan = *static_cast<const Plan *>(argument);
        const rv_call &call = plan.call;
        Room room;
        int64_t size = call.dim * LANES, heads = call.batch * call.key_heads;
        Acc *sum = room.take<Acc>(size_t(size)), *strip = room.take<Acc>(size_t(W * round_up(call.dim, W)));
        Lanes lanes;
        lanes.starts = room.take<int32_t>(size_t(call.ranges * LANES));
        lanes.ends = room.take<int32_t>(size_t(call.ranges * LANES));
        for (int64_t task; tasks.take(task);) {
            int64_t head = task / plan.blocks, block = task % plan.blocks;
            bool touched = false;
            for (int64_t c = 0; c < plan.chunks; c++) {
                int64_t slot = (c * heads + head) * plan.blocks + block;
                if (!plan.partial_touched[slot]) continue;
                const Acc *part = plan.partial + slot * size;
                if (!touched)
                    std::memcpy(sum, part, size_t(size) * sizeof(Acc));
                else
                    for (int64_t i = 0; i < size; i += W) store(sum + i, load(sum + i) + load(part + i));
                touched = true;
            }
            lanes.fill(call, plan.rows, head / call.key_heads, head % call.key_heads, block);
            write_query(call, lanes, touched ? sum : nullptr, strip);
        }
    }

    const Plan &plan;
    const rv_call &call;
    Room room;
    KeyTile<Kind> tile;
    const bool plain;
    const int64_t query_depth, value_depth; // packs
    const int64_t query_width, value_width; // elements, padded to whole vectors
    QueryBlock<Kind> *blocks;
    Pack *weights, *d_scores, *d_scores_across;
    Acc *scores, *d_weights, *slope, *d_key, *d_value, *strip;
};

} // namespace RV_NAMESPACE
