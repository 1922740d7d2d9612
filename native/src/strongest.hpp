// The largest weights of a head. Candidates arrive in the order of queries, then of keys; among equal weights the first
// are kept.
#pragma once

#include "simd.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

struct Link {
    double weight;
    int32_t query, key;
};

// Whether `a` comes before `b`.
RV_INLINE bool is_stronger(const Link &a, const Link &b) {
    if (a.weight != b.weight) return a.weight > b.weight;
    return a.query != b.query ? a.query < b.query : a.key < b.key;
}

// Links in memory of the caller, with room for twice the wanted number: when it is full, the weaker half is dropped.
template <class Acc> class Strongest {
    static constexpr int W = WIDTH<Acc>;

  public:
    void begin(Link *memory, int64_t of_wanted) { links = memory, wanted = of_wanted, size = 0, limit = 0; }

    // Weights up to this limit are not among the links; if none are wanted, the limit is infinite.
    bool takes(Acc weight) const { return wanted && weight > limit; }

    // Adds a row of numbers, which are still to be multiplied by `scale`, for keys from `from` on.
    void add_row(const Acc *row, int64_t count, Acc scale, int64_t query, int64_t from) {
        for (int64_t n = 0; n < count; n += W) {
            Vec<Acc> weights = load(row + n) * scale;
            if (!some_larger<Acc>(weights, splat<Acc>(limit))) continue;
            for (int i = 0; i < W; i++)
                if (weights[i] > limit) add({double(weights[i]), int32_t(query), int32_t(from + n + i)});
        }
    }

    // Sorts the links, the strongest first, and returns their number.
    int64_t sort() {
        if (size > wanted) drop();
        std::sort(links, links + size, is_stronger);
        return size;
    }

  private:
    void add(const Link &link) {
        links[size++] = link;
        if (size == 2 * wanted) drop();
    }

    void drop() {
        std::nth_element(links, links + wanted - 1, links + size, is_stronger);
        size = wanted;
        limit = Acc(links[wanted - 1].weight);
    }

    Link *links = nullptr;
    int64_t wanted = 0, size = 0;
    Acc limit = 0; // weights up to this are not among the links
};

} // namespace RV_NAMESPACE
