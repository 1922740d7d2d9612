// The largest weights of a head. Candidates come in the order of their queries, and for each in that of its keys; of
// equal ones the first stay.
#pragma once

#include "simd.hpp"

#include <algorithm>

namespace RV_NAMESPACE {

struct Link {
    double weight;
    int32_t query, key;
};

// Is `a` to stand before `b`?
RV_INLINE bool is_stronger(const Link &a, const Link &b) {
    if (a.weight != b.weight) return a.weight > b.weight;
    return a.query != b.query ? a.query < b.query : a.key < b.key;
}

// Links in memory of somebody else, with room for twice as many as are wanted: when it is full the weaker half goes.
template <class Acc> class Strongest {
    static constexpr int W = WIDTH<Acc>;

  public:
    void begin(Link *memory, int64_t of_wanted) { links = memory, wanted = of_wanted, size = 0, limit = 0; }

    // A weight of no more than this is none of them; where none is wanted, no weight is more.
    bool takes(Acc weight) const { return wanted && weight > limit; }

    // A row of numbers that are still to be multiplied with `scale`, for keys from `from` on.
    void add_row(const Acc *row, int64_t count, Acc scale, int64_t query, int64_t from) {
        for (int64_t n = 0; n < count; n += W) {
            Vec<Acc> weights = load(row + n) * scale;
            if (!some_larger<Acc>(weights, splat<Acc>(limit))) continue;
            for (int i = 0; i < W; i++)
                if (weights[i] > limit) add({double(weights[i]), int32_t(query), int32_t(from + n + i)});
        }
    }

    // The strongest first; returns how many there are.
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
    Acc limit = 0; // what is no stronger is none of them
};

} // namespace RV_NAMESPACE
