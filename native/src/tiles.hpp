// Products in the tile registers of AMX: 16 rows of 64 bytes each, and one instruction that multiplies two of them.
//
// A tile of A is 16 rows by 16 packs of the depth, a tile of B 16 packs of the depth by 16 columns, a tile of C 16 rows by
// 16 columns, which is how the operands of every product lie in memory. The sums of an element are those of its row and
// column alone, 32 steps of the depth at a time, so it has the same bits wherever it stands in a product.
#pragma once

#include "numbers.hpp"
#include "operand.hpp"

#if defined(RV_EMULATE_TILES)
#include "../tests/emulated_tiles.hpp"
#endif

#include <algorithm>

namespace RV_NAMESPACE {

// The palette, the bytes of a row of each of the 8 tiles, and their rows. It is a constant because GCC takes the
// instruction that reads it for one that reads 8 bytes: it would write the other bytes of a local array later, or never.
alignas(64) constexpr uint8_t TILE_SHAPES[64] = {
    1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    16, 16, 16, 16, 16, 16, 16, 16,
};

// Two steps of the depth in one number, as in `Pairs`, in tiles.
struct Tiles {
    using Acc = float;
    using Pack = float; // the bits of two bfloat16 numbers
    static constexpr int step = 2;
    static constexpr int exp_terms = 4;
    static constexpr bool in_tiles = true;
    // The steps of the depth in one instruction. Pieces of the keys begin and end at multiples of it.
    static constexpr int grain = 32;
    static RV_INLINE Vec<float> times(Vec<float> acc, Vec<float> a, Vec<float> b) {
        return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
    }

