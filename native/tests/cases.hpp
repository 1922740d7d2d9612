// Random calls, each drawn from one seed: shapes, strides, ranges, options.
#ifndef REARVIEW_TESTS_CASES_HPP
#define REARVIEW_TESTS_CASES_HPP

#include <algorithm>
#include <cmath>
#include <sstream>

#include "memory.hpp"

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next() {
        uint64_t x = state_ += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }
    int64_t below(int64_t n) { return int64_t(next() % uint64_t(n)); }
    int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
    bool chance(double p) { return uniform() < p; }
    double uniform() { return double(next() >> 11) * 0x1p-53; }
    double normal() {
        const double a = uniform(), b = uniform();
        return std::sqrt(-2 * std::log(a + 1e-300)) * std::cos(6.283185307179586 * b);
    }
    template <class T> T of(const std::vector<T> &list) { return list[size_t(below(int64_t(list.size())))]; }

  private:
    uint64_t state_;
};

struct Case {
    uint64_t seed;
    rv_call call{};
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::unique_ptr<Array<int32_t>> starts, ends;
    std::unique_ptr<Array<uint8_t>> heard;
    std::unique_ptr<Array<float>> slopes;
    std::unique_ptr<Array<int32_t>> table, lengths;
    Tensor *query, *key, *value, *out, *lse, *d_out, *d_lse, *d_query, *d_key, *d_value;
    Tensor *bias = nullptr, *d_bias = nullptr, *sinks = nullptr, *d_sinks = nullptr;
    std::string mask;

    // `most` limits the multiplications of the reference.
    Case(uint64_t seed, int64_t dtype, double most) : seed(seed), random(seed) {
        call.dtype = dtype;
        draw_sizes(most);
        draw_pages();
        draw_ranges();
        draw_tensors();
        draw_options();
    }

    std::string describe() const {
        std::ostringstream text;
        text << "dtype " << call.dtype << ", batch " << call.batch << ", heads " << call.heads << "/" << call.key_heads
             << ", " << call.q_len << " queries over " << call.k_len << " keys, dims " << call.dim << "/"
             << call.value_dim << ", q_start " << call.q_start << ", " << mask << ", " << call.ranges << " ranges"
             << (call.heard ? ", unheard keys" : "") << (bias ? ", bias" : "") << (slopes ? ", slopes" : "")
             << (call.softcap != 0 ? ", softcap" : "") << (call.dropout != 0 ? ", dropout" : "")
             << (sinks ? ", sinks" : "") << (call.d_lse ? ", d_lse" : "") << (call.batch_invariant ? ", batch-invariant" : "");
        if (call.table) text << ", blocks of " << call.block_size;
        return text.str();
    }

  private:
    Random random;
    int64_t blocks = 0; // of the pools, with pages

