// Elements of tensors, read into and written from the type of the sums.
#pragma once

#include "rearview.h"
#include "simd.hpp"

namespace RV_NAMESPACE {

// Elements of a tensor without an alignment guarantee; loops over them still become vectors.
typedef uint16_t __attribute__((may_alias, aligned(1))) Bits16;
typedef uint32_t __attribute__((may_alias, aligned(1))) Bits32;

RV_INLINE float bits_as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
RV_INLINE uint32_t float_as_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

RV_INLINE float from_bfloat16(uint16_t bits) { return bits_as_float(uint32_t(bits) << 16); }

// Rounds to nearest, ties to even; NaN remains NaN.
RV_INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits = float_as_bits(x);
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return uint16_t((x == x ? rounded : bits | 0x400000) >> 16);
}

RV_INLINE float from_float16(uint16_t half) {
    uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return bits_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13); // inf and NaN
    // The exponent is 112 too small; a multiplication corrects it, and handles subnormal numbers too.
    return bits_as_float(sign | float_as_bits(bits_as_float(rest << 13) * bits_as_float(0x77800000)));
}

RV_INLINE uint16_t to_float16(float x) {
    uint32_t bits = float_as_bits(x), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00); // 65520 and more round to inf
    if (rest < 0x38800000) {                                // subnormal: adding 0.5 rounds, and leaves the low bits
        uint32_t low = float_as_bits(bits_as_float(rest) + 0.5f) - 0x3f000000;
        return uint16_t(sign | low);
    }
    return uint16_t(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13));
}

RV_INLINE size_t size_of(int64_t dtype) { return dtype == RV_FLOAT64 ? 8 : dtype == RV_FLOAT32 ? 4 : 2; }

// A position in a tensor.
RV_INLINE char *at(const rv_tensor &tensor, int64_t batch, int64_t head, int64_t time) {
    int64_t offset = batch * tensor.stride[0] + head * tensor.stride[1] + time * tensor.stride[2];
    return static_cast<char *>(tensor.data) + offset * int64_t(size_of(tensor.dtype));
}

RV_INLINE double number_at(const char *at, int64_t dtype) {
    if (dtype == RV_FLOAT64) {
        double x;
        std::memcpy(&x, at, sizeof x);
        return x;
    }
    if (dtype == RV_FLOAT32) {
        float x;
        std::memcpy(&x, at, sizeof x);
        return x;
    }
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return dtype == RV_BFLOAT16 ? from_bfloat16(bits) : from_float16(bits);
}

// `count` numbers of a row, followed by zeros up to `padded`.
template <class Acc> void read_row(const char *from, int64_t dtype, Acc *to, int64_t count, int64_t padded) {
    if (dtype == RV_BFLOAT16) {
        const Bits16 *bits = reinterpret_cast<const Bits16 *>(from);
        for (int64_t i = 0; i < count; i++) to[i] = Acc(from_bfloat16(bits[i]));
    } else if (dtype == RV_FLOAT16) {
        int64_t i = 0;
#if defined(__F16C__)
        if (sizeof(Acc) == 4)
            for (; i + 8 <= count; i += 8) {
                __m256 eight = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + 2 * i)));
                std::memcpy(to + i, &eight, sizeof eight);
            }
#endif
        const Bits16 *bits = reinterpret_cast<const Bits16 *>(from);
        for (; i < count; i++) to[i] = Acc(from_float16(bits[i]));
    } else {
        std::memcpy(to, from, count * sizeof(Acc)); // float32 in float32, float64 in float64
    }
    for (int64_t i = count; i < padded; i++) to[i] = 0;
}

template <class Acc> void write_row(const Acc *from, char *to, int64_t dtype, int64_t count, Acc factor) {
    if (dtype == RV_BFLOAT16) {
        Bits16 *bits = reinterpret_cast<Bits16 *>(to);
        int64_t i = 0;
#if defined(__AVX512BF16__)
        if constexpr (sizeof(Acc) == 4)
            for (; i + 16 <= count; i += 16) {
                __m256i sixteen = (__m256i)_mm512_cvtneps_pbh(load(from + i) * factor);
                std::memcpy(to + 2 * i, &sixteen, sizeof sixteen);
            }
#endif
        for (; i < count; i++) bits[i] = to_bfloat16(float(from[i] * factor));
    } else if (dtype == RV_FLOAT16) {
        int64_t i = 0;
#if defined(__F16C__)
        if (sizeof(Acc) == 4)
            for (; i + 8 <= count; i += 8) {
                __m256 eight;
                std::memcpy(&eight, from + i, sizeof eight);
                __m128i halves = _mm256_cvtps_ph(eight * float(factor), _MM_FROUND_TO_NEAREST_INT);
                _mm_storeu_si128(reinterpret_cast<__m128i *>(to + 2 * i), halves);
            }
#endif
        Bits16 *bits = reinterpret_cast<Bits16 *>(to);
        for (; i < count; i++) bits[i] = to_float16(float(from[i] * factor));
    } else {
        for (int64_t i = 0; i < count; i++) {
            Acc x = from[i] * factor;
            std::memcpy(to + sizeof(Acc) * i, &x, sizeof x);
        }
    }
}

} // namespace RV_NAMESPACE
