// Rows of a tensor in the form that the products read.
#pragma once

#include "numbers.hpp"
#include "product.hpp"

namespace RV_NAMESPACE {

// Whether an element of the tensor already is what the kind multiplies.
template <class Kind> RV_INLINE bool reads_directly(int64_t dtype) {
    if (Kind::step == 2) return dtype == RV_BFLOAT16;
    return dtype == (sizeof(typename Kind::Acc) == 8 ? RV_FLOAT64 : RV_FLOAT32);
}

// The number of packs for `count` numbers.
template <class Kind> constexpr int64_t packs(int64_t count) { return (count + Kind::step - 1) / Kind::step; }

// The packs of the depth of a product over `count` numbers; tiles are always whole, with zeros at the end.
template <class Kind> constexpr int64_t depth_of(int64_t count) {
    return (count + Kind::grain - 1) / Kind::grain * (Kind::grain / Kind::step);
}

// One row, ALONG: `padded` packs, with zeros after the last number.
template <class Kind>
void pack_row(const char *from, int64_t dtype, typename Kind::Pack *to, int64_t count, int64_t padded) {
    if (Kind::step == 1) {
        read_row(from, dtype, to, count, padded);
    } else {
        std::memcpy(to, from, count * 2);
        std::memset(reinterpret_cast<char *>(to) + count * 2, 0, (padded * 2 - count) * 2);
    }
}

// Two rows (one for kinds of single numbers), ACROSS: pairs of the same column. A null row is zeros.
template <class Kind>
void pack_across(const char *first, const char *second, int64_t dtype, typename Kind::Pack *to, int64_t count,
                 int64_t padded) {
    if (Kind::step == 1) {
        if (first)
            read_row(first, dtype, to, count, padded);
        else
            std::memset(to, 0, padded * sizeof *to);
        return;
    }
    static const char zeros[512] = {}; // as wide as the widest head
    const Bits16 *low = reinterpret_cast<const Bits16 *>(first ? first : zeros);
    const Bits16 *high = reinterpret_cast<const Bits16 *>(second ? second : zeros);
    Bits32 *pairs = reinterpret_cast<Bits32 *>(to);
    for (int64_t i = 0; i < count; i++) pairs[i] = uint32_t(low[i]) | uint32_t(high[i]) << 16;
    std::memset(to + count, 0, (padded - count) * sizeof *to);
}

// to[j][i] = from[i][j], for a square as wide as a vector.
template <class T> void transpose(const T *from, int64_t from_stride, T *to, int64_t to_stride) {
    constexpr int W = WIDTH<T>;
    for (int j = 0; j < W; j++)
        for (int i = 0; i < W; i++) to[j * to_stride + i] = from[i * from_stride + j];
}

#if defined(__AVX512F__)
template <> inline void transpose<float>(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(from + i * from_stride);
    // In four steps, which exchange neighbours, pairs, fours and eights.
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
    }
}
#endif

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

#if defined(RV_TILES)
// Up to TILE rows, ALONG their columns: to[column][pair of rows], `width` columns (the head dim, rounded up to a tile).
// `row(n)` is null for zeros. `strip` has room for SIDE x width packs.
template <class Row>
void pack_turned(Row row, int64_t dtype, int64_t rows, int64_t count, int64_t width, float *strip, float *to) {
    for (int64_t n = 0; n < rows / 2; n += SIDE) {
        for (int64_t i = 0; i < SIDE; i++) {
            const char *one = row(2 * (n + i)), *other = row(2 * (n + i) + 1); // in this order
            pack_across<Tiles>(one, other, dtype, strip + i * width, count, width);
        }
        for (int64_t d = 0; d < width; d += SIDE) transpose(strip + d, width, to + d * (rows / 2) + n, rows / 2);
    }
}
#endif

} // namespace RV_NAMESPACE