    void draw_sizes(double most) {
        do {
            call.batch = random.of<int64_t>({1, 1, 2, 3});
            call.key_heads = random.of<int64_t>({1, 1, 2, 3});
            call.heads = call.key_heads * random.of<int64_t>({1, 1, 2, 4, 5});
            call.q_len = random.chance(0.3) ? 1 : random.chance(0.5) ? random.between(2, 20) : random.between(2, 200);
            // Enough that a head is divided among tasks.
            if (random.chance(0.1)) call.q_len = random.between(200, 700);
            call.k_len = random.chance(0.3) ? call.q_len : random.between(1, random.chance(0.3) ? 700 : 150);
            const std::vector<int64_t> dims = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 64, 65, 80, 96, 128, 129, 200, 256};
            call.dim = random.chance(0.2) ? random.between(1, 256) : random.of(dims);
            call.value_dim = random.chance(0.6) ? call.dim : random.of(dims);
        } while (double(call.batch * call.heads * call.q_len * call.k_len) * double(call.dim + call.value_dim) > most);
        call.q_start = random.chance(0.7) ? call.k_len - call.q_len : random.between(0, 50);
    }

    // Blocks in any order, some of them shared by several items; entries after the last block of an item mean nothing.
    void draw_pages() {
        if (!random.chance(0.25)) return;
        call.block_size = random.of<int64_t>({1, 3, 16, 64, 128, 256});
        const int64_t width = (call.k_len + call.block_size - 1) / call.block_size;
        blocks = width * call.batch + random.between(0, 3);
        std::vector<int32_t> order(static_cast<size_t>(blocks)), rows, counts;
        for (size_t i = 0; i < order.size(); i++) order[i] = int32_t(i);
        for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[size_t(random.below(int64_t(i)))]);
        call.table_stride = width + random.between(0, 2);
        for (int64_t b = 0; b < call.batch; b++) {
            counts.push_back(int32_t(b == 0 || random.chance(0.5) ? call.k_len : random.between(0, call.k_len)));
            const bool shares = b > 0 && random.chance(0.5);
            for (int64_t i = 0; i < call.table_stride; i++) {
                const bool used = i * call.block_size < counts.back();
                const int32_t own = i < width ? order[size_t(b * width + i)] : 0;
                rows.push_back(!used ? -7 : shares && i < width / 2 ? order[size_t(i)] : own);
            }
        }
        table = std::make_unique<Array<int32_t>>(rows);
        lengths = std::make_unique<Array<int32_t>>(counts);
        call.table = table->data();
        call.lengths = lengths->data();
    }

    int64_t length_of(int64_t item) const { return call.lengths ? call.lengths[item] : call.k_len; }

    // Ranges for every row, in the form of the interface: sorted, disjoint, empty ones last.
    void draw_ranges() {
        const bool by_item = call.table || random.chance(0.3), by_head = random.chance(0.2), by_query = random.chance(0.85);
        const int64_t items = by_item ? call.batch : 1, heads = by_head ? call.heads : 1;
        const int64_t queries = by_query ? call.q_len : 1;
        const int kind = int(random.below(7));
        static const char *names[] = {"causal", "window", "everything", "prefix and window", "documents", "scattered", "rare"};
        mask = names[kind];
        std::vector<std::vector<std::pair<int64_t, int64_t>>> rows;
        size_t most = 1;
        for (int64_t item = 0; item < items; item++)
            for (int64_t head = 0; head < heads; head++) {
                const int64_t width = random.between(1, call.k_len), first = random.between(0, call.k_len / 2);
                const int64_t document = random.between(1, call.k_len), length = length_of(item);
                const int64_t start = call.lengths ? length - call.q_len : call.q_start;
                for (int64_t q = 0; q < queries; q++) {
                    rows.push_back(row(kind, by_query ? start + q : length - 1, length, width, first, document));
                    most = std::max(most, rows.back().size());
                }
            }
        call.ranges = int64_t(most) + (random.chance(0.2) ? 1 : 0);
        std::vector<int32_t> from, to;
        for (auto &ranges : rows) {
            ranges.resize(size_t(call.ranges), {call.k_len, call.k_len});
            for (auto &range : ranges) {
                from.push_back(int32_t(range.first));
                to.push_back(int32_t(range.second));
            }
        }
        starts = std::make_unique<Array<int32_t>>(from);
        ends = std::make_unique<Array<int32_t>>(to);
        call.starts = starts->data();
        call.ends = ends->data();
        call.range_stride[2] = by_query ? call.ranges : 0;
        call.range_stride[1] = by_head ? queries * call.ranges : 0;
        call.range_stride[0] = by_item ? heads * queries * call.ranges : 0;
        draw_heard();
    }

    std::vector<std::pair<int64_t, int64_t>> row(int kind, int64_t position, int64_t length, int64_t width, int64_t first,
                                                 int64_t document) {
        std::vector<std::pair<int64_t, int64_t>> found;
        const int64_t end = std::min(length, std::max<int64_t>(0, position + 1));
        auto add = [&](int64_t from, int64_t to) {
            from = std::max<int64_t>(from, 0);
            to = std::min(to, length);
            if (from >= to) return;
            // Adjacent ranges are joined.
            if (!found.empty() && from <= found.back().second)
                found.back().second = std::max(found.back().second, to);
            else
                found.push_back({from, to});
        };
        switch (kind) {
        case 0: add(0, end); break;
        case 1: add(end - width, end); break;
        case 2: add(0, call.k_len); break;
        case 3:
            add(0, std::min(first, end));
            add(end - width, end);
            break;
        case 4: add((std::max<int64_t>(end - 1, 0) / document) * document, end); break;
        case 5:
            for (int64_t at = random.between(0, 20); at < call.k_len && found.size() < 6; at += random.between(2, 60)) {
                const int64_t to = at + random.between(1, 40);
                add(at, to);
                at = to;
            }
            break;
        default:
            // Rows that hear nothing, and a few that hear one key.
            if (random.chance(0.3)) add(random.below(call.k_len), call.k_len);
            if (found.size() && random.chance(0.5)) found[0].second = found[0].first + 1;
        }
        return found;
    }

    void draw_heard() {
        std::vector<uint8_t> bytes(size_t(call.batch * call.key_heads * call.k_len), 0);
        for (int64_t b = 0; b < call.batch; b++)
            for (int64_t h = 0; h < call.heads; h++)
                for (int64_t q = 0; q < call.q_len; q++) {
                    const int64_t at = b * call.range_stride[0] + h * call.range_stride[1] + q * call.range_stride[2];
                    const int64_t to = (b * call.key_heads + h / (call.heads / call.key_heads)) * call.k_len;
                    for (int64_t r = 0; r < call.ranges; r++)
                        for (int64_t k = call.starts[at + r]; k < call.ends[at + r]; k++) bytes[size_t(to + k)] = 1;
                }
        // With pages, the keys that an item does not have need not be listed.
        bool all = true;
        for (int64_t b = 0; b < call.batch; b++)
            for (int64_t i = 0; i < call.key_heads * length_of(b); i++) {
                const int64_t h = i / length_of(b), k = i % length_of(b);
                all = all && bytes[size_t((b * call.key_heads + h) * call.k_len + k)];
            }
        if (all && random.chance(0.9)) return;
        heard = std::make_unique<Array<uint8_t>>(bytes);
        call.heard = heard->data();
        call.heard_stride[0] = call.key_heads * call.k_len;
        call.heard_stride[1] = call.k_len;
    }

    bool is_heard(int64_t b, int64_t h, int64_t k) const {
        return !call.heard || call.heard[b * call.heard_stride[0] + h * call.heard_stride[1] + k];
    }

    Layout layout(bool may_share) {
        Layout found;
        const int orders[4][3] = {{0, 1, 2}, {0, 2, 1}, {2, 0, 1}, {1, 0, 2}};
        std::copy_n(orders[random.below(4)], 3, found.order);
        found.pad = random.of<int64_t>({0, 0, 0, 1, 5, 16});
        if (may_share) {
            found.shared[0] = random.chance(0.1);
            found.shared[1] = random.chance(0.1);
        }
        return found;
    }

    Tensor *make(int64_t dtype, std::vector<int64_t> shape, const Layout &how, unsigned char fill) {
        tensors.push_back(std::make_unique<Tensor>(dtype, std::move(shape), how, fill));
        return tensors.back().get();
    }

    Tensor *numbers(int64_t heads, int64_t time, int64_t dim, bool keys, double size) {
        const bool paged = keys && call.table;
        const std::vector<int64_t> shape = {paged ? blocks : call.batch, heads, paged ? call.block_size : time, dim};
        // Keys that no query hears keep NaN, unless they share memory with keys that are heard.
        Tensor *made = make(call.dtype, shape, layout(!keys), NAN_BYTE);
        for (int64_t b = 0; b < call.batch; b++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t t = 0; t < (keys ? length_of(b) : time); t++)
                    if (!keys || is_heard(b, h, t))
                        for (int64_t d = 0; d < dim; d++)
                            reference::store(made->view, paged ? reference::key_at(call, made->view, b, h, t, d)
                                                               : reference::at(made->view, b, h, t, d),
                                             size * random.normal());
        return made;
    }

    void draw_tensors() {
        const double loud = random.of<double>({1, 1, 1, 3});
        query = numbers(call.heads, call.q_len, call.dim, false, loud);
        key = numbers(call.key_heads, call.k_len, call.dim, true, loud);
        value = numbers(call.key_heads, call.k_len, call.value_dim, true, 1);
        d_out = numbers(call.heads, call.q_len, call.value_dim, false, 1);
        const int64_t sums = call.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32;
        out = make(call.dtype, {call.batch, call.heads, call.q_len, call.value_dim}, layout(false), UNWRITTEN);
        lse = make(sums, {call.batch, call.heads, 1, call.q_len}, Layout{}, UNWRITTEN);
        d_lse = make(sums, {call.batch, call.heads, 1, call.q_len}, Layout{}, NAN_BYTE);
        for (int64_t b = 0; b < call.batch; b++)
            for (int64_t h = 0; h < call.heads; h++)
                for (int64_t q = 0; q < call.q_len; q++) d_lse->set(b, h, 0, q, random.normal());
        d_query = make(call.dtype, query->shape(), layout(false), UNWRITTEN);
        d_key = make(call.dtype, {call.batch, call.key_heads, call.k_len, call.dim}, layout(false), UNWRITTEN);
        d_value = make(call.dtype, {call.batch, call.key_heads, call.k_len, call.value_dim}, layout(false), UNWRITTEN);
        call.query = query->view;
        call.key = key->view;
        call.value = value->view;
        call.out = out->view;
        call.lse = lse->view.data;
        call.d_out = d_out->view;
        call.d_lse = random.chance(0.4) ? d_lse->view.data : nullptr;
        call.d_query = d_query->view;
        call.d_key = d_key->view;
        call.d_value = d_value->view;
    }

    void draw_options() {
        call.scale = random.chance(0.8) ? 1 / std::sqrt(double(call.dim)) : random.uniform();
        if (random.chance(0.2)) call.softcap = random.of<double>({0.5, 2, 30});
        if (random.chance(0.2)) call.dropout = random.of<double>({0.1, 0.5, 0.9});
        call.seed = random.next();
        call.batch_invariant = random.chance(0.2);
        if (random.chance(0.25)) {
            const int64_t sums = call.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32;
            sinks = make(sums, {1, 1, 1, call.heads}, Layout{}, 0);
            for (int64_t h = 0; h < call.heads; h++)
                sinks->set(0, 0, 0, h, random.chance(0.1) ? -INFINITY : 3 * random.normal());
            d_sinks = make(sums, {1, 1, 1, call.heads}, Layout{}, UNWRITTEN);
            call.sinks = sinks->view.data;
            call.d_sinks = d_sinks->view.data;
        }
        if (random.chance(0.2)) {
            std::vector<float> drawn;
            for (int64_t h = 0; h < call.heads; h++) drawn.push_back(float(random.uniform() * 0.3));
            slopes = std::make_unique<Array<float>>(drawn);
            call.slopes = slopes->data();
        } else if (random.chance(0.3)) {
            Layout how;
            for (bool &shared : how.shared) shared = random.chance(0.4);
            const bool one_key = random.chance(0.15);
            const std::vector<int64_t> shape = {call.batch, call.heads, call.q_len, one_key ? 1 : call.k_len};
            bias = make(random.of<int64_t>({RV_FLOAT32, RV_BFLOAT16, RV_FLOAT16, RV_FLOAT64}), shape, how, NAN_BYTE);
            for (int64_t b = 0; b < shape[0]; b++)
                for (int64_t h = 0; h < shape[1]; h++)
                    for (int64_t q = 0; q < shape[2]; q++)
                        for (int64_t k = 0; k < shape[3]; k++) bias->set(b, h, q, k, random.normal());
            call.bias = bias->view;
            if (one_key) call.bias.stride[3] = 0;
            if (random.chance(0.7)) {
                d_bias = make(call.dtype == RV_FLOAT64 ? RV_FLOAT64 : RV_FLOAT32, shape, how, 0);
                call.d_bias = d_bias->view;
                if (one_key) call.d_bias.stride[3] = 0;
            }
        }
    }
};

#endif
