// A random call of rv_statistics: its outputs, and the expected values.
#ifndef REARVIEW_TESTS_STATISTICS_CASE_HPP
#define REARVIEW_TESTS_STATISTICS_CASE_HPP

#include <set>

#include "cases.hpp"
#include "judging.hpp"

class StatisticsCase {
  public:
    rv_statistics_call call{};

    explicit StatisticsCase(const Case &drawn) : random(drawn.seed ^ 0x5747), sums(drawn.lse->view.dtype) {
        rv_call &attention = call.attention;
        attention = drawn.call;
        attention.value = attention.out = rv_tensor{};
        attention.heard = nullptr;
        const int64_t q_len = attention.q_len, k_len = attention.k_len, end = attention.q_start + q_len;
        attention.lse = output("lse", 1, q_len)->view.data;
        call.entropy = output("entropy", 1, q_len)->view.data;
        call.top = output("top", 1, q_len)->view.data;
        call.distance = output("distance", 1, q_len)->view.data;
        call.first = output("first", q_len, 3)->view.data;
        call.received = output("received", 1, k_len)->view.data;
        call.histogram_bins = 2;
        while ((int64_t(1) << (call.histogram_bins - 2)) < end && !random.chance(0.02)) call.histogram_bins++;
        call.histogram = output("histogram", 1, call.histogram_bins)->view.data;
        if (random.chance(0.8)) {
            call.map_origin = std::min<int64_t>(0, attention.q_start);
            call.bin_width = random.chance(0.3) ? random.between(1, 7) : random.between(1, std::max(k_len, end));
            call.map_rows = std::max<int64_t>(1, (end - call.map_origin + call.bin_width - 1) / call.bin_width);
            call.map_columns = (k_len + call.bin_width - 1) / call.bin_width;
            call.map = output("map", call.map_rows, call.map_columns)->view.data;
            call.rows_heard = output("rows_heard", 1, call.map_rows)->view.data;
        }
        call.links = random.chance(0.2) ? 0 : random.chance(0.8) ? random.between(1, 20) : random.between(20, 300);
        call.link_weight = output("link_weight", 1, call.links)->view.data;
        const std::vector<int64_t> places(size_t(attention.batch * attention.heads * call.links), 77);
        query = std::make_unique<Array<int64_t>>(places), key = std::make_unique<Array<int64_t>>(places);
        call.link_query = query->data(), call.link_key = key->data();
    }

    void run(int threads) {
        for (auto &each : made) each->refill(is_zeroed(each->view.data) ? 0 : UNWRITTEN);
        if (rv_statistics(&call, threads) != RV_OK) fail("rv_statistics refused");
    }

    void judge() const {
        const reference::Statistics right = reference::statistics(call);
        const std::vector<std::pair<std::string, const reference::Numbers *>> all = {
            {"lse", &right.lse}, {"entropy", &right.entropy}, {"top", &right.top}, {"distance", &right.distance},
            {"first", &right.first}, {"received", &right.received}, {"histogram", &right.histogram}, {"map", &right.map},
            {"rows_heard", &right.rows_heard},
        };
        for (const auto &each : all)
            if (const Tensor *got = named(each.first)) compare(("statistics, " + each.first).c_str(), *got, *each.second, sums);
        judge_links(right.weights);
    }

    std::vector<std::vector<unsigned char>> everything() const {
        std::vector<std::vector<unsigned char>> bytes;
        for (const auto &each : made) bytes.push_back(each->bytes());
        for (const Array<int64_t> *places : {query.get(), key.get()}) {
            const auto *from = reinterpret_cast<const unsigned char *>(places->data());
            bytes.emplace_back(from, from + call.attention.batch * call.attention.heads * call.links * 8);
        }
        return bytes;
    }

  private:
    Random random;
    int64_t sums;
    std::vector<std::unique_ptr<Tensor>> made;
    std::vector<std::pair<std::string, Tensor *>> names;
    std::unique_ptr<Array<int64_t>> query, key;

    Tensor *output(const char *name, int64_t rows, int64_t columns) {
        const std::vector<int64_t> shape{call.attention.batch, call.attention.heads, rows, columns};
        made.push_back(std::make_unique<Tensor>(sums, shape, Layout{}, UNWRITTEN));
        names.emplace_back(name, made.back().get());
        return made.back().get();
    }
    bool is_zeroed(const void *data) const { return data == call.map || data == call.rows_heard; }
    const Tensor *named(const std::string &name) const {
        for (const auto &each : names)
            if (each.first == name) return each.second;
        return nullptr;
    }

    // Each link has the weight of its rank, has the weight of its own pair, and occurs once.
    void judge_links(const reference::Numbers &weights) const {
        const int64_t q_len = call.attention.q_len, k_len = call.attention.k_len, pairs = q_len * k_len;
        const int before = failures;
        for (int64_t head = 0; head < call.attention.batch * call.attention.heads; head++) {
            std::vector<size_t> order;
            for (int64_t i = 0; i < pairs; i++) order.push_back(size_t(head * pairs + i));
            std::stable_sort(order.begin(), order.end(),
                             [&](size_t a, size_t b) { return weights.value[a] > weights.value[b]; });
            std::set<int64_t> taken;
            for (int64_t n = 0; n < call.links && failures == before; n++) {
                const int64_t at = head * call.links + n, q = call.link_query[at], k = call.link_key[at];
                const double got = reference::load(named("link_weight")->view, at);
                const size_t rank = n < pairs ? order[size_t(n)] : 0;
                compare_one("statistics, a link", got, n < pairs ? weights.value[rank] : 0,
                            n < pairs ? weights.size[rank] : 0, sums, sums);
                if (q == -1 && k == -1 && got == 0) continue;
                const int64_t pair = (q - call.attention.q_start) * k_len + k;
                if (pair < 0 || pair >= pairs || k < 0 || k >= k_len || !taken.insert(pair).second)
                    return fail("statistics, a link: no pair, or one that was there");
                compare_one("statistics, a link's pair", got, weights.value[size_t(head * pairs + pair)],
                            weights.size[size_t(head * pairs + pair)], sums, sums);
            }
        }
    }
};

#endif
