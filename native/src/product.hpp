// The matrix product under everything: C [rows, columns] (+)= A [rows, depth] x B [depth, columns].
//
// Columns are lanes, the rows of B are contiguous vectors, and the elements of A are broadcast one by one. A Kind is
// what differs between precisions: the number of steps of the depth in one 32-bit or 64-bit number of A and B (step), and
// in one instruction (grain).
#pragma once

#include "operand.hpp"
#include "simd.hpp"
#if defined(RV_TILES)
#include "tiles.hpp"
#endif

namespace RV_NAMESPACE {

// What a thread does before and after its work: nothing.
struct NoScope {
    // Written out, so that an unused one is not warned about.
    NoScope() {}
};

struct Float {
    using Acc = float;
    using Pack = float;
    using Scope = NoScope;
    static constexpr bool in_tiles = false;
    static constexpr int step = 1, grain = 1;
    static constexpr int exp_terms = 5;
    static RV_INLINE Vec<float> times(Vec<float> acc, Vec<float> a, Vec<float> b) { return fused<float>(a, b, acc); }
};

struct Double {
    using Acc = double;
    using Pack = double;
    using Scope = NoScope;
    static constexpr bool in_tiles = false;
    static constexpr int step = 1, grain = 1;
    static constexpr int exp_terms = 13;
    static RV_INLINE Vec<double> times(Vec<double> acc, Vec<double> a, Vec<double> b) { return fused<double>(a, b, acc); }
};

#if defined(__AVX512BF16__)
// Two steps of the depth in one number: the dot product instruction multiplies pairs and adds to float32.
struct Pairs {
    using Acc = float;
    using Pack = float; // the bits of two bfloat16 numbers
    using Scope = NoScope;
    static constexpr bool in_tiles = false;
    static constexpr int step = 2, grain = 2;
    static constexpr int exp_terms = 4;
    static RV_INLINE Vec<float> times(Vec<float> acc, Vec<float> a, Vec<float> b) {
        return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
    }
};
#endif

constexpr int ROWS = 6;
constexpr int COLUMNS = RV_COLUMNS;

template <class Kind, Layout layout, int R, int C>
void piece(Operand<typename Kind::Pack> a, const typename Kind::Pack *b, int64_t b_stride, typename Kind::Acc *c,
           int64_t c_stride, int64_t depth, bool add, typename Kind::Acc *top) {
    using Acc = typename Kind::Acc;
    constexpr int W = WIDTH<Acc>;
    Vec<Acc> acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) acc[r][i] = add ? load(c + r * c_stride + i * W) : Vec<Acc>{};
    const auto *from = a.data;
    for (int64_t k = 0; k < depth; k++) {
        Vec<Acc> line[C];
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) line[i] = load(b + i * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Vec<Acc> one = splat<Acc>(layout == ALONG ? from[r * a.stride] : from[r]);
#pragma GCC unroll 8
            for (int i = 0; i < C; i++) acc[r][i] = Kind::times(acc[r][i], one, line[i]);
        }
        from += layout == ALONG ? 1 : a.stride;
        b += b_stride;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) store(c + r * c_stride + i * W, acc[r][i]);
    if (top) {
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) {
            Vec<Acc> most = load(top + i * W);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) most = larger<Acc>(most, acc[r][i]);
            store(top + i * W, most);
        }
    }
}

template <class Kind, Layout layout> struct Pieces {
    using Piece = void (*)(Operand<typename Kind::Pack>, const typename Kind::Pack *, int64_t, typename Kind::Acc *,
                           int64_t, int64_t, bool, typename Kind::Acc *);
    template <int R> static constexpr Piece at(int columns) {
        switch (columns) {
        case 1: return piece<Kind, layout, R, 1>;
        case 2: return piece<Kind, layout, R, 2>;
#if RV_COLUMNS == 4
        case 3: return piece<Kind, layout, R, 3>;
        default: return piece<Kind, layout, R, 4>;
#else
        default: return piece<Kind, layout, R, 2>;
#endif
        }
    }
    static Piece of(int rows, int columns) {
        switch (rows) {
        case 1: return at<1>(columns);
        case 2: return at<2>(columns);
        case 3: return at<3>(columns);
        case 4: return at<4>(columns);
        case 5: return at<5>(columns);
        default: return at<6>(columns);
        }
    }
};

// `columns` counts vectors and `depth` steps of the kind. `top`, if given, takes the largest of each column.
template <class Kind, Layout layout>
void product(Operand<typename Kind::Pack> a, const typename Kind::Pack *b, int64_t b_stride, typename Kind::Acc *c,
             int64_t c_stride, int64_t rows, int64_t columns, int64_t depth, bool add,
             typename Kind::Acc *top = nullptr) {
#if defined(RV_TILES)
    if constexpr (Kind::in_tiles) {
        static_assert(layout == ALONG, "tiles are read along their rows");
        TileProduct(a, b, b_stride, c, c_stride, depth, add).run(rows, columns, top);
        return;
    }
#endif
    using Acc = typename Kind::Acc;
    constexpr int W = WIDTH<Acc>;
    for (int64_t i = 0; i < columns; i += COLUMNS) {
        int wide = int(columns - i < COLUMNS ? columns - i : COLUMNS);
        // In pieces of nearly equal height: a short last piece would be bound by the latency of its sums.
        for (int64_t r = 0, pieces = (rows + ROWS - 1) / ROWS, high; pieces; r += high, pieces--) {
            high = (rows - r + pieces - 1) / pieces;
            Operand<typename Kind::Pack> part{a.data + (layout == ALONG ? r * a.stride : r), a.stride};
            Pieces<Kind, layout>::of(int(high), wide)(part, b + i * W, b_stride, c + r * c_stride + i * W, c_stride, depth,
                                                 add, top ? top + i * W : nullptr);
        }
    }
}

} // namespace RV_NAMESPACE