    // While it exists, this thread may use tiles. Others must not find them in use: a context switch would save them.
    struct Scope {
        Scope() { _tile_loadconfig(TILE_SHAPES); }
        ~Scope() { _tile_release(); }
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;
    };
};

constexpr int SIDE = 16;

// The compiler knows of no memory that the instructions read: what was written before must be there.
RV_INLINE void finish_writes() { asm volatile("" ::: "memory"); }

// A product of R x C tiles (1 or 2 each) along the whole tiles of the depth, and then along `rest`: the last, shorter one
// of A and B, with zeros after it, or null.
template <int R, int C>
RV_INLINE void tile_piece(Operand<float> a, const float *b, int64_t b_stride, float *c, int64_t c_stride, int64_t depth,
                          bool add, const float *rest_a, const float *rest_b) {
    int64_t a_bytes = a.stride * 4, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
    if (add) {
        _tile_loadd(0, c, c_bytes);
        if (C == 2) _tile_loadd(1, c + SIDE, c_bytes);
        if (R == 2) _tile_loadd(2, c + SIDE * c_stride, c_bytes);
        if (R == 2 && C == 2) _tile_loadd(3, c + SIDE * c_stride + SIDE, c_bytes);
    } else {
        _tile_zero(0);
        if (C == 2) _tile_zero(1);
        if (R == 2) _tile_zero(2);
        if (R == 2 && C == 2) _tile_zero(3);
    }
    auto multiply = [&](const float *from_a, int64_t bytes_a, const float *from_b, int64_t bytes_b) {
        _tile_loadd(4, from_a, bytes_a);
        _tile_loadd(6, from_b, bytes_b);
        _tile_dpbf16ps(0, 4, 6);
        if (C == 2) {
            _tile_loadd(7, from_b + SIDE, bytes_b);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (R == 2) {
            _tile_loadd(5, from_a + SIDE * bytes_a / 4, bytes_a);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (R == 2 && C == 2) _tile_dpbf16ps(3, 5, 7);
    };
    for (int64_t k = 0; k + SIDE <= depth; k += SIDE) multiply(a.data + k, a_bytes, b + k * b_stride, b_bytes);
    if (rest_a) multiply(rest_a, SIDE * 4, rest_b, 2 * SIDE * 4);
    _tile_stored(0, c, c_bytes);
    if (C == 2) _tile_stored(1, c + SIDE, c_bytes);
    if (R == 2) _tile_stored(2, c + SIDE * c_stride, c_bytes);
    if (R == 2 && C == 2) _tile_stored(3, c + SIDE * c_stride + SIDE, c_bytes);
}

// Rows of packs, followed by zeros: `to` has `width` packs per row.
RV_INLINE void copy_rows(const float *from, int64_t from_stride, int64_t rows, int64_t count, float *to, int64_t to_rows,
                         int64_t width) {
    std::memset(to, 0, size_t(to_rows * width) * 4);
    for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * width, from + r * from_stride, size_t(count) * 4);
}

// C [rows, columns vectors] (+)= A x B in tiles; see `product`. Nothing outside of the operands is read or written.
class TileProduct {
    static constexpr int64_t DEEPEST = 128; // packs of the widest head, and of a tile of keys
    static constexpr int64_t WIDEST = 2 * SIDE;

  public:
    TileProduct(Operand<float> a, const float *b, int64_t b_stride, float *c, int64_t c_stride, int64_t depth, bool add)
        : a(a), b(b), b_stride(b_stride), c(c), c_stride(c_stride), depth(depth), whole(depth / SIDE * SIDE), add(add) {}

    void run(int64_t rows, int64_t columns, float *top) {
        finish_writes();
        // A is read once; B, of which there is less, stays in the first cache.
        for (int64_t r = 0, high; r < rows; r += high) {
            high = rows - r >= 2 * SIDE ? 2 * SIDE : std::min<int64_t>(rows - r, SIDE);
            for (int64_t i = 0; i < columns; i += 2) columns - i > 1 ? part<2>(r, high, i) : part<1>(r, high, i);
            if (top) largest(r, high, columns, top);
        }
    }

  private:
    template <int C> RV_INLINE void part(int64_t r, int64_t high, int64_t i) {
        Operand<float> rows{a.data + r * a.stride, a.stride};
        float *to = c + r * c_stride + i * SIDE;
        if (high == 2 * SIDE)
            piece<2, C>(rows, i, to, c_stride);
        else if (high == SIDE)
            piece<1, C>(rows, i, to, c_stride);
        else
            last_rows<C>(r, high, i);
    }

    // Fewer rows than a tile has.
    template <int C> void last_rows(int64_t r, int64_t count, int64_t i) {
        alignas(64) float rows[SIDE * DEEPEST], sums[SIDE * WIDEST];
        copy_rows(a.data + r * a.stride, a.stride, count, depth, rows, SIDE, DEEPEST);
        float *to = c + r * c_stride + i * SIDE;
        if (add) copy_rows(to, c_stride, count, C * SIDE, sums, SIDE, WIDEST);
        finish_writes();
        piece<1, C>({rows, DEEPEST}, i, sums, WIDEST);
        finish_writes();
        for (int64_t n = 0; n < count; n++) std::memcpy(to + n * c_stride, sums + n * WIDEST, C * SIDE * 4);
    }

    template <int R, int C> void piece(Operand<float> rows, int64_t i, float *to, int64_t to_stride) {
        const float *from = b + i * SIDE;
        if (whole == depth) return tile_piece<R, C>(rows, from, b_stride, to, to_stride, depth, add, nullptr, nullptr);
        alignas(64) float rest_a[2 * SIDE * SIDE], rest_b[SIDE * WIDEST];
        copy_rows(rows.data + whole, rows.stride, R * SIDE, depth - whole, rest_a, R * SIDE, SIDE);
        copy_rows(from + whole * b_stride, b_stride, depth - whole, C * SIDE, rest_b, SIDE, WIDEST);
        finish_writes();
        tile_piece<R, C>(rows, from, b_stride, to, to_stride, whole, add, rest_a, rest_b);
    }

    // The largest of each column of some rows.
    void largest(int64_t first, int64_t count, int64_t columns, float *top) {
        finish_writes();
        for (int64_t i = 0; i < columns; i++) {
            Vec<float> most = load(top + i * SIDE);
            const float *from = c + first * c_stride + i * SIDE;
            for (int64_t r = 0; r < count; r++) most = larger<float>(most, load(from + r * c_stride));
            store(top + i * SIDE, most);
        }
    }

    const Operand<float> a;
    const float *const b;
    const int64_t b_stride;
    float *const c;
    const int64_t c_stride, depth, whole;
    const bool add;
};

} // namespace RV_NAMESPACE
